"""If, Loop and Scan: the nodes of their subgraphs are read in their place.

The branch of an If must be known, or both branches are computed and one is chosen element by
element. The steps of a Loop or Scan are read one after the other, so their number must be known.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from typing import Protocol

import onnx

from ....isa.errors import VdlaError
from ...graph.ir import Tensor
from ...graph.ops.movement import Concat, Identity, Reshape
from ...te.expr import select
from .ops.call import Call, ValueNeeded

#: The most steps of a Loop or Scan, each of which is a copy of all its nodes.
MAX_STEPS = 4096


class Reading(Protocol):
    """What reads a model: the importer."""

    @property
    def tensors(self) -> Mapping[str, Tensor]: ...

    def inline(
        self, call: Call, graph: onnx.GraphProto, prefix: str, given: Mapping[str, str]
    ) -> list[str]:
        """Read a subgraph of a node, whose inputs are the tensors that ``given`` names; the names
        of its outputs."""
        ...

    def emit(self, like: Call, build: Callable[[Call], Tensor], name: str) -> Tensor:
        """Add the nodes that ``build`` makes of a node; the result gets a name."""
        ...


def run_if(reading: Reading, call: Call) -> None:
    """Read the branch that is taken, or both."""
    branches = [_graph(call, name) for name in ("then_branch", "else_branch")]
    unknown = ""
    try:
        taken = [0 if call.scalar(0, "condition") else 1]
    except ValueNeeded as needed:
        taken, unknown = [0, 1], needed.name
    found = []
    for i in taken:
        try:
            found.append(reading.inline(call, branches[i], f"{call.name}.{i}", {}))
        except VdlaError as error:
            if unknown:
                raise call.refuse(
                    f"expected branches that both fit, as the condition depends on input"
                    f" {unknown!r} (--value {unknown}=V, in Python values=); got {error}"
                ) from None
            raise
    if any(len(names) != len(call.outputs) for names in found):
        raise call.refuse(f"expected branches of {len(call.outputs)} results")
    for position, output in enumerate(call.outputs):
        if not output:
            continue
        values = [reading.tensors[names[position]] for names in found]
        if len({(value.shape, value.dtype) for value in values}) > 1:
            call.constant(0, "condition, because the branches have different types")
        _choose(reading, call, values, output)


def _choose(reading: Reading, call: Call, values: list[Tensor], output: str) -> None:
    if len(values) == 1:
        reading.emit(call, lambda c: c.emit(Identity(), values[0]), output)
        return

    def both(c: Call) -> Tensor:
        return c.map(select, c.reshape(call.operand(0), ()), *values)

    reading.emit(call, both, output)


def run_loop(reading: Reading, call: Call) -> None:
    """Operands: the most steps, a condition, and the state; results: the state, and what each step
    gives besides, as rows."""
    body = _graph(call, "body")
    most = MAX_STEPS + 1 if call.optional(0) is None else int(call.scalar(0, "number of steps"))
    state = [call.operand(i).name for i in range(2, len(call.operands))]
    condition = call.optional(1)
    goes = True if condition is None else bool(call.scalar(1, "condition"))
    rows: list[list[str]] = [[] for _ in range(len(body.output) - 1 - len(state))]
    step = 0
    inside = condition.name if condition is not None else ""
    while goes and step < most:
        _limit(call, step)
        counter = reading.emit(
            call, lambda c, n=step: c.emit(Identity(), c.value(n, "int64")), f"{call.name}.{step}.n"
        )
        if not inside:
            truth = reading.emit(
                call, lambda c: c.emit(Identity(), c.value(True, "bool")), f"{call.name}.first"
            )
            inside = truth.name
        given = _bound(call, body, (counter.name, inside, *state))
        inside, *made = reading.inline(call, body, f"{call.name}.{step}", given)
        state, scanned = made[: len(state)], made[len(state) :]
        for row, name in zip(rows, scanned, strict=True):
            row.append(name)
        known = call.value_of(reading.tensors[inside], "condition after a step")
        goes, step = bool(known.reshape(-1)[0]), step + 1
    _finish(reading, call, state, rows, [0] * len(rows), body)


def run_scan(reading: Reading, call: Call) -> None:
    """Operands: the state and the scanned tensors; results: the state, and rows of each step."""
    (run_scan_once if call.opset >= 9 else run_scan_of_batch)(reading, call)


def run_scan_of_batch(reading: Reading, call: Call) -> None:
    """Scan of operator set 8: lengths, which must be absent, come first, and everything else has a
    batch in front, of which each element is scanned by itself."""
    if call.optional(0) is not None:
        raise call.refuse("sequence_lens of Scan before opset 9 are not supported")
    operands = [call.operand(i) for i in range(1, len(call.operands))]
    directions = call.attributes.get("directions")
    attributes = call.attributes | ({"scan_input_directions": directions} if directions else {})
    results: list[tuple[str, ...]] = []
    for number in range(operands[0].shape[0] if operands else 0):
        name = f"{call.name}.image{number}"
        parts = [
            _slice_of(reading, call, tensor, 0, number, f"{name}.x{i}")
            for i, tensor in enumerate(operands)
        ]
        results.append(tuple(f"{name}.{output}" if output else "" for output in call.outputs))
        inner = replace(
            call, name=name, operands=tuple(reading.tensors[part] for part in parts),
            outputs=results[-1], attributes=attributes,
        )  # fmt: skip
        run_scan_once(reading, inner)
    for output, names in zip(call.outputs, zip(*results, strict=True), strict=False):
        if output:
            _stack(reading, call, names, 0, output)


def run_scan_once(reading: Reading, call: Call) -> None:
    """A Scan without a batch."""
    body, count = _graph(call, "body"), call.integer("num_scan_inputs", 0)
    first = len(call.operands) - count
    if count < 1 or first < 0:
        raise call.refuse(f"expected 1 to {len(call.operands)} scanned inputs, got {count}")
    state = [call.operand(i).name for i in range(first)]
    scanned = [call.operand(first + i) for i in range(count)]
    results = len(body.output) - first
    axes = [
        call.axis(axis, len(tensor.shape))
        for axis, tensor in zip(_list(call, "scan_input_axes", count), scanned, strict=True)
    ]
    back = _list(call, "scan_input_directions", count)
    steps = {tensor.shape[axis] for tensor, axis in zip(scanned, axes, strict=True)}
    if len(steps) != 1:
        raise call.refuse(f"expected scanned inputs of one length, got {sorted(steps)}")
    rows: list[list[str]] = [[] for _ in range(results)]
    length = steps.pop()
    for step in range(length):
        _limit(call, step)
        parts = []
        for i, (tensor, axis) in enumerate(zip(scanned, axes, strict=True)):
            place = length - 1 - step if back[i] else step
            parts.append(_slice_of(reading, call, tensor, axis, place, f"{call.name}.{step}.x{i}"))
        given = _bound(call, body, (*state, *parts))
        made = reading.inline(call, body, f"{call.name}.{step}", given)
        state = made[:first]
        for row, name in zip(rows, made[first:], strict=True):
            row.append(name)
    turned = _list(call, "scan_output_directions", results)
    rows = [row[::-1] if turn else row for row, turn in zip(rows, turned, strict=True)]
    _finish(reading, call, state, rows, _list(call, "scan_output_axes", results), body)


def _slice_of(
    reading: Reading, call: Call, tensor: Tensor, axis: int, place: int, name: str
) -> str:
    shape = (*tensor.shape[:axis], *tensor.shape[axis + 1 :])

    def part(c: Call) -> Tensor:
        return c.emit(Reshape(shape), c.part(tensor, axis, place, 1))

    return reading.emit(call, part, name).name


def _finish(
    reading: Reading,
    call: Call,
    state: Sequence[str],
    rows: Sequence[list[str]],
    axes: Sequence[int],
    body: onnx.GraphProto,
) -> None:
    """The results of a Loop or Scan, of which some may be absent."""
    for output, name in zip(call.outputs, state, strict=False):
        if output:
            tensor = reading.tensors[name]
            reading.emit(call, lambda c, t=tensor: c.emit(Identity(), t), output)
    for i, output in enumerate(call.outputs[len(state) :]):
        if not output:
            continue
        if not rows[i]:
            value = body.output[i - len(rows)]
            raise call.refuse(f"result {value.name!r} has no rows, because there are no steps")
        _stack(reading, call, rows[i], axes[i], output)


def _stack(reading: Reading, call: Call, names: Sequence[str], axis: int, output: str) -> None:
    """A result of several tensors along a new axis."""
    tensors = [reading.tensors[name] for name in names]
    shape = tensors[0].shape
    axis = call.axis(axis, len(shape) + 1)
    raised = (*shape[:axis], 1, *shape[axis:])

    def stacked(c: Call) -> Tensor:
        return c.emit(Concat(axis), *(c.emit(Reshape(raised), t) for t in tensors))

    reading.emit(call, stacked, output)


def renamed(graph: onnx.GraphProto, names: Mapping[str, str]) -> onnx.GraphProto:
    """A copy of a graph that reads other tensors from around it."""
    copy = onnx.GraphProto()
    copy.CopyFrom(graph)
    own = {value.name for value in (*graph.input, *graph.initializer)}
    own |= {name for node in graph.node for name in node.output}
    outer = {name: new for name, new in names.items() if name not in own}
    for node in copy.node:
        node.CopyFrom(renamed_node(node, outer))
    for value in copy.output:
        value.name = outer.get(value.name, value.name)
    return copy


def renamed_node(node: onnx.NodeProto, names: Mapping[str, str]) -> onnx.NodeProto:
    """A copy of a node that reads and writes tensors by other names."""
    copy = onnx.NodeProto()
    copy.CopyFrom(node)
    for group in (copy.input, copy.output):
        for i, name in enumerate(group):
            group[i] = names.get(name, name)
    for attribute in copy.attribute:
        if attribute.HasField("g"):
            attribute.g.CopyFrom(renamed(attribute.g, names))
    return copy


def _graph(call: Call, name: str) -> onnx.GraphProto:
    found = call.attributes.get(name)
    if not isinstance(found, onnx.GraphProto):
        raise call.refuse(f"expected a graph {name}, got {type(found).__name__}")
    return found


def _bound(call: Call, body: onnx.GraphProto, values: Sequence[str]) -> dict[str, str]:
    """The tensors that a body reads as its inputs."""
    if len(values) != len(body.input):
        raise call.refuse(f"expected a body of {len(values)} inputs, got {len(body.input)}")
    return dict(zip((value.name for value in body.input), values, strict=True))


def _list(call: Call, name: str, count: int) -> list[int]:
    return list(call.integers(name, (0,) * count))


def _limit(call: Call, step: int) -> None:
    if step >= MAX_STEPS:
        raise call.refuse(f"expected at most {MAX_STEPS} steps")


#: Readers of operators with subgraphs.
CONTROL: dict[str, Callable[[Reading, Call], None]] = {
    "If": run_if,
    "Loop": run_loop,
    "Scan": run_scan,
}
