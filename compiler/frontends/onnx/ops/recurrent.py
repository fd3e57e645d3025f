"""LSTM, GRU and RNN, unrolled in time.

The products with the inputs of all time steps are one matrix product; a step adds the product with
the state. Steps share their operators, so that each is compiled once. ``DynamicQuantizeLSTM`` of
the domain ``com.microsoft`` is an LSTM whose weights are int8: the inputs of all steps, and the
state before each step, are quantised by their own ranges.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Any

from ....graph.ir import Tensor
from ....graph.ops.elementwise import Map
from ....graph.ops.linear import MatMul
from ....graph.ops.movement import Concat, Reshape
from ....te.expr import Expr, Var, maximum, minimum, select
from .call import Call, Outputs, Reader
from .elementwise import (
    elu,
    function,
    hard_sigmoid,
    leaky_relu,
    logistic,
    number,
    softplus,
    softsign,
    thresholded_relu,
)
from .quantized import dynamic_quantize, subtract_zero_point

Activation = Callable[[Expr], Expr]


#: Rules of (x, alpha, beta) and the defaults of those two; None where a function has none.
_ACTIVATIONS: dict[str, tuple[Callable[..., Expr], float | None, float | None]] = {
    "affine": (lambda x, a, b: number(a, x) * x + number(b, x), 1.0, 0.0),
    "elu": (elu, 1.0, None),
    "hardsigmoid": (hard_sigmoid, 0.2, 0.5),
    "leakyrelu": (leaky_relu, 0.01, None),
    "relu": (lambda x: maximum(x, number(0, x)), None, None),
    "scaledtanh": (lambda x, a, b: number(a, x) * function("tanh", number(b, x) * x), 1.0, 1.0),
    "sigmoid": (logistic, None, None),
    "softplus": (softplus, None, None),
    "softsign": (softsign, None, None),
    "tanh": (lambda x: function("tanh", x), None, None),
    "thresholdedrelu": (thresholded_relu, 1.0, None),
}


def _activation(call: Call, name: str, alphas: list[float], betas: list[float]) -> Activation:
    """An activation by its ONNX name. One that has an alpha or a beta takes the next of those that
    the node gives, or its default."""
    if name.lower() not in _ACTIVATIONS:
        raise call.refuse(f"activation {name!r} is not supported")
    rule, *defaults = _ACTIVATIONS[name.lower()]
    values = [
        given.pop(0) if given else default
        for given, default in zip((alphas, betas), defaults, strict=True)
        if default is not None
    ]
    return lambda x: rule(x, *values)


@dataclass(frozen=True)
class _Weight:
    """A matrix [K, N] of floats; or of int32, integers less their zero point, with their scale, one
    or [N]."""

    data: Tensor
    scale: Tensor | None = None

    def product(self, call: Call, x: Tensor) -> Tensor:
        """``x`` [M, K] times the matrix, in floats."""
        if self.scale is None:
            return call.emit(MatMul(), x, self.data)
        stored, scale, zero = dynamic_quantize(call, x)
        sums = call.emit(MatMul(), subtract_zero_point(call, stored, zero), self.data)
        return call.map(lambda v, a, b: v.astype(a.dtype) * (a * b), sums, scale, self.scale)


@dataclass(frozen=True)
class _Layer:
    """One direction: activations, and weights with the direction's axis removed.

    ``inputs`` [T, B, G*H] is the product with all inputs, bias of the inputs included; ``state``
    [H, G*H] multiplies the state; ``bias`` [G*H] is the state's, None without; ``valid`` [T, B, 1]
    is false behind a sequence's end, None where all are equally long.
    """

    call: Call
    functions: tuple[Activation, ...]
    inputs: Tensor
    state: _Weight
    bias: Tensor | None
    valid: Tensor | None
    reverse: bool

    @property
    def steps(self) -> int:
        return self.inputs.shape[0]

    @property
    def hidden(self) -> int:
        return self.state.data.shape[0]

    def at(self, values: Tensor, step: int) -> Tensor:
        """One time step, without the axis of time."""
        part = self.call.part(values, 0, step, 1)
        return self.call.emit(Reshape(values.shape[1:]), part)

    def gate(self, values: Tensor, index: int) -> Tensor:
        """The part of one gate."""
        return self.call.part(values, len(values.shape) - 1, index * self.hidden, self.hidden)

    def clipped(self, x: Expr) -> Expr:
        """Clip the operand of an activation; ``clip`` 0 means no bounds."""
        limit = self.call.number("clip", 0.0)
        return minimum(maximum(x, number(-limit, x)), number(limit, x)) if limit > 0 else x

    def activate(self, index: int, x: Expr) -> Expr:
        return self.functions[index](self.clipped(x))

    def run(
        self, step: Callable[[Tensor, list[Tensor]], list[Tensor]], state: list[Tensor]
    ) -> tuple[list[Tensor], list[Tensor]]:
        """All steps; the first output of each in order of time, and the last state."""
        call = self.call
        keep = _operation("Keep", lambda v, new, old: select(v, new, old), "bool", *self._pair())
        blank = _operation(
            "Blank", lambda v, h: select(v, h, number(0, h)), "bool", self._pair()[0]
        )
        history: list[Tensor] = []
        times = range(self.steps - 1, -1, -1) if self.reverse else range(self.steps)
        for time in times:
            new = step(self.at(self.inputs, time), state)
            shown = new[0]
            if self.valid is not None:
                valid = self.at(self.valid, time)
                new = [call.emit(keep, valid, n, o) for n, o in zip(new, state, strict=True)]
                shown = call.emit(blank, valid, new[0])
            state = new
            history.append(shown)
        return (history[::-1] if self.reverse else history), state

    def _pair(self) -> tuple[str, str]:
        return self.inputs.dtype, self.inputs.dtype


def _operation(label: str, rule: Callable[..., Expr], *dtypes: str) -> Map:
    """An element-wise operator that several nodes share."""
    args = tuple(Var(f"x{i}", dtype) for i, dtype in enumerate(dtypes))
    return Map(label, args, rule(*args))


def _many(label: str, rule: Callable[..., Expr], count: int, dtype: str) -> Map:
    return _operation(label, rule, *[dtype] * count)


# ---- the three cells ----


def _lstm_step(layer: _Layer, peepholes: list[Tensor]) -> Callable:
    """Gates in ONNX's order: input, output, forget, cell."""
    call, act, dtype = layer.call, layer.activate, layer.inputs.dtype
    peep = [*peepholes] or [call.value(0, dtype)] * 3
    coupled = call.integer("input_forget", 0)

    def new_cell(i: Any, f: Any, c: Any, old: Any, p_i: Any, p_f: Any) -> Expr:
        opened = act(0, i + p_i * old)
        kept = 1 - opened if coupled else act(0, f + p_f * old)
        return kept * old + opened * act(1, c)

    def new_state(o: Any, cell: Any, p_o: Any) -> Expr:
        return act(0, o + p_o * cell) * layer.functions[2](cell)

    total = _many("Gates", lambda x, h: x + h, 2, dtype)
    cell_map = _many("Cell", new_cell, 6, dtype)
    state_map = _many("State", new_state, 3, dtype)

    def step(x: Tensor, state: list[Tensor]) -> list[Tensor]:
        h, old = state
        gates = call.emit(total, x, layer.state.product(call, h))
        i, o, f, c = (layer.gate(gates, g) for g in range(4))
        cell = call.emit(cell_map, i, f, c, old, peep[0], peep[2])
        return [call.emit(state_map, o, cell, peep[1]), cell]

    return step


