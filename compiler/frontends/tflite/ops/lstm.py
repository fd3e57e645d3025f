"""LSTMs: of float32 in all forms and in both directions, and of integers."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import tflite

from ....graph.arithmetic.requant import tflite_params
from ....graph.ir import Tensor
from ....graph.ops.linear import MatMul
from ....graph.ops.movement import Concat, Gather
from ....te.expr import Expr, integer_range, maximum, minimum
from ...onnx.ops.elementwise import logistic
from ..graph import Call, Rows
from .elementwise import logistic16, tanh16
from .rnn import (
    TimeSteps,
    activated,
    added,
    auxiliary,
    finish,
    gate_weights,
    keep,
    matrix,
    product,
    state_of,
    vector,
)
from .rules import STORED, clipped, named, rescaled, saturated
from .weights import multipliers, scaled

# ---- floats --------------------------------------------------------------------------------------
#: What the kernels add to a variance before its root.
_LEAST_VARIANCE = 1e-8


def _within(x: Expr, bound: float) -> Expr:
    return clipped(x, -bound, bound) if bound > 0 else x


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
    given: TimeSteps
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
        call, total = self.call, self.given.weighted([self.at.inputs[g] for g in self.gates])
        if self.other is not None:
            extra = TimeSteps(call, self.other).weighted([self.at.more[g] for g in self.gates])
            total = added(call, total, extra)
        if self._present(self.at.norms):
            return total
        return added(call, total, self._biases())

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
            weight = vector(call, position, units, "peephole")
            value = call.map(lambda x, c, w: x + c * w, value, cell, weight)
        if self._present(self.at.norms):
            value = self._normalised(value, gate)
        rule = (lambda x: activated(call, x)) if gate == _CELL else logistic
        return call.map(rule, value)

    def _normalised(self, value: Tensor, gate: int) -> Tensor:
        """Layer normalisation over a gate's units, and its bias."""
        call, units = self.call, self.units
        factor = vector(call, self.at.norms[gate], units, "factor")
        bias = vector(call, self.at.biases[gate], units, "bias")
        total = call.reduce("+", value, (1,))
        apart = call.map(lambda x, s: x - s / float(units), value, total)
        square = call.map(lambda x: x * x, apart)
        spread = call.reduce("+", square, (1,))

        def rule(x: Expr, s: Expr, f: Expr, b: Expr) -> Expr:
            return x * (1.0 / named("sqrt", s / float(units) + _LEAST_VARIANCE)) * f + b

        return call.map(rule, apart, spread, factor, bias)

    def _projected(self, hidden: Tensor) -> Tensor:
        """The hidden state from what the output gate lets through."""
        call, at = self.call, self.at
        if call.optional(at.projection) is None:
            return hidden
        made = product(call, hidden, gate_weights(call, [at.projection], self.units))
        bound = float(call.option("ProjClip"))
        if call.optional(at.projection_bias) is not None:
            made = added(call, made, vector(call, at.projection_bias, made.shape[1], "bias"))
        return call.map(lambda x: _within(x, bound), made) if bound > 0 else made

    def run(self) -> Tensor:
        """All steps, from and to the states. Returns the results."""
        call, at, batch = self.call, self.at, self.given.shape[0]
        size, totals = call.operand(at.hidden[_OUTPUT]).shape[-1], self._totals()
        stored = gate_weights(call, [at.hidden[g] for g in self.gates], size)
        hidden = state_of(call, at.state, (batch, size), "float32")
        cell = state_of(call, at.cell, (batch, self.units), "float32")
        history = {}
        for step in self.given.steps():
            sums = added(call, self.given.at(totals, step), product(call, hidden, stored))
            cell = self._next_cell(sums, cell)
            output = self._gate(sums, _OUTPUT, cell)
            through = call.map(lambda o, c: o * activated(call, c), output, cell)
            hidden = self._projected(through)
            history[step] = hidden
        keep(call, at.state, hidden)
        keep(call, at.cell, cell)
        return self.given.joined(history)

    def _next_cell(self, sums: Tensor, cell: Tensor) -> Tensor:
        call, bound = self.call, float(self.call.option("CellClip"))
        forget, new = (self._gate(sums, gate, cell) for gate in (_FORGET, _CELL))
        admit = (self._gate(sums, _INPUT, cell),) if _INPUT in self.gates else ()

        def rule(f: Expr, c: Expr, g: Expr, *i: Expr) -> Expr:
            return _within(c * f + g * (i[0] if i else 1.0 - f), bound)

        return call.map(rule, forget, cell, new, *admit)


def _lstm(call: Call) -> None:
    """Over a sequence, or one step for a matrix."""
    if call.option("KernelType") == tflite.LSTMKernelType.BASIC:
        _basic(call)
        return
    finish(call, [_Lstm(call, TimeSteps(call, 0), _ONE).run()])


