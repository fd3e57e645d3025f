"""Readers of recurrent layers of float32: RNN and LSTM, in all forms and in both directions.

The time steps of a sequence are read one after the other; the products with all inputs are one
matrix product. Weights may be int8: then the rows of every product are quantised while they run
(``hybrid.py``).
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

import numpy as np
import tflite

from ...graph.ir import Tensor
from ...graph.ops.linear import MatMul
from ...graph.ops.movement import Concat
from ...te.expr import Expr, maximum, minimum
from .floats import function
from .geometry import ACTIVATIONS
from .graph import Call
from .hybrid import products, stored_weight
from .memory import keep, matrix, state_of

Reader = Callable[[Call], None]
_Codes = tflite.ActivationFunctionType
#: What the kernels add to a variance before its root.
_LEAST_VARIANCE = 1e-8


def sigmoid(x: Expr) -> Expr:
    return 1.0 / (function("exp", 0.0 - x) + 1.0)


def _activated(call: Call, x: Expr) -> Expr:
    """The layer's activation."""
    code = call.option("FusedActivationFunction")
    if code == _Codes.TANH:
        return function("tanh", x)
    if code not in ACTIVATIONS:
        raise call.refuse(f"expected a known activation, got number {code}")
    low, high = ACTIVATIONS[code]
    x = x if low == -np.inf else maximum(x, low)
    return x if high == np.inf else minimum(x, high)


def _clipped(x: Expr, bound: float) -> Expr:
    return minimum(maximum(x, -bound), bound) if bound > 0 else x


@dataclass(frozen=True)
class _Sequence:
    """An input as rows [batch * steps, width], in the order of the file."""

    call: Call
    position: int
    backward: bool = False

    @property
    def time_axis(self) -> int:
        return 0 if self.call.operator.options.get("TimeMajor") else 1

    @property
    def shape(self) -> tuple[int, int, int]:
        """Batch, time steps and elements of an input; a matrix is one step."""
        shape = self.call.importer.shape(self.call.operand(self.position))
        if len(shape) == 2:
            return shape[0], 1, shape[1]
        if len(shape) != 3:
            raise self.call.refuse(f"expected an input of 2 or 3 dimensions, got {list(shape)}")
        batch, steps = shape[:2][::-1] if self.time_axis == 0 else shape[:2]
        return batch, steps, shape[2]

    def rows(self) -> Tensor:
        batch, steps, width = self.shape
        value = self.call.tensor(self.position)
        return self.call.reshape(value, (batch * steps, width))

    def steps(self) -> Sequence[int]:
        """Time steps in the order in which they are computed."""
        count = self.shape[1]
        return range(count)[::-1] if self.backward else range(count)

    def at(self, rows: Tensor, step: int) -> Tensor:
        """The rows of one time step, [batch, columns]."""
        batch, steps, _ = self.shape
        columns = rows.shape[1]
        order = (steps, batch) if self.time_axis == 0 else (batch, steps)
        whole = self.call.reshape(rows, (*order, columns))
        one = self.call.part(whole, self.time_axis, step, 1)
        return self.call.reshape(one, (batch, columns))

    def joined(self, history: dict[int, Tensor]) -> Tensor:
        """The results of all steps, [batch, columns] each, as the result's sequence."""
        batch, steps, _ = self.shape
        columns = history[0].shape[1]
        if len(self.call.importer.shape(self.call.operand(self.position))) == 2:
            return history[0]
        one = (1, batch, columns) if self.time_axis == 0 else (batch, 1, columns)
        parts = [self.call.reshape(history[step], one) for step in range(steps)]
        return self.call.emit(Concat(self.time_axis), *parts)


def _weights(call: Call, positions: Sequence[int], columns: int, label: str) -> tuple[Tensor, ...]:
    """Weights of gates side by side, [columns, gates * units]; those of int8 with their scales."""
    found = [matrix(call, position, ("float32", "int8"), columns) for position in positions]
    if any(data.shape != found[0].shape or data.dtype != found[0].dtype for data in found):
        raise call.refuse("expected weights of one type and shape in all gates")
    joined = np.ascontiguousarray(np.concatenate(found).T)
    if joined.dtype == np.float32:
        return (call.value(joined),)
    scales = [np.broadcast_to(call.operand(p).scale, len(found[0])) for p in positions]
    return stored_weight(call, joined, np.concatenate(scales).reshape(1, -1), label)