def _gru_step(layer: _Layer) -> Callable:
    """Gates in ONNX's order: update, reset, hidden."""
    call, act, dtype = layer.call, layer.activate, layer.inputs.dtype
    width = layer.hidden
    bias = layer.bias or call.value([0.0] * (3 * width), dtype)
    linear = call.integer("linear_before_reset", 0)
    gate_map = _many("Gate", lambda x, h, b: act(0, x + h + b), 3, dtype)
    mix = _many("State", lambda z, new, h: (1 - z) * new + z * h, 3, dtype)
    linear_map = _many("Hidden", lambda x, r, h, b: act(1, x + r * (h + b)), 4, dtype)
    plain_map = _many("Hidden", lambda x, h, b: act(1, x + h + b), 3, dtype)
    product = _many("Reset", lambda r, h: r * h, 2, dtype)
    biases = [layer.gate(bias, g) for g in range(3)]
    hidden_weights = None if linear else layer.gate(layer.state.data, 2)

    def step(x: Tensor, state: list[Tensor]) -> list[Tensor]:
        (h,) = state
        recurrent = layer.state.product(call, h)
        z, r = (
            call.emit(gate_map, layer.gate(x, g), layer.gate(recurrent, g), biases[g])
            for g in range(2)
        )
        mine = layer.gate(x, 2)
        if hidden_weights is None:
            new = call.emit(linear_map, mine, r, layer.gate(recurrent, 2), biases[2])
        else:
            reset = call.emit(MatMul(), call.emit(product, r, h), hidden_weights)
            new = call.emit(plain_map, mine, reset, biases[2])
        return [call.emit(mix, z, new, h)]

    return step


