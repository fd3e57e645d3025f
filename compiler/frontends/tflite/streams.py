"""Readers of TensorFlow Lite Micro's operators that keep a part of a stream from run to run.

A buffer is its last elements: a run appends the new ones and drops as many of the oldest.
"""

from __future__ import annotations

import math
from collections.abc import Callable

import numpy as np

from ...graph.ops.movement import Concat, Gather, Pad, Reshape, Slice
from ...te.expr import Const, Expr, minimum, select
from ...te.tensor import clip
from .file import FlatTensor
from .graph import Call
from .mapping import map_of, step_map
from .own_options import integers, own_options
from .state import initial_value

Reader = Callable[[Call], None]
#: The most elements of an option that is a length.
LONGEST = 1 << 20
#: The most steps of one run, each of which is a copy of its nodes.
MAX_STEPS = 1 << 10


def kept(call: Call, label: str, initial: np.ndarray) -> str:
    """What an operator keeps under a label, ``initial`` before the first run."""
    key = (call.importer.number, f"{call.label}.{label}")
    return call.importer.variables.read(call.importer.tensors, key, initial)


def keep(call: Call, label: str, value: str) -> None:
    """The next value of what an operator keeps."""
    call.importer.variables.current[call.importer.number, f"{call.label}.{label}"] = value


def two_results(call: Call) -> tuple[FlatTensor, FlatTensor]:
    """The results of an operator that has two."""
    if len(call.results) != 2:
        raise call.refuse(f"expected 2 results, got {len(call.results)}")
    return call.results[0], call.results[1]


def _part(call: Call, value: str, axis: int, start: int, count: int) -> str:
    """``count`` elements along an axis."""
    shape = list(call.shape_of(value))
    starts = [start if i == axis else 0 for i in range(len(shape))]
    shape[axis] = count
    return call.step("part", Slice(tuple(starts), (1,) * len(shape), tuple(shape)), value)


def _rows(call: Call, inner: int) -> str:
    """The int16 or float operand as rows of its last ``inner`` dimensions."""
    value = call.value(0, "plain")
    shape = call.shape_of(value)
    if len(shape) < inner:
        raise call.refuse(f"expected at least {inner} dimensions, got {list(shape)}")
    cut = len(shape) - inner
    return call.step("rows", Reshape((math.prod(shape[:cut]), *shape[cut:])), value)


def _joined(call: Call, rows: str, length: int) -> str:
    """Rows behind the last ``length`` elements before them, zeros in the first run, [rows, N]."""
    if not length:
        return rows
    count, size = call.shape_of(rows)
    dtype = call.importer.tensors[rows].dtype
    before = kept(call, "buffer", np.zeros((count, length), dtype))
    joined = call.step("joined", Concat(1), before, rows)
    keep(call, "buffer", _part(call, joined, 1, size, length))
    return joined


def _delay(call: Call) -> None:
    (length,) = integers(call, delay_length=(0, LONGEST))
    rows = _rows(call, 1)
    made = _part(call, _joined(call, rows, length), 1, 0, call.shape_of(rows)[1])
    call.emit(Reshape(call.importer.shape(call.operand(0))), (made,), "plain")


def _flag(call: Call, value: str) -> None:
    """The second result: whether the first is a result of the stream."""
    call.emit(Reshape(()), (value,), "plain", call.results[1])