def _lstm_both(call: Call) -> None:
    back, weighted = auxiliary(call, 39, 40)
    other = 39 if weighted else None
    forward = _Lstm(call, TimeSteps(call, 0), _FORWARD, other).run()
    backward = _Lstm(call, TimeSteps(call, back, True), _BACKWARD, other).run()
    finish(call, [forward, backward])


def _basic(call: Call) -> None:
    """The first kernel of TensorFlow Lite: a matrix for the input and the last result side by side,
    and gates in the order input, cell, forget, output."""
    batch, width = call.importer.shape(call.operand(0))
    units = call.operand(1).shape[-1]
    hidden = state_of(call, 1, (batch, units), "float32")
    cell = state_of(call, 4, (batch, units), "float32")
    rows = call.emit(Concat(1), call.tensor(0), hidden)
    sums = product(call, rows, gate_weights(call, [2], width + units))
    sums = added(call, sums, vector(call, 3, 4 * units, "bias"))
    admit, new, forget, output = (call.part(sums, 1, i * units, units) for i in range(4))

    def next_cell(i: Expr, g: Expr, f: Expr, c: Expr) -> Expr:
        return logistic(i) * named("tanh", g) + logistic(f) * c

    cell = call.map(next_cell, admit, new, forget, cell)
    hidden = call.map(lambda o, c: logistic(o) * named("tanh", c), output, cell)
    keep(call, 1, hidden)
    keep(call, 4, cell)
    for value, result in zip((hidden, cell, rows, sums), call.results, strict=False):
        call.define(value, result=result)


# ---- integers ------------------------------------------------------------------------------------


#: Positions of each gate's weights of the input, of the hidden state, and of its bias: forget,
#: input, output, cell. The first three have the same activation.
_GATES = ((2, 6, 13), (1, 5, 12), (4, 8, 15), (3, 7, 14))
_HIDDEN_STATE, _CELL_STATE = 18, 19
#: Operands of forms that TensorFlow Lite Micro does not have either.
_ABSENT = (*range(9, 12), *range(16, 18), *range(20, 24))
#: Scales of what goes into and what comes from a gate's activation, of int16.
_BEFORE, _AFTER = 2.0**-12, 2.0**-15