def _product(call: Call, rows: Tensor, weights: tuple[Tensor, ...]) -> Tensor:
    """Rows times :func:`_weights`."""
    if len(weights) == 1:
        return call.emit(MatMul(), rows, *weights)
    return products(call, rows, (weights[0], weights[1]))


def _sum(call: Call, a: Tensor, b: Tensor) -> Tensor:
    return call.map(lambda x, y: x + y, a, b)


def _vector(call: Call, position: int, units: int, label: str) -> Tensor:
    """A constant of one number a unit; int8 becomes float32."""
    tensor, data = call.operand(position), call.constant(position, label).reshape(-1)
    if data.dtype == np.int8 and tensor.scale.size == 1:
        data = data.astype(np.float32) * tensor.scale[0]
    if data.dtype != np.float32 or data.shape != (units,):
        raise call.refuse(f"expected float32[{units}] as {label}, got {tensor}")
    return call.shared(f"{label}{position}", data)


# ---- RNN -----------------------------------------------------------------------------------------


def _rnn_steps(
    call: Call, given: _Sequence, operands: Sequence[int], more: tuple[int, int] | None = None
) -> Tensor:
    """``operands``: weights of the input and of the state, bias and state; ``more``: an auxiliary
    input and its weights."""
    batch, _, width = given.shape
    weights, recurrent, bias, memory = operands
    units = call.operand(weights).shape[0]
    total = _product(call, given.rows(), _weights(call, [weights], width, f"weights{weights}"))
    if more is not None:
        other = _Sequence(call, more[0])
        extra = _weights(call, [more[1]], other.shape[2], f"weights{more[1]}")
        total = _sum(call, total, _product(call, other.rows(), extra))
    total = _sum(call, total, _vector(call, bias, units, "bias"))
    stored = _weights(call, [recurrent], units, f"recurrent{recurrent}")
    hidden, history = state_of(call, memory, (batch, units), "float32"), {}
    for step in given.steps():
        made = _product(call, hidden, stored)
        hidden = call.map(lambda a, b: _activated(call, a + b), given.at(total, step), made)
        history[step] = hidden
    keep(call, memory, hidden)
    return given.joined(history)


def _rnn(call: Call) -> None:
    _finish(call, [_rnn_steps(call, _Sequence(call, 0), (1, 2, 3, 4))])


def _finish(call: Call, values: Sequence[Tensor]) -> None:
    """One result a value, or one with all of them side by side."""
    if len(values) > 1 and call.option("MergeOutputs"):
        axis = len(values[0].shape) - 1
        values = [call.emit(Concat(axis), *values)]
    if len(values) != len(call.results):
        raise call.refuse(f"expected {len(values)} results, got {len(call.results)}")
    for value, result in zip(values, call.results, strict=True):
        call.define(value, result=result)


def _auxiliary(call: Call, position: int, weights: int) -> tuple[int, bool]:
    """Which operand the backward direction reads, and whether both add an auxiliary input: one
    without weights is what the backward direction reads."""
    present = call.optional(position) is not None
    weighted = present and call.optional(weights) is not None
    return (position if present and not weighted else 0), weighted


def _rnn_both(call: Call) -> None:
    if call.operand(1).dtype != "float32":
        raise call.refuse(f"expected weights of float32, got {call.operand(1).dtype}")
    back, weighted = _auxiliary(call, 9, 10)
    forward = _rnn_steps(call, _Sequence(call, 0), (1, 2, 3, 4), (9, 10) if weighted else None)
    backward = _rnn_steps(
        call, _Sequence(call, back, True), (5, 6, 7, 8), (9, 11) if weighted else None
    )
    _finish(call, [forward, backward])


# ---- LSTM ----------------------------------------------------------------------------------------


@dataclass(frozen=True)
class _Places:
    """Positions of an LSTM's operands; of gates in the order input, forget, cell, output. A
    peephole, of all gates but the cell's, is a weight of the cell's state."""

    inputs: tuple[int, ...] = (1, 2, 3, 4)
    hidden: tuple[int, ...] = (5, 6, 7, 8)
    peepholes: tuple[int, ...] = (9, 10, 11)
    biases: tuple[int, ...] = (12, 13, 14, 15)
    projection: int = 16
    projection_bias: int = 17
    state: int = 18
    cell: int = 19
    norms: tuple[int, ...] = (20, 21, 22, 23)
    more: tuple[int, ...] = ()


