"""A GRU as products, sums and tables for each step, which have integer forms.

The products with the inputs of all steps are one Gemm for both gates and one for the hidden value.
A step reads its rows of them and adds the product with the state. The state itself stays float32:
rounded to int8 after every step, it would not move where a step changes it by less than half of a
level. What a tensor of one step is, those of all steps are, so they share a scale, and the steps
their operators.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import onnx
from onnx import helper

from .draft import Draft, attribute, label

#: Functions of gates and of the hidden value that need no numbers of their own.
ACTIVATIONS = {
    name.lower(): name
    for name in ("HardSigmoid", "Relu", "Sigmoid", "Softplus", "Softsign", "Tanh")
}
#: Every step is two dozen nodes of the model: 256 steps take six minutes to quantise.
MOST_STEPS = 64
#: Channels of the state from which integers are faster on the CPU: two layers of 128 take 0.71
#: times the time of floats over 50 steps. With 64 channels, and 256 steps, they were slower.
LEAST_HIDDEN = 128
_REVERSED = {"forward": (False,), "reverse": (True,), "bidirectional": (False, True)}
#: Operands of a GRU.
_X, _W, _R, _B, _LENGTHS, _STATE = range(6)


def why_not_unrolled(draft: Draft, node: onnx.NodeProto) -> str:
    """Why a GRU stays one node; "" where it need not."""
    names = [*node.input, *[""] * (_STATE + 1 - len(node.input))]
    if any(name and name not in draft.constants for name in names[_W : _B + 1]):
        return "its weights are computed, not constants"
    if names[_LENGTHS]:
        return "its sequences differ in length"
    if attribute(node, "clip", 0.0) or attribute(node, "activation_alpha", ()):
        return "supported are no clip and no alpha"
    kinds = {kind.decode().lower() for kind in attribute(node, "activations", ())}
    if not kinds <= {*ACTIVATIONS}:
        return f"supported activations are {', '.join(ACTIVATIONS.values())}"
    hidden = draft.constants[names[_R]].shape[-1]
    if hidden < LEAST_HIDDEN:
        return f"its state has {hidden} channels, integers are faster from {LEAST_HIDDEN} on"
    shape = draft.written_shapes().get(names[_X], [-1] * 3)
    steps = shape[attribute(node, "layout", 0)]
    if not 1 <= steps <= MOST_STEPS:
        return f"it has {steps if steps > 0 else 'any number of'} steps, supported are {MOST_STEPS}"
    return ""


def unroll_gru(draft: Draft) -> None:
    """Replace every GRU that can be unrolled."""
    for node in list(draft.nodes):
        if node.op_type != "GRU" or why_not_unrolled(draft, node):
            continue
        made = _Layer(draft, node)
        made.build()
        place = draft.place(node)
        draft.nodes[place : place + 1] = made.nodes


@dataclass
class _Layer:
    """A GRU whose nodes are made."""

    draft: Draft
    node: onnx.NodeProto
    nodes: list[onnx.NodeProto] = field(default_factory=list)

    def build(self) -> None:
        """All directions, and the results."""
        node, shapes = self.node, self.draft.shapes
        batch_first = bool(attribute(node, "layout", 0))
        x = node.input[_X]
        if batch_first:
            x = self.transpose(x, (1, 0, 2))
        steps, batch, width = shapes[x]
        rows = self.reshape(x, (-1, width), (steps * batch, width))
        reversals = _REVERSED[attribute(node, "direction", b"forward").decode()]
        histories = [
            _Direction(self, index, reverse, batch_first).states(rows, steps, batch)
            for index, reverse in enumerate(reversals)
        ]
        if node.output[0]:
            order = (2, 0, 1, 3) if batch_first else (0, 1, 2, 3)
            every = [self.stack(list(at)) for at in zip(*histories, strict=True)]
            self.transpose(self.stack(every), order, node.output[0])
        if len(node.output) > 1 and node.output[1]:
            ends = [0 if reverse else -1 for reverse in reversals]
            last = [history[end] for history, end in zip(histories, ends, strict=True)]
            self.transpose(
                self.stack(last), (1, 0, 2) if batch_first else (0, 1, 2), node.output[1]
            )

    def stack(self, names: list[str]) -> str:
        """Tensors of one shape along a new first axis."""
        shape = self.draft.shapes[names[0]]
        axes = self.constant("first", np.array([0]))
        parts = [self.emit("Unsqueeze", [name, axes], (1, *shape)) for name in names]
        return self.emit("Concat", parts, (len(parts), *shape), axis=0)

    def transpose(self, x: str, order: tuple[int, ...], name: str = "") -> str:
        """Dimension i of the result is dimension ``order[i]``."""
        shape = tuple(self.draft.shapes[x][i] for i in order)
        return self.emit("Transpose", [x], shape, name, perm=order)

    def reshape(self, x: str, sizes: tuple[int, ...], shape: tuple[int, ...]) -> str:
        """``sizes`` may leave one dimension open, which ``shape`` says for one batch."""
        return self.emit("Reshape", [x, self.constant("shape", np.array(sizes))], shape)

    def constant(self, what: str, data: np.ndarray) -> str:
        """A constant of this layer."""
        return self.draft.constant(f"{label(self.node)}.{what}", data)

    def emit(
        self,
        kind: str,
        inputs: Sequence[str],
        shape: tuple[int, ...],
        name: str = "",
        **attributes: Any,
    ) -> str:
        """Add a node; the name of its result, which is new unless ``name`` says it."""
        return self.emit_several(kind, inputs, [shape], name, **attributes)[0]

    def emit_several(
        self,
        kind: str,
        inputs: Sequence[str],
        shapes: Sequence[tuple[int, ...]],
        name: str = "",
        **attributes: Any,
    ) -> list[str]:
        """The same for a node with several results."""
        base = f"{label(self.node)}.{kind} {len(self.nodes)}"
        names = [name] if name else [f"{base}.{i}" for i in range(len(shapes))]
        self.nodes.append(helper.make_node(kind, inputs, names, base, **attributes))
        self.draft.shapes |= zip(names, shapes, strict=True)
        self.draft.dtypes |= dict.fromkeys(names, "float32")
        return names


class _Direction:
    """One direction of a layer: its weights, those of the gates (update, reset) and those of the
    hidden value apart, as their results differ in size."""

    def __init__(self, layer: _Layer, index: int, reverse: bool, batch_first: bool):
        node, constants = layer.node, layer.draft.constants
        self.layer, self.reverse = layer, reverse
        self.resets_product = bool(attribute(node, "linear_before_reset", 0))
        weight, state = (constants[node.input[i]][index] for i in (_W, _R))
        self.hidden = hidden = state.shape[1]
        names = [*node.input, "", "", ""]
        both = constants[names[_B]][index] if names[_B] else np.zeros(6 * hidden, np.float32)
        bias, later = both[: 3 * hidden].copy(), both[3 * hidden :].copy()
        added = slice(0, (2 if self.resets_product else 3) * hidden)
        bias[added] += later[added]
        self.x_weights = self.parts("w", weight)
        self.x_biases = self.parts("b", bias)
        self.state_weights = self.parts("r", state)
        self.later = layer.constant("rb", later[2 * hidden :])
        self.first = self.initial(names[_STATE], index, batch_first)
        kinds = [kind.decode().lower() for kind in attribute(node, "activations", ())]
        kinds = kinds[2 * index : 2 * index + 2] or ["sigmoid", "tanh"]
        self.gate_kind, self.hidden_kind = (ACTIVATIONS[kind] for kind in kinds)
        #: Tensors of all steps, by what they are of a step.
        self.alike: dict[str, list[str]] = {}

    def parts(self, what: str, data: np.ndarray) -> tuple[str, str]:
        """The rows of the gates, and those of the hidden value."""
        cut = 2 * self.hidden
        return self.layer.constant(what, data[:cut]), self.layer.constant(what, data[cut:])

    def initial(self, given: str, index: int, batch_first: bool) -> str:
        """The state before the first step; "" for zeros."""
        made, known = self.layer, self.layer.draft.constants.get(given)
        if not given or (known is not None and not known.any()):
            return ""
        state = made.transpose(given, (1, 0, 2)) if batch_first else given
        return self.row(state, index)

    def row(self, values: str, index: int) -> str:
        """One of the parts along the first axis, without that axis."""
        made, shape = self.layer, self.layer.draft.shapes[values]
        bounds = [made.constant(w, np.array([v])) for w, v in (("from", index), ("to", index + 1))]
        axes = made.constant("first", np.array([0]))
        part = made.emit("Slice", [values, *bounds, axes], (1, *shape[1:]))
        return made.emit("Squeeze", [part, axes], shape[1:])

    def states(self, rows: str, steps: int, batch: int) -> list[str]:
        """The state after every step, in order of time; ``rows`` are the inputs of all steps."""
        products = []
        for weight, bias in zip(self.x_weights, self.x_biases, strict=True):
            width = self.layer.draft.constants[weight].shape[0]
            flat = self.dense(rows, weight, bias, (steps * batch, width))
            shape = (steps, batch, width)
            products.append(self.layer.reshape(flat, (steps, -1, width), shape))
        state, history = self.first, []
        for time in range(steps - 1, -1, -1) if self.reverse else range(steps):
            gates, mine = (self.row(product, time) for product in products)
            state = self.step(gates, mine, state)
            history.append(state)
        self.layer.draft.alike += self.alike.values()
        return history[::-1] if self.reverse else history

    def step(self, gates: str, mine: str, state: str) -> str:
        """The state after a step, from the products with its inputs; "" is a state of zeros."""
        shape = self.layer.draft.shapes[mine]
        double = (shape[0], 2 * self.hidden)
        if state:
            product = self.dense(state, self.state_weights[0], "", double)
            gates = self.emit("sum", "Add", [gates, product], double)
        opened = self.emit("gates", self.gate_kind, [gates], double)
        halves = self.layer.constant("halves", np.array([self.hidden] * 2))
        update, reset = self.layer.emit_several("Split", [opened, halves], [shape] * 2, axis=1)
        added = self.reset(reset, state, shape)
        if added:
            mine = self.emit("whole", "Add", [mine, added], shape)
        new = self.emit("new", self.hidden_kind, [mine], shape)
        # new - update * (new - state), in float32.
        far = self.layer.emit("Sub", [new, state], shape) if state else new
        kept = self.layer.emit("Mul", [update, far], shape)
        return self.emit("state", "Sub", [new, kept], shape)

    def reset(self, reset: str, state: str, shape: tuple[int, ...]) -> str:
        """What the state adds to the hidden value, through the reset gate; "" for nothing."""
        weight = self.state_weights[1]
        if not self.resets_product:
            if not state:
                return ""
            kept = self.emit("reset", "Mul", [reset, state], shape)
            return self.dense(kept, weight, "", shape)
        product = self.dense(state, weight, self.later, shape) if state else self.later
        return self.emit("reset", "Mul", [reset, product], shape)

    def dense(self, x: str, weight: str, bias: str, shape: tuple[int, ...]) -> str:
        """A product with all rows; that with one weight is the same in all steps."""
        inputs = [x, weight, bias] if bias else [x, weight]
        return self.emit(weight, "Gemm", inputs, shape, transB=1)

    def emit(
        self, what: str, kind: str, inputs: list[str], shape: tuple[int, ...], **attributes: Any
    ) -> str:
        """Add a node whose result is ``what`` of a step."""
        name = self.layer.emit(kind, inputs, shape, **attributes)
        self.alike.setdefault(what, []).append(name)
        return name