@dataclass(frozen=True)
class _IntegerLstm:
    """One LSTM while it is read; ``x`` is the type of activations, ``acc`` that of sums."""

    call: Call
    given: TimeSteps
    x: str
    acc: str

    @property
    def units(self) -> int:
        return self.call.operand(_GATES[0][1]).shape[-1]

    def weights(self, which: int) -> Tensor:
        """The weights of all gates side by side, [columns, 4 * units]: ``which`` is 0 for those of
        the inputs, 1 for those of the hidden state."""
        call, units = self.call, self.units
        columns = units if which else self.given.shape[2]
        found = [matrix(call, gate[which], ("int8",), columns) for gate in _GATES]
        if any(data.shape[0] != units for data in found):
            raise call.refuse(f"expected weights of {units} units in all gates")
        return call.value(np.concatenate(found).T.astype(self.acc))

    def bias(self) -> Tensor:
        units = self.units
        found = [self.call.constant(gate[2], "bias").reshape(-1) for gate in _GATES]
        if any(data.shape != (units,) or str(data.dtype) != self.acc for data in found):
            raise self.call.refuse(f"expected biases of {self.acc}[{units}] in all gates")
        return self.call.value(np.concatenate(found))

    def centred(self, value: Tensor, zero: int) -> Tensor:
        """Integers less their zero point, for sums."""
        return self.call.map(lambda x: x.astype(self.acc) - zero, value)

    def gates(self, total: Tensor, which: int, scale: np.float32, *more: Tensor) -> Tensor:
        """Sums of products as what goes into the activations, [rows, 4 * units]. ``more`` are the
        bias of the inputs, or the part of the inputs that a step adds."""
        call = self.call
        units, first = self.units, which == 0
        real = [float(scale * call.operand(g[which]).scale[0]) / _BEFORE for g in _GATES]
        pair = multipliers(np.repeat(real, units), self.acc)
        given = [call.shared(f"{which}.{i}", pair[i].astype(self.acc)) for i in (0, 1)]

        def rule(acc: Expr, factor: Expr, shift: Expr, other: Expr) -> Expr:
            made = scaled(acc + other if first else acc, factor, shift)
            made = saturated(made, -32768, 32767, "int32")
            return saturated(
                made if first else made + other.astype("int32"), -32768, 32767, "int16"
            )

        return call.map(rule, total, *given, *more)

    def activated(self, value: Tensor, sigmoid: bool, power: int = -12) -> Tensor:
        """An activation of int16 of scale ``2**power``, by a table."""
        call, name = self.call, "sigmoid" if sigmoid else f"tanh{-power}"
        values = STORED["int16"]
        steps = values * (3 << (12 + power)) if power >= -12 else _halved(values * 3, -12 - power)
        found = (logistic16 if sigmoid else tanh16)(steps).clip(-32768, 32767)
        index = call.map(lambda v: v.astype("int32") + (1 << 15), value)
        return call.emit(Gather(0), call.shared(name, found.astype(np.int16)), index)

    def product(self, a: Expr, b: Expr, scale: float, zero: int, dtype: str) -> Expr:
        """The product of two elements, rescaled."""
        made = rescaled(a.astype("int32") * b.astype("int32"), *tflite_params(scale)) + zero
        return saturated(made, *integer_range(dtype), dtype)

    def cell(self, forget: Tensor, cell: Tensor, update: Tensor, new: Tensor) -> Tensor:
        """The next cell state."""
        call = self.call
        clip, (step, _) = float(call.option("CellClip")), call.quant(call.operand(_CELL_STATE))
        scale = float(step)
        bound = int(min(clip / scale, 32767.0))

        def rule(f: Expr, c: Expr, i: Expr, g: Expr) -> Expr:
            old = self.product(f, c, _AFTER * scale / scale, 0, "int16").astype("int32")
            made = old + self.product(i, g, _AFTER * _AFTER / scale, 0, "int16").astype("int32")
            made = saturated(made, -32768, 32767, "int32")
            made = minimum(maximum(made, -bound), bound) if clip > 0 else made
            return made.astype("int16")

        return call.map(rule, forget, cell, update, new)

    def hidden(self, cell: Tensor, output: Tensor) -> Tensor:
        """The next hidden state."""
        call = self.call
        scale, zero = call.quant(call.operand(_HIDDEN_STATE))
        mantissa, exponent = np.frexp(call.quant(call.operand(_CELL_STATE))[0])
        power = int(exponent) - 1
        if mantissa != 0.5 or not -15 <= power <= 0:
            raise call.refuse("expected a scale of the cell state from 2**-15 to 1, a power of 2")
        value = self.activated(cell, False, power)
        factor = _AFTER * _AFTER / float(scale)
        return call.map(lambda c, o: self.product(c, o, factor, zero, self.x), value, output)

    def run(self) -> None:
        """All steps, from and to the states."""
        call, given, units = self.call, self.given, self.units
        hidden = state_of(call, _HIDDEN_STATE, (given.shape[0], units), self.x)
        cell = state_of(call, _CELL_STATE, (given.shape[0], units), "int16")
        (x, zero), (h, rest) = (call.quant(call.operand(p)) for p in (0, _HIDDEN_STATE))
        total = call.emit(MatMul(), self.centred(given.rows(), zero), self.weights(0))
        inputs = self.gates(total, 0, x, self.bias())
        weights, history = self.weights(1), {}
        for step in given.steps():
            total = call.emit(MatMul(), self.centred(hidden, rest), weights)
            gates = self.gates(total, 1, h, given.at(inputs, step))
            three = self.activated(call.part(gates, 1, 0, 3 * units), True)
            new = self.activated(call.part(gates, 1, 3 * units, units), False)
            forget, update, output = (call.part(three, 1, i * units, units) for i in range(3))
            cell = self.cell(forget, cell, update, new)
            history[step] = hidden = self.hidden(cell, output)
        keep(call, _HIDDEN_STATE, hidden)
        keep(call, _CELL_STATE, cell)
        call.define(given.joined(history))


def _halved(x: np.ndarray, count: int) -> np.ndarray:
    """``x / 2**count`` rounded half up."""
    return (x + (1 << (count - 1))) >> count if count else x


def _lstm_of_integers(call: Call) -> None:
    present = [i for i in _ABSENT if call.optional(i) is not None]
    if present or any(call.optional(i) is None for gate in _GATES for i in gate):
        raise call.refuse(
            "expected the weights and biases of four gates, and no peepholes, projection or layer"
            f" normalisation, got {f'operand {present[0]}' if present else 'fewer'}"
        )
    if call.option("FusedActivationFunction") != tflite.ActivationFunctionType.TANH:
        raise call.refuse("expected the activation TANH of the cell")
    given, dtype = call.operand(0), call.operand(0).dtype
    if len(given.shape) != 3:
        raise call.refuse(f"expected an input of 3 dimensions, got {list(given.shape)}")
    acc = {"int8": "int32", "int16": "int64"}[dtype]
    _IntegerLstm(call, TimeSteps(call, 0), dtype, acc).run()


#: Readers by operator and by the first operand's types.
READERS: Rows = {
    "BIDIRECTIONAL_SEQUENCE_LSTM": {"float32": _lstm_both},
    "LSTM": {"float32": _lstm},
    "UNIDIRECTIONAL_SEQUENCE_LSTM": {"float32": _lstm, "int8 int16": _lstm_of_integers},
}