def _framer(call: Call) -> None:
    """Frames that overlap. Without zeros before the stream a frame is valid when its elements are
    there; until then those that are missing are 0 (the kernel leaves what it finds in memory)."""
    size, step, prefill = integers(
        call, frame_size=(1, LONGEST), frame_step=(1, LONGEST), prefill=(0, 1)
    )
    rows = _rows(call, 1)
    width = call.shape_of(rows)[1]
    if width % step or (prefill and size < step):
        raise call.refuse(f"frames of {size} by steps of {step} do not fit rows of {width}")
    # The kernel's buffer has whole steps; the frame is its oldest part.
    whole = size if prefill else -(-size // step) * step
    joined = _joined(call, rows, whole - step)
    frames = width // step
    places = np.arange(frames)[:, None] * step + np.arange(size)
    index = call.constant_of("places", places)
    made = call.step("frames", Gather(1), joined, index)
    result, _ = two_results(call)
    call.emit(Reshape((*call.importer.shape(call.operand(0))[:-1], frames, size)), (made,),
              "plain", result)  # fmt: skip
    missing = 0 if prefill else whole // step - 1
    _flag(call, _begun(call, missing, frames))


def _begun(call: Call, missing: int, steps: int) -> str:
    """Whether there were ``missing`` steps before this run, which has ``steps``."""
    if not missing:
        return call.constant_of("valid", np.array(True))
    seen = kept(call, "seen", np.zeros((), np.int32))
    after = step_map(call, "seen", lambda n: minimum(n + steps, missing), seen)
    keep(call, "seen", after)
    return step_map(call, "valid", lambda n: n >= missing, seen)


def _stacker(call: Call) -> None:
    """The last frames one behind the other. The first frame is its own left context; every so many
    frames the stack is valid."""
    channels, left, right, step = integers(
        call, num_channels=(1, LONGEST), stacker_left_context=(0, LONGEST),
        stacker_right_context=(0, LONGEST), stacker_step=(0, LONGEST),
    )  # fmt: skip
    depth, rows = left + right + 1, _rows(call, 1)
    if not 1 <= step <= depth or call.shape_of(rows) != (1, channels) or depth > MAX_STEPS:
        raise call.refuse(
            f"expected one frame of {channels} channels, and steps of 1 to {depth} frames, got"
            f" {list(call.shape_of(rows))} and {step}"
        )
    # How many frames the kernel's buffer has; -1 before the first one.
    held = kept(call, "held", np.full((), -1, np.int32))
    if depth > 1:
        past = kept(call, "past", np.zeros((depth - 1, channels), np.int16))
        first = map_of(call, "First", lambda n, a, b: select(n < 0, a, b), held, rows, past)
        joined = call.step("joined", Concat(0), call.step("past", first, held, rows, past), rows)
        keep(call, "past", _part(call, joined, 0, 1, depth - 1))
        rows = joined
    now = step_map(call, "now", lambda n: select(n < 0, Const(left + 1), n + 1), held)
    keep(call, "held", step_map(call, "left", lambda n: select(n >= depth, n - step, n), now))
    call.emit(Reshape((depth * channels,)), (rows,), "plain", two_results(call)[0])
    _flag(call, step_map(call, "valid", lambda n: n >= depth, now))


def _overlap_add(call: Call) -> None:
    """Frames added where they overlap; int16 saturates after every addition."""
    frames = _rows(call, 2)
    count, number, size = call.shape_of(frames)
    (step,) = integers(call, frame_step=(1, size))
    if number > MAX_STEPS:
        raise call.refuse(f"expected at most {MAX_STEPS} frames in a run, got {number}")
    dtype = call.importer.tensors[frames].dtype
    total = kept(call, "buffer", np.zeros((count, size), dtype))
    zero, parts = call.constant_of("zero", np.zeros((), dtype)), []

    def added(a: Expr, b: Expr) -> Expr:
        if dtype == "float32":
            return a + b
        wide = a.astype("int32") + b.astype("int32")
        return clip(wide, -(1 << 15), (1 << 15) - 1).astype(dtype)

    for i in range(number):
        frame = call.step("frame", Reshape((count, size)), _part(call, frames, 1, i, 1))
        total = step_map(call, "total", added, total, frame)
        parts.append(_part(call, total, 1, 0, step))
        total = call.step("rest", Pad("constant", (0, -step, 0, step)), total, zero)
    keep(call, "buffer", total)
    whole = call.step("whole", Concat(1), *parts)
    call.emit(Reshape(call.importer.shape(call.result)), (whole,), "plain")


def _circular_buffer(call: Call) -> None:
    """The last images of a stream, one under the other. Its second result says in which run the
    operators behind it shall go on; without it the kernel would end the run there."""
    value, (result, *flags) = call.value(0, "plain"), call.results
    if len(flags) > 1:
        raise call.refuse(f"expected 1 or 2 results, got {len(call.results)}")
    made, given = call.importer.shape(result), call.shape_of(value)
    cycles = own_options(call).get("cycles_max", 0) if call.operator.options["data"] else 0
    if not isinstance(cycles, int) or not (cycles == 1 or (flags and 1 < cycles < LONGEST)):
        raise call.refuse(
            "expected an option 'cycles_max' of 1, or more with a second result,"
            f" got {cycles!r:.40}"
        )
    if len(made) != 4 or given != (1, 1, *made[2:]):
        raise call.refuse(f"expected an image that fits into {list(made)}, got {list(given)}")
    importer, key = call.importer, (call.importer.number, result.index)
    before = importer.variables.read(importer.tensors, key, initial_value(result))
    joined = call.step("joined", Concat(1), before, value)
    after = Slice((0, 1, 0, 0), (1,) * 4, made)
    if result.variable:
        importer.assign(result, call.step("images", after, joined))
    else:
        call.emit(after, (joined,), "plain", result)
        importer.variables.current[key] = importer.value(result, "plain")
    if flags:
        call.emit(
            Reshape(call.importer.shape(flags[0])), (_every(call, cycles),), "plain", flags[0]
        )


def _every(call: Call, cycles: int) -> str:
    """Whether this run is one of every so many."""
    if cycles == 1:
        return call.constant_of("valid", np.array(True))
    left = kept(call, "cycles", np.full((), cycles, np.int32))
    keep(call, "cycles", step_map(call, "left", lambda n: select(n <= 1, cycles, n - 1), left))
    return step_map(call, "valid", lambda n: n <= 1, left)


#: Readers by operator and by the first operand's type.
TYPED: dict[str, dict[str, Reader]] = {
    "CIRCULAR_BUFFER": {"int8": _circular_buffer},
    "SignalDelay": {"int16": _delay},
    "SignalFramer": {"int16": _framer},
    "SignalOverlapAdd": {"float32": _overlap_add, "int16": _overlap_add},
    "SignalStacker": {"int16": _stacker},
}