_ONE = _Places()
_FORWARD = _Places(state=35, cell=36, norms=(), more=(40, 41, 42, 43))
_BACKWARD = _Places(
    (18, 19, 20, 21), (22, 23, 24, 25), (26, 27, 28), (29, 30, 31, 32), 33, 34, 37, 38, (),
    (44, 45, 46, 47),
)  # fmt: skip
_INPUT, _FORGET, _CELL, _OUTPUT = range(4)


@dataclass(frozen=True)
class _Lstm:
    """One direction of an LSTM while it is read."""

    call: Call
    given: _Sequence
    at: _Places
    #: The position of an auxiliary input that has weights of its own.
    other: int | None = None

    @property
    def gates(self) -> tuple[int, ...]:
        """The gates that the file has. Without an input gate, what is not forgotten is new."""
        coupled = self.call.optional(self.at.inputs[_INPUT]) is None
        return (_FORGET, _CELL, _OUTPUT) if coupled else (_INPUT, _FORGET, _CELL, _OUTPUT)

    @property
    def units(self) -> int:
        return self.call.operand(self.at.inputs[_OUTPUT]).shape[0]

    def _present(self, positions: Sequence[int]) -> bool:
        """Whether a part that a gate may have is there; the output gate always has it, too."""
        return bool(positions) and self.call.optional(positions[-1]) is not None

    def _totals(self) -> Tensor:
        """What all inputs add to the gates, rows [batch * steps, gates * units]."""
        call, width = self.call, self.given.shape[2]
        chosen = [self.at.inputs[gate] for gate in self.gates]
        total = _product(
            call, self.given.rows(), _weights(call, chosen, width, f"inputs{chosen[0]}")
        )
        if self.other is not None:
            other = _Sequence(call, self.other)
            chosen = [self.at.more[gate] for gate in self.gates]
            extra = _weights(call, chosen, other.shape[2], f"inputs{chosen[0]}")
            total = _sum(call, total, _product(call, other.rows(), extra))
        if self._present(self.at.norms):
            return total
        return _sum(call, total, self._biases())

    def _biases(self) -> Tensor:
        call, units = self.call, self.units
        found = [call.constant(self.at.biases[g], "bias").reshape(-1) for g in self.gates]
        if any(data.shape != (units,) or data.dtype != np.float32 for data in found):
            raise call.refuse(f"expected biases float32[{units}] in all gates")
        return call.value(np.concatenate(found))

    def _gate(self, sums: Tensor, gate: int, cell: Tensor) -> Tensor:
        """A gate's value from the sums of all gates and the cell's state."""
        call, units, place = self.call, self.units, self.gates.index(gate)
        value = call.part(sums, 1, place * units, units)
        if gate != _CELL and self._present(self.at.peepholes):
            position = self.at.peepholes[(_INPUT, _FORGET, _OUTPUT).index(gate)]
            weight = _vector(call, position, units, "peephole")
            value = call.map(lambda x, c, w: x + c * w, value, cell, weight)
        if self._present(self.at.norms):
            value = self._normalised(value, gate)
        rule = (lambda x: _activated(call, x)) if gate == _CELL else sigmoid
        return call.map(rule, value)

    def _normalised(self, value: Tensor, gate: int) -> Tensor:
        """Layer normalisation over a gate's units, and its bias."""
        call, units = self.call, self.units
        factor = _vector(call, self.at.norms[gate], units, "factor")
        bias = _vector(call, self.at.biases[gate], units, "bias")
        total = call.reduce("+", value, (1,))
        apart = call.map(lambda x, s: x - s / float(units), value, total)
        square = call.map(lambda x: x * x, apart)
        spread = call.reduce("+", square, (1,))

        def rule(x: Expr, s: Expr, f: Expr, b: Expr) -> Expr:
            return x * (1.0 / function("sqrt", s / float(units) + _LEAST_VARIANCE)) * f + b

        return call.map(rule, apart, spread, factor, bias)

    def _projected(self, hidden: Tensor) -> Tensor:
        """The hidden state from what the output gate lets through."""
        call, at = self.call, self.at
        if call.optional(at.projection) is None:
            return hidden
        made = _product(
            call, hidden, _weights(call, [at.projection], self.units, f"projection{at.projection}")
        )
        bound = float(call.option("ProjClip"))
        bias = ()
        if call.optional(at.projection_bias) is not None:
            size = made.shape[1]
            bias = (_vector(call, at.projection_bias, size, "bias"),)
        if not bias and bound <= 0:
            return made
        rule = lambda x, *b: _clipped(x + b[0] if b else x, bound)  # noqa: E731
        return call.map(rule, made, *bias)

    def run(self) -> Tensor:
        """All steps, from and to the states. Returns the results."""
        call, at, batch = self.call, self.at, self.given.shape[0]
        weights = call.operand(at.hidden[_OUTPUT])
        size = weights.shape[-1]
        totals = self._totals()
        stored = _weights(call, [at.hidden[g] for g in self.gates], size, f"hidden{at.hidden[-1]}")
        hidden = state_of(call, at.state, (batch, size), "float32")
        cell = state_of(call, at.cell, (batch, self.units), "float32")
        history = {}
        for step in self.given.steps():
            sums = _sum(call, self.given.at(totals, step), _product(call, hidden, stored))
            cell = self._next_cell(sums, cell)
            output = self._gate(sums, _OUTPUT, cell)
            through = call.map(lambda o, c: o * _activated(call, c), output, cell)
            hidden = self._projected(through)
            history[step] = hidden
        keep(call, at.state, hidden)
        keep(call, at.cell, cell)
        return self.given.joined(history)

    def _next_cell(self, sums: Tensor, cell: Tensor) -> Tensor:
        call, bound = self.call, float(self.call.option("CellClip"))
        forget, new = (self._gate(sums, gate, cell) for gate in (_FORGET, _CELL))
        if _INPUT in self.gates:
            admit = (self._gate(sums, _INPUT, cell),)
        else:
            admit = ()

        def rule(f: Expr, c: Expr, g: Expr, *i: Expr) -> Expr:
            return _clipped(c * f + g * (i[0] if i else 1.0 - f), bound)

        return call.map(rule, forget, cell, new, *admit)