def _rnn_step(layer: _Layer) -> Callable:
    call, dtype = layer.call, layer.inputs.dtype
    bias = layer.bias or call.value([0.0] * layer.hidden, dtype)
    new = _many("State", lambda x, h, b: layer.activate(0, x + h + b), 3, dtype)

    def step(x: Tensor, state: list[Tensor]) -> list[Tensor]:
        return [call.emit(new, x, layer.state.product(call, state[0]), bias)]

    return step


# ---- around the cells ----

#: Every step is nodes of the graph: more would compile for minutes.
MAX_STEPS = 1000
_DEFAULTS = {"LSTM": ("Sigmoid", "Tanh", "Tanh"), "GRU": ("Sigmoid", "Tanh"), "RNN": ("Tanh",)}
#: Where the scale of weights is among the operands of a quantised LSTM.
_SCALES = 8
_DIRECTIONS = {"forward": [False], "reverse": [True], "bidirectional": [False, True]}


def _functions(call: Call, directions: int) -> list[tuple[Activation, ...]]:
    """The activations of every direction."""
    defaults = _DEFAULTS[call.kind]
    names = [
        n.decode() if isinstance(n, bytes) else n for n in call.attributes.get("activations", [])
    ] or [*defaults] * directions
    if len(names) != len(defaults) * directions:
        raise call.refuse(f"expected {len(defaults) * directions} activations, got {names}")
    alphas, betas = ([*call.attributes.get(f"activation_{k}", [])] for k in ("alpha", "beta"))
    made = [_activation(call, name, alphas, betas) for name in names]
    size = len(defaults)
    return [tuple(made[d * size : (d + 1) * size]) for d in range(directions)]


def _recurrent(call: Call) -> Outputs:
    batch_first = bool(call.integer("layout", 0))
    x, weight, recurrent = (call.operand(i) for i in range(3))
    if len(x.shape) != 3 or len(weight.shape) != 3 or len(recurrent.shape) != 3:
        raise call.refuse("expected X, W and R of rank 3")
    direction = call.text("direction", "forward")
    if direction not in _DIRECTIONS or len(_DIRECTIONS[direction]) != weight.shape[0]:
        raise call.refuse(f"direction {direction!r} does not fit weights {weight.type_text}")
    x = call.transpose(x, (1, 0, 2)) if batch_first else x
    if not 1 <= x.shape[0] <= MAX_STEPS:
        raise call.refuse(f"is unrolled in time: expected 1..{MAX_STEPS} steps, got {x.shape[0]}")
    reverses = _DIRECTIONS[direction]
    functions = _functions(call, len(reverses))
    histories, finals = [], []
    for index, reverse in enumerate(reverses):
        layer = _layer(call, index, x, functions[index], reverse)
        state = [
            _initial(call, i, index, layer, batch_first)
            for i in ((5, 6) if call.kind == "LSTM" else (5,))
        ]
        match call.kind:
            case "LSTM":
                step = _lstm_step(layer, _peepholes(call, index, layer))
            case "GRU":
                step = _gru_step(layer)
            case _:
                step = _rnn_step(layer)
        history, final = layer.run(step, state)
        histories.append(history)
        finals.append(final)
    return _results(call, histories, finals, batch_first)


