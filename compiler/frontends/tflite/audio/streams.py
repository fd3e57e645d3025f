"""Operators that keep a part of a stream from run to run.

A buffer is its last elements: a run appends the new ones and drops as many of the oldest.
"""

from __future__ import annotations

import math

import numpy as np

from ....graph.ir import Tensor
from ....graph.ops.movement import Concat, Pad
from ....te.expr import Const, Expr, minimum, select
from ..custom_options import integers, own_options
from ..file import FlatTensor
from ..graph import Call, Rows
from ..ops.rules import int32, saturated
from ..state import initial_value

#: The most elements of an option that is a length.
LONGEST = 1 << 20
#: The most steps of one run, each of which is a copy of its nodes.
MAX_STEPS = 1 << 10


def kept(call: Call, label: str, initial: np.ndarray) -> Tensor:
    """What an operator keeps under a label, ``initial`` before the first run."""
    key = (call.importer.number, f"{call.label}.{label}")
    return call.importer.variables.read(call.importer.tensors, key, initial)


def keep(call: Call, label: str, value: Tensor) -> None:
    """The next value of what an operator keeps."""
    call.importer.variables.current[call.importer.number, f"{call.label}.{label}"] = value.name


def two_results(call: Call) -> tuple[FlatTensor, FlatTensor]:
    """The results of an operator that has two."""
    if len(call.results) != 2:
        raise call.refuse(f"expected 2 results, got {len(call.results)}")
    return call.results[0], call.results[1]


def rows_of(call: Call, inner: int) -> Tensor:
    """The int16 or float operand as rows of its last ``inner`` dimensions."""
    value = call.tensor(0)
    shape = value.shape
    if len(shape) < inner:
        raise call.refuse(f"expected at least {inner} dimensions, got {list(shape)}")
    cut = len(shape) - inner
    return call.reshape(value, (math.prod(shape[:cut]), *shape[cut:]))


def _joined(call: Call, rows: Tensor, length: int) -> Tensor:
    """Rows behind the last ``length`` elements before them, zeros in the first run, [rows, N]."""
    if not length:
        return rows
    count, size = rows.shape
    before = kept(call, "buffer", np.zeros((count, length), rows.dtype))
    joined = call.emit(Concat(1), before, rows)
    keep(call, "buffer", call.part(joined, 1, size, length))
    return joined


def _delay(call: Call) -> None:
    (length,) = integers(call, delay_length=(0, LONGEST))
    rows = rows_of(call, 1)
    made = call.part(_joined(call, rows, length), 1, 0, rows.shape[1])
    call.define(call.reshape(made, call.importer.shape(call.operand(0))))


def _flag(call: Call, value: Tensor) -> None:
    """The second result: whether the first is a result of the stream."""
    call.define(call.reshape(value, ()), result=call.results[1])