def lstm(call: Call) -> None:
    """Over a sequence, or one step for a matrix."""
    if call.operator.options.get("KernelType") == tflite.LSTMKernelType.BASIC:
        _basic(call)
        return
    _finish(call, [_Lstm(call, _Sequence(call, 0), _ONE).run()])


def _lstm_both(call: Call) -> None:
    back, weighted = _auxiliary(call, 39, 40)
    other = 39 if weighted else None
    forward = _Lstm(call, _Sequence(call, 0), _FORWARD, other).run()
    backward = _Lstm(call, _Sequence(call, back, True), _BACKWARD, other).run()
    _finish(call, [forward, backward])


def _basic(call: Call) -> None:
    """The first kernel of TensorFlow Lite: a matrix for the input and the last result side by side,
    and gates in the order input, cell, forget, output."""
    batch, width = call.importer.shape(call.operand(0))
    units = call.operand(1).shape[-1]
    hidden = state_of(call, 1, (batch, units), "float32")
    cell = state_of(call, 4, (batch, units), "float32")
    rows = call.emit(Concat(1), call.tensor(0), hidden)
    sums = _product(call, rows, _weights(call, [2], width + units, "weights"))
    sums = _sum(call, sums, _vector(call, 3, 4 * units, "bias"))
    admit, new, forget, output = (call.part(sums, 1, i * units, units) for i in range(4))

    def next_cell(i: Expr, g: Expr, f: Expr, c: Expr) -> Expr:
        return sigmoid(i) * function("tanh", g) + sigmoid(f) * c

    cell = call.map(next_cell, admit, new, forget, cell)
    hidden = call.map(lambda o, c: sigmoid(o) * function("tanh", c), output, cell)
    keep(call, 1, hidden)
    keep(call, 4, cell)
    for value, result in zip((hidden, cell, rows, sums), call.results, strict=False):
        call.define(value, result=result)


#: Readers by operator and by the first operand's type.
TYPED: dict[str, dict[str, Reader]] = {
    "BIDIRECTIONAL_SEQUENCE_LSTM": {"float32": _lstm_both},
    "BIDIRECTIONAL_SEQUENCE_RNN": {"float32": _rnn_both},
    "LSTM": {"float32": lstm},
    "RNN": {"float32": _rnn},
    "UNIDIRECTIONAL_SEQUENCE_RNN": {"float32": _rnn},
}