def _of_direction(call: Call, tensor: Tensor, index: int) -> Tensor:
    return call.reshape(call.part(tensor, 0, index, 1), tensor.shape[1:])


def _layer(
    call: Call, index: int, x: Tensor, functions: tuple[Activation, ...], reverse: bool
) -> _Layer:
    weight, recurrent = (_weight(call, which, index) for which in (0, 1))
    steps, batch, width = x.shape
    inputs = weight.product(call, call.reshape(x, (steps * batch, width)))
    given, bias = call.optional(3), None
    if given is not None:
        both = _of_direction(call, given, index)
        half = both.shape[0] // 2
        bias = call.part(both, 0, half, half)
        inputs = call.map(lambda v, b: v + b, inputs, call.part(both, 0, 0, half), label="Bias")
        if call.kind == "LSTM":
            inputs, bias = call.map(lambda v, b: v + b, inputs, bias, label="Bias"), None
    inputs = call.reshape(inputs, (steps, batch, inputs.shape[1]))
    valid = None
    lengths = call.optional(4)
    if lengths is not None:
        times = call.value([[[t]] for t in range(steps)], lengths.dtype)
        column = call.reshape(lengths, (batch, 1))
        valid = call.map(lambda t, n: t < n, times, column, label="Valid")
    return _Layer(call, functions, inputs, recurrent, bias, valid, reverse)


def _weight(call: Call, which: int, index: int) -> _Weight:
    """A direction's weights of the inputs (``which`` 0) or of the state (1). Integers lie as the
    product needs them, and their scale and zero point are operands behind all others."""
    mine = _of_direction(call, call.operand(1 + which), index)
    if len(call.operands) <= _SCALES:
        return _Weight(call.transpose(mine, (1, 0)))
    first = _SCALES + 2 * which
    scale, zero = (_of_direction(call, call.operand(i), index) for i in (first, first + 1))
    return _Weight(subtract_zero_point(call, mine, zero, last=True), scale)


def _initial(call: Call, operand: int, index: int, layer: _Layer, batch_first: bool) -> Tensor:
    """A direction's first state [B, H]: given, or zero."""
    given = call.optional(operand)
    batch = layer.inputs.shape[1]
    if given is None:
        return call.value([[0.0] * layer.hidden] * batch, layer.inputs.dtype)
    given = call.transpose(given, (1, 0, 2)) if batch_first else given
    return _of_direction(call, given, index)


def _peepholes(call: Call, index: int, layer: _Layer) -> list[Tensor]:
    """Weights of the cell in the input, output and forget gates."""
    given = call.optional(7)
    if given is None:
        return []
    mine = _of_direction(call, given, index)
    return [call.part(mine, 0, g * layer.hidden, layer.hidden) for g in range(3)]


def _stack(call: Call, tensors: list[Tensor], axis: int) -> Tensor:
    """Tensors of one shape along a new axis."""
    shape = tensors[0].shape
    parts = [call.reshape(t, (*shape[:axis], 1, *shape[axis:])) for t in tensors]
    return call.emit(Concat(axis), *parts) if len(parts) > 1 else parts[0]


def _results(
    call: Call, histories: list[list[Tensor]], finals: list[list[Tensor]], batch_first: bool
) -> tuple[Tensor | None, ...]:
    """Y [T, D, B, H], or [B, T, D, H]; the last states [D, B, H], or [B, D, H]."""
    outputs: list[Tensor | None] = [None]
    if call.outputs[0]:
        y = _stack(call, [_stack(call, history, 0) for history in histories], 1)
        outputs[0] = call.transpose(y, (2, 0, 1, 3)) if batch_first else y
    for states in zip(*finals, strict=True):
        last = _stack(call, list(states), 0)
        outputs.append(call.transpose(last, (1, 0, 2)) if batch_first else last)
    return tuple(outputs)


def dynamic_quantize_lstm(call: Call) -> Outputs:
    """LSTM with weights of int8."""
    if call.optional(4) is not None:
        raise call.refuse("sequence_lens is not supported: states behind an end have no definition")
    return _recurrent(replace(call, kind="LSTM"))


READERS: dict[str, Reader] = {"GRU": _recurrent, "LSTM": _recurrent, "RNN": _recurrent}
