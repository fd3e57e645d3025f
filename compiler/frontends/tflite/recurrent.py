"""Readers of the LSTM over a sequence of integers.

The time steps are read one after the other; the products with all inputs are one matrix product.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from functools import cached_property

import numpy as np
import tflite

from ...graph.arithmetic.requant import tflite_params
from ...graph.ir import Tensor
from ...graph.ops.linear import MatMul
from ...graph.ops.movement import Concat, Gather
from ...te.expr import Expr, integer_range, maximum, minimum
from . import cells
from .functions import logistic16, tanh16
from .graph import Call
from .mapping import rescaled, saturated
from .memory import keep, matrix, state_of
from .wide import reduced, scaled

Reader = Callable[[Call], None]
#: Positions of each gate's weights of the input, of the hidden state, and of its bias: forget,
#: input, output, cell. The first three have the same activation.
_GATES = ((2, 6, 13), (1, 5, 12), (4, 8, 15), (3, 7, 14))
_HIDDEN, _CELL = 18, 19
#: Operands of forms that TensorFlow Lite Micro does not have either.
_ABSENT = (*range(9, 12), *range(16, 18), *range(20, 24))
#: Scales of what goes into and what comes from a gate's activation, of int16.
_BEFORE, _AFTER = 2.0**-12, 2.0**-15


@dataclass(frozen=True)
class _Lstm:
    """One LSTM while it is read; ``x`` is the type of activations, ``acc`` that of sums."""

    call: Call
    x: str
    acc: str

    @cached_property
    def sizes(self) -> tuple[int, int, int, int]:
        """Batch, time steps, elements of an input and of a state."""
        shape = self.call.importer.shape(self.call.operand(0))
        if len(shape) != 3:
            raise self.call.refuse(f"expected an input of 3 dimensions, got {list(shape)}")
        batch, steps = shape[:2][::-1] if self.time_axis == 0 else shape[:2]
        return batch, steps, shape[2], self.call.operand(_GATES[0][1]).shape[-1]

    @property
    def time_axis(self) -> int:
        return 0 if self.call.option("TimeMajor") else 1

    def weights(self, which: int) -> Tensor:
        """The weights of all gates side by side, [columns, 4 * units]: ``which`` is 0 for those of
        the inputs, 1 for those of the hidden state."""
        call, units = self.call, self.sizes[3]
        columns = units if which else self.sizes[2]
        found = [matrix(call, gate[which], ("int8",), columns) for gate in _GATES]
        if any(data.shape[0] != units for data in found):
            raise call.refuse(f"expected weights of {units} units in all gates")
        joined = np.ascontiguousarray(np.concatenate(found).T.astype(self.acc))
        return call.value(joined)

    def product_of(self, rows: Tensor, weights: Tensor) -> Tensor:
        """Rows times weights, [rows, 4 * units]."""
        return self.call.emit(MatMul(), rows, weights)

    def bias(self) -> Tensor:
        units = self.sizes[3]
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
        units, first = self.sizes[3], which == 0
        real = [float(scale * call.operand(g[which]).scale[0]) / _BEFORE for g in _GATES]
        pairs = [tflite_params(value) for value in np.repeat(real, units)]
        factors, shifts = (np.array(column, np.int64) for column in zip(*pairs, strict=True))
        if self.acc == "int64":
            factors, shifts = reduced(factors), shifts + 15
        given = [
            call.shared(f"{name}{which}", data.astype(self.acc))
            for name, data in (("factors", factors), ("shifts", shifts))
        ]

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
        values = np.arange(-32768, 32768)
        steps = values * (3 << (12 + power)) if power >= -12 else _halved(values * 3, -12 - power)
        table = call.shared(
            name, (logistic16(steps) if sigmoid else tanh16(steps)).clip(-32768, 32767).astype("i2")
        )
        index = call.map(lambda v: v.astype("int32") + (1 << 15), value)
        return call.emit(Gather(0), table, index)

    def product(self, a: Expr, b: Expr, scale: float, zero: int, dtype: str) -> Expr:
        """The product of two elements, rescaled."""
        made = rescaled(a.astype("int32") * b.astype("int32"), *tflite_params(scale)) + zero
        return saturated(made, *integer_range(dtype), dtype)

    def cell(self, forget: Tensor, cell: Tensor, update: Tensor, new: Tensor) -> Tensor:
        """The next cell state."""
        call = self.call
        clip, scale = float(call.option("CellClip")), float(call.quant(call.operand(_CELL))[0])
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
        scale, zero = call.quant(call.operand(_HIDDEN))
        mantissa, exponent = np.frexp(call.quant(call.operand(_CELL))[0])
        power = int(exponent) - 1
        if mantissa != 0.5 or not -15 <= power <= 0:
            raise call.refuse("expected a scale of the cell state from 2**-15 to 1, a power of 2")
        value = self.activated(cell, False, power)
        factor = _AFTER * _AFTER / float(scale)
        return call.map(lambda c, o: self.product(c, o, factor, zero, self.x), value, output)

    def run(self) -> None:
        """All steps, from and to the states."""
        call, (batch, steps, width, units) = self.call, self.sizes
        hidden = state_of(call, _HIDDEN, (batch, units), self.x)
        cell = state_of(call, _CELL, (batch, units), "int16")
        (x, zero), (h, rest) = [call.quant(call.operand(position)) for position in (0, _HIDDEN)]
        rows = call.reshape(self.centred(call.tensor(0), zero), (batch * steps, width))
        total = self.product_of(rows, self.weights(0))
        shape = (steps, batch) if self.time_axis == 0 else (batch, steps)
        inputs = call.reshape(self.gates(total, 0, x, self.bias()), (*shape, 4 * units))
        weights = self.weights(1)
        history = []
        for step in range(steps):
            given = call.reshape(call.part(inputs, self.time_axis, step, 1), (batch, 4 * units))
            total = self.product_of(self.centred(hidden, rest), weights)
            gates = self.gates(total, 1, h, given)
            three = self.activated(call.part(gates, 1, 0, 3 * units), True)
            new = self.activated(call.part(gates, 1, 3 * units, units), False)
            forget, update, output = (call.part(three, 1, i * units, units) for i in range(3))
            cell = self.cell(forget, cell, update, new)
            hidden = self.hidden(cell, output)
            history.append(call.reshape(hidden, (1, batch, units) if self.time_axis == 0
                                   else (batch, 1, units)))  # fmt: skip
        keep(call, _HIDDEN, hidden)
        keep(call, _CELL, cell)
        call.define(call.emit(Concat(self.time_axis), *tuple(history)))


def _halved(x: np.ndarray, count: int) -> np.ndarray:
    """``x / 2**count`` rounded half up."""
    return (x + (1 << (count - 1))) >> count if count else x


def _lstm(call: Call) -> None:
    present = [i for i in _ABSENT if call.optional(i) is not None]
    if present or any(call.optional(i) is None for gate in _GATES for i in gate):
        raise call.refuse(
            "expected the weights and biases of four gates, and no peepholes, projection or layer"
            f" normalisation, got {f'operand {present[0]}' if present else 'fewer'}"
        )
    if call.option("FusedActivationFunction") != tflite.ActivationFunctionType.TANH:
        raise call.refuse("expected the activation TANH of the cell")
    dtype = call.operand(0).dtype
    _Lstm(call, dtype, {"int8": "int32", "int16": "int64"}[dtype]).run()


#: Readers by operator and by the first operand's type.
TYPED: dict[str, dict[str, Reader]] = {
    "UNIDIRECTIONAL_SEQUENCE_LSTM": {"float32": cells.lstm, "int8": _lstm, "int16": _lstm},
}