def _framer(call: Call) -> None:
    """Frames that overlap. Without zeros before the stream a frame is valid when its elements are
    there; until then those that are missing are 0 (the kernel leaves what it finds in memory)."""
    size, step, prefill = integers(
        call, frame_size=(1, LONGEST), frame_step=(1, LONGEST), prefill=(0, 1)
    )
    rows = rows_of(call, 1)
    width = rows.shape[1]
    if width % step or (prefill and size < step):
        raise call.refuse(f"frames of {size} by steps of {step} do not fit rows of {width}")
    # The kernel's buffer has whole steps; the frame is its oldest part.
    whole = size if prefill else -(-size // step) * step
    joined = _joined(call, rows, whole - step)
    frames = width // step
    made = call.gather(joined, np.arange(frames)[:, None] * step + np.arange(size), 1)
    shape = (*call.importer.shape(call.operand(0))[:-1], frames, size)
    call.define(call.reshape(made, shape), result=two_results(call)[0])
    _flag(call, _begun(call, 0 if prefill else whole // step - 1, frames))


def _begun(call: Call, missing: int, steps: int) -> Tensor:
    """Whether there were ``missing`` steps before this run, which has ``steps``."""
    if not missing:
        return call.value(np.array(True))
    seen = kept(call, "seen", np.zeros((), np.int32))
    keep(call, "seen", call.map(lambda n: minimum(n + steps, missing), seen))
    return call.map(lambda n: n >= missing, seen)


def _stacker(call: Call) -> None:
    """The last frames one behind the other. The first frame is its own left context; every so many
    frames the stack is valid."""
    channels, left, right, step = integers(
        call, num_channels=(1, LONGEST), stacker_left_context=(0, LONGEST),
        stacker_right_context=(0, LONGEST), stacker_step=(0, LONGEST),
    )  # fmt: skip
    depth, rows = left + right + 1, rows_of(call, 1)
    if not 1 <= step <= depth or rows.shape != (1, channels) or depth > MAX_STEPS:
        raise call.refuse(
            f"expected one frame of {channels} channels, and steps of 1 to {depth} frames, got"
            f" {list(rows.shape)} and {step}"
        )
    # How many frames the kernel's buffer has; -1 before the first one.
    held = kept(call, "held", np.full((), -1, np.int32))
    if depth > 1:
        past = kept(call, "past", np.zeros((depth - 1, channels), np.int16))
        past = call.map(lambda n, a, b: select(n < 0, a, b), held, rows, past)
        rows = call.emit(Concat(0), past, rows)
        keep(call, "past", call.part(rows, 0, 1, depth - 1))
    now = call.map(lambda n: select(n < 0, Const(left + 1), n + 1), held)
    keep(call, "held", call.map(lambda n: select(n >= depth, n - step, n), now))
    call.define(call.reshape(rows, (depth * channels,)), result=two_results(call)[0])
    _flag(call, call.map(lambda n: n >= depth, now))


def _overlap_add(call: Call) -> None:
    """Frames added where they overlap; int16 saturates after every addition."""
    frames = rows_of(call, 2)
    count, number, size = frames.shape
    (step,) = integers(call, frame_step=(1, size))
    if number > MAX_STEPS:
        raise call.refuse(f"expected at most {MAX_STEPS} frames in a run, got {number}")
    dtype = frames.dtype
    total = kept(call, "buffer", np.zeros((count, size), dtype))
    zero, parts = call.value(0, dtype), []

    def added(a: Expr, b: Expr) -> Expr:
        if dtype == "float32":
            return a + b
        return saturated(int32(a) + int32(b), -(1 << 15), (1 << 15) - 1, dtype)

    for i in range(number):
        frame = call.reshape(call.part(frames, 1, i, 1), (count, size))
        total = call.map(added, total, frame)
        parts.append(call.part(total, 1, 0, step))
        total = call.emit(Pad("constant", (0, -step, 0, step)), total, zero)
    keep(call, "buffer", total)
    call.define(call.reshape(call.emit(Concat(1), *parts), call.importer.shape(call.result)))


def _circular_buffer(call: Call) -> None:
    """The last images of a stream, one under the other. Its second result says in which run the
    operators behind it shall go on; without it the kernel would end the run there."""
    value, (result, *flags) = call.tensor(0), call.results
    if len(flags) > 1:
        raise call.refuse(f"expected 1 or 2 results, got {len(call.results)}")
    made, given = call.importer.shape(result), value.shape
    cycles = own_options(call).get("cycles_max", 0) if call.operator.options else 0
    if not isinstance(cycles, int) or not (cycles == 1 or (flags and 1 < cycles < LONGEST)):
        raise call.refuse(
            "expected an option 'cycles_max' of 1, or more with a second result,"
            f" got {cycles!r:.40}"
        )
    if len(made) != 4 or given != (1, 1, *made[2:]):
        raise call.refuse(f"expected an image that fits into {list(made)}, got {list(given)}")
    importer, key = call.importer, (call.importer.number, result.index)
    before = importer.variables.read(importer.tensors, key, initial_value(result))
    joined = call.emit(Concat(1), before, value)
    after = call.part(joined, 1, 1, made[1])
    if result.variable:
        importer.assign(result, after)
    else:
        call.define(after, result=result)
        importer.variables.current[key] = after.name
    for flag in flags:
        valid = call.reshape(_every(call, cycles), call.importer.shape(flag))
        call.define(valid, result=flag)


def _every(call: Call, cycles: int) -> Tensor:
    """Whether this run is one of every so many."""
    if cycles == 1:
        return call.value(np.array(True))
    left = kept(call, "cycles", np.full((), cycles, np.int32))
    keep(call, "cycles", call.map(lambda n: select(n <= 1, cycles, n - 1), left))
    return call.map(lambda n: n <= 1, left)


#: Readers by operator and by the first operand's types.
READERS: Rows = {
    "CIRCULAR_BUFFER": {"int8": _circular_buffer},
    "SignalDelay": {"int16": _delay},
    "SignalFramer": {"int16": _framer},
    "SignalOverlapAdd": {"float32 int16": _overlap_add},
    "SignalStacker": {"int16": _stacker},
}
