"""Readers of operators with a memory of earlier runs: SVDF and the LSTM over a sequence.

The time steps of a sequence are read one after the other; the products with all inputs are one
matrix product.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import cached_property

import numpy as np
import tflite

from ...graph.arithmetic.requant import tflite_params
from ...graph.ops.linear import MatMul
from ...graph.ops.movement import Concat, Gather, Reshape, Slice
from ...graph.ops.reduction import Reduce
from ...te.expr import Call as Function
from ...te.expr import Expr, integer_range, maximum, minimum
from ...te.tensor import clip
from .functions import logistic16, tanh16
from .geometry import activation
from .graph import Call
from .hybrid import products, stored_weight
from .mapping import between, map_of, rescaled, saturated, step_map
from .wide import reduced, scaled

Reader = Callable[[Call], None]


def _part(call: Call, value: str, axis: int, start: int, count: int) -> str:
    """``count`` elements along an axis."""
    shape = list(call.shape_of(value))
    starts = [start if i == axis else 0 for i in range(len(shape))]
    shape[axis] = count
    return call.step("part", Slice(tuple(starts), (1,) * len(shape), tuple(shape)), value)


def _shaped(call: Call, value: str, shape: tuple[int, ...]) -> str:
    """A tensor in another shape."""
    return value if call.shape_of(value) == shape else call.step("shaped", Reshape(shape), value)


def _state(call: Call, position: int, shape: tuple[int, ...], dtype: str) -> str:
    """The value of a variable in another shape."""
    tensor = call.operand(position)
    if not tensor.variable or tensor.dtype != dtype:
        raise call.refuse(f"expected a variable of {dtype}, got {tensor.dtype} of {tensor}")
    if int(np.prod(tensor.shape)) != int(np.prod(shape)):
        raise call.refuse(f"expected {list(shape)} of {tensor}, got {list(tensor.shape)}")
    return _shaped(call, call.importer.value(tensor, "plain"), shape)


def _keep(call: Call, position: int, value: str) -> None:
    """The next value of a variable."""
    tensor = call.operand(position)
    call.importer.assign(tensor, _shaped(call, value, call.importer.shape(tensor)))


def _matrix(call: Call, position: int, dtypes: Sequence[str], columns: int | None) -> np.ndarray:
    """A constant matrix of weights, of one scale and zero point 0 if it is of integers."""
    tensor, data = call.operand(position), call.constant(position, "weight")
    wrong = tensor.dtype not in dtypes or data.ndim != 2
    if wrong or (columns is not None and data.shape[1] != columns):
        raise call.refuse(
            f"expected {' or '.join(dtypes)} in {columns or 'some'} columns, got"
            f" {tensor.dtype}{list(data.shape)} of {tensor}"
        )
    if tensor.dtype != "float32" and (tensor.scale.size != 1 or tensor.zero_point[0]):
        raise call.refuse(f"expected one scale and zero point 0 of {tensor}")
    return data


# ---- SVDF ----------------------------------------------------------------------------------------


def _svdf(call: Call) -> None:
    """Each filter is a product with the input, kept for some runs, and a product along these; the
    result sums ``rank`` filters."""
    (batch, width), real = _two(call.importer.shape(call.operand(0)), call), _is_real(call)
    rank, bounds = call.option("Rank"), activation(call)
    feature = _matrix(call, 1, ("float32", "int8") if real else ("int8",), width)
    time = _matrix(call, 2, ("float32", "int8") if real else ("int8", "int16"), None)
    hybrid = real and feature.dtype == np.int8
    if real and (time.dtype == np.int8) != hybrid:
        raise call.refuse(f"expected weights of one type, got {feature.dtype} and {time.dtype}")
    if hybrid:
        time = time * np.float32(call.operand(2).scale[0])
    filters, memory = time.shape
    if feature.shape[0] != filters or rank < 1 or filters % rank:
        raise call.refuse(f"{feature.shape[0]} and {filters} filters do not fit rank {rank}")
    wide, dtype = ("float32", "float32") if real else ("int32", call.operand(4).dtype)
    if not real and (dtype != time.dtype or bounds not in ((0.0, np.inf), (-np.inf, np.inf))):
        raise call.refuse(
            f"expected a state of {time.dtype} and the activation NONE or RELU, got {dtype} and"
            f" bounds {bounds}"
        )
    state = _state(call, 4, (batch, filters, memory), dtype)
    if hybrid:
        scales = np.broadcast_to(call.operand(1).scale, (1, filters))
        new = products(call, call.value(0, "plain"), stored_weight(call, feature.T, scales))
    else:
        stored = call.constant_of("feature", np.ascontiguousarray(feature.T.astype(wide)))
        new = call.step("features", MatMul(), _svdf_operand(call, real), stored)
        new = new if real else _svdf_scaled(call, new, dtype)
    new = _shaped(call, new, (batch, filters, 1))
    if memory > 1:
        new = call.step("state", Concat(2), _part(call, state, 2, 1, memory - 1), new)
    _keep(call, 4, new)
    zero = 0 if real else call.quant(call.operand(4))[1]
    weights = call.constant_of("time", time.astype(wide).reshape(1, filters, memory))
    terms = step_map(call, "terms", lambda s, w: (s.astype(wide) - zero) * w, new, weights)
    total = call.step("sums", Reduce("+", (2,), False), terms)
    total = _shaped(call, total, (batch, filters // rank, rank))
    total = call.step("total", Reduce("+", (2,), False), total)
    bias = np.zeros(filters // rank, wide)
    if call.optional(3) is not None:
        bias = call.constant(3, "bias").reshape(-1)
    operands = total, call.constant_of("bias", bias.astype(wide))
    call.emit(map_of(call, "Svdf", _svdf_rule(call, real), *operands), operands, "plain")


def _is_real(call: Call) -> bool:
    return call.operand(0).dtype == "float32"


def _two(shape: tuple[int, ...], call: Call) -> tuple[int, int]:
    if len(shape) != 2:
        raise call.refuse(f"expected a matrix of rows, got {list(shape)}")
    return shape[0], shape[1]


def _svdf_operand(call: Call, real: bool) -> str:
    value = call.value(0, "plain")
    if real:
        return value
    zero = call.quant(call.operand(0))[1]
    return step_map(call, "wide", lambda x: x.astype("int32") - zero, value)


def _svdf_scaled(call: Call, total: str, dtype: str) -> str:
    """The products with the input as elements of the state."""
    (x, _), (state, zero) = call.quant(call.operand(0)), call.quant(call.operand(4))
    factors = tflite_params(float(x * call.operand(1).scale[0] / state))
    low, high = integer_range(dtype)

    def rule(acc: Expr) -> Expr:
        return (clip(rescaled(acc, *factors), low, high) + zero).astype(dtype)

    return step_map(call, "scaled", rule, total)


def _svdf_rule(call: Call, real: bool) -> Callable[[Expr, Expr], Expr]:
    if real:
        return lambda acc, bias: between(call, bias + acc)
    (state, _), (y, zero) = call.quant(call.operand(4)), call.quant(call.result)
    factors = tflite_params(float(state * call.operand(2).scale[0] / y))
    return lambda acc, bias: saturated(
        rescaled(acc + bias, *factors) + zero, -128, 127, "int8"
    )  # without the activation, as the kernel


# ---- LSTM ----------------------------------------------------------------------------------------

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

    @property
    def real(self) -> bool:
        return self.x == "float32"

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

    @property
    def hybrid(self) -> bool:
        """Whether activations are floats and weights int8."""
        return self.real and self.call.operand(_GATES[0][0]).dtype == "int8"

    def weights(self, which: int) -> tuple[str, ...]:
        """The weights of all gates side by side, [columns, 4 * units], and where they are int8 for
        floats their scales; ``which`` is 0 for the inputs, 1 for the hidden state."""
        call, name, units = self.call, ("inputs", "state")[which], self.sizes[3]
        dtypes = ("float32",) if self.real and not self.hybrid else ("int8",)
        columns = units if which else self.sizes[2]
        found = [_matrix(call, gate[which], dtypes, columns) for gate in _GATES]
        if any(data.shape[0] != units for data in found):
            raise call.refuse(f"expected weights of {units} units in all gates")
        joined = np.concatenate(found).T
        if self.hybrid:
            scales = np.repeat([call.operand(gate[which]).scale for gate in _GATES], units)
            return stored_weight(call, joined, scales.reshape(1, -1), name)
        return (call.constant_of(name, np.ascontiguousarray(joined.astype(self.acc))),)

    def product_of(self, rows: str, weights: tuple[str, ...]) -> str:
        """Rows times weights, [rows, 4 * units]."""
        match weights:
            case (stored, scales):
                return products(self.call, rows, (stored, scales))
            case _:
                return self.call.step("total", MatMul(), rows, *weights)

    def bias(self) -> str:
        units = self.sizes[3]
        found = [self.call.constant(gate[2], "bias").reshape(-1) for gate in _GATES]
        if any(data.shape != (units,) or str(data.dtype) != self.acc for data in found):
            raise self.call.refuse(f"expected biases of {self.acc}[{units}] in all gates")
        return self.call.constant_of("bias", np.concatenate(found))

    def centred(self, value: str, zero: int) -> str:
        """Integers less their zero point, for sums."""
        if self.real:
            return value
        return step_map(self.call, "wide", lambda x: x.astype(self.acc) - zero, value)

    def gates(self, total: str, which: int, scale: np.float32, *more: str) -> str:
        """Sums of products as what goes into the activations, [rows, 4 * units]. ``more`` are the
        bias of the inputs, or the part of the inputs that a step adds."""
        call = self.call
        if self.real:
            return step_map(call, "gates", lambda acc, other: acc + other, total, *more)
        units, first = self.sizes[3], which == 0
        real = [float(scale * call.operand(g[which]).scale[0]) / _BEFORE for g in _GATES]
        pairs = [tflite_params(value) for value in np.repeat(real, units)]
        factors, shifts = (np.array(column, np.int64) for column in zip(*pairs, strict=True))
        if self.acc == "int64":
            factors, shifts = reduced(factors), shifts + 15
        given = [
            call.constant_of(f"{name}{which}", data.astype(self.acc))
            for name, data in (("factors", factors), ("shifts", shifts))
        ]

        def rule(acc: Expr, factor: Expr, shift: Expr, other: Expr) -> Expr:
            made = scaled(acc + other if first else acc, factor, shift)
            made = saturated(made, -32768, 32767, "int32")
            return saturated(
                made if first else made + other.astype("int32"), -32768, 32767, "int16"
            )

        return step_map(call, "gates", rule, total, *given, *more)

    def activated(self, value: str, sigmoid: bool, power: int = -12) -> str:
        """An activation; of int16 of scale ``2**power`` by a table."""
        call, name = self.call, "sigmoid" if sigmoid else f"tanh{-power}"
        if self.real:
            rule = _sigmoid if sigmoid else (lambda x: Function("tanh", (x,), "float32"))
            return step_map(call, name, rule, value)
        values = np.arange(-32768, 32768)
        steps = values * (3 << (12 + power)) if power >= -12 else _halved(values * 3, -12 - power)
        table = call.constant_of(
            name, (logistic16(steps) if sigmoid else tanh16(steps)).clip(-32768, 32767).astype("i2")
        )
        index = step_map(call, "index", lambda v: v.astype("int32") + (1 << 15), value)
        return call.step(f"{name}.of", Gather(0), table, index)

    def product(self, a: Expr, b: Expr, scale: float, zero: int, dtype: str) -> Expr:
        """The product of two elements, rescaled."""
        if self.real:
            return a * b
        made = rescaled(a.astype("int32") * b.astype("int32"), *tflite_params(scale)) + zero
        return saturated(made, *integer_range(dtype), dtype)

    def cell(self, forget: str, cell: str, update: str, new: str) -> str:
        """The next cell state."""
        call = self.call
        clip, kept = float(call.option("CellClip")), "float32" if self.real else "int32"
        scale = 1.0 if self.real else float(call.quant(call.operand(_CELL))[0])
        bound = clip if self.real else int(min(clip / scale, 32767.0))

        def rule(f: Expr, c: Expr, i: Expr, g: Expr) -> Expr:
            old = self.product(f, c, _AFTER * scale / scale, 0, "int16").astype(kept)
            made = old + self.product(i, g, _AFTER * _AFTER / scale, 0, "int16").astype(kept)
            if not self.real:
                made = saturated(made, -32768, 32767, kept)
            made = minimum(maximum(made, -bound), bound) if clip > 0 else made
            return made if self.real else made.astype("int16")

        return step_map(call, "cell", rule, forget, cell, update, new)

    def hidden(self, cell: str, output: str) -> str:
        """The next hidden state."""
        call, power = self.call, 0
        scale, zero = (np.float32(1), 0) if self.real else call.quant(call.operand(_HIDDEN))
        if not self.real:
            mantissa, exponent = np.frexp(call.quant(call.operand(_CELL))[0])
            power = int(exponent) - 1
            if mantissa != 0.5 or not -15 <= power <= 0:
                raise call.refuse(
                    "expected a scale of the cell state from 2**-15 to 1, a power of 2"
                )
        value = self.activated(cell, False, power)
        factor = _AFTER * _AFTER / float(scale)
        return step_map(
            call, "hidden", lambda c, o: self.product(c, o, factor, zero, self.x), value, output
        )

    def run(self) -> None:
        """All steps, from and to the states."""
        call, (batch, steps, width, units) = self.call, self.sizes
        hidden = _state(call, _HIDDEN, (batch, units), self.x)
        cell = _state(call, _CELL, (batch, units), "float32" if self.real else "int16")
        (x, zero), (h, rest) = [
            (np.float32(1), 0) if self.real else call.quant(call.operand(position))
            for position in (0, _HIDDEN)
        ]
        rows = _shaped(call, self.centred(call.value(0, "plain"), zero), (batch * steps, width))
        total = self.product_of(rows, self.weights(0))
        shape = (steps, batch) if self.time_axis == 0 else (batch, steps)
        inputs = _shaped(call, self.gates(total, 0, x, self.bias()), (*shape, 4 * units))
        weights = self.weights(1)
        history = []
        for step in range(steps):
            given = _shaped(call, _part(call, inputs, self.time_axis, step, 1), (batch, 4 * units))
            total = self.product_of(self.centred(hidden, rest), weights)
            gates = self.gates(total, 1, h, given)
            three = self.activated(_part(call, gates, 1, 0, 3 * units), True)
            new = self.activated(_part(call, gates, 1, 3 * units, units), False)
            forget, update, output = (_part(call, three, 1, i * units, units) for i in range(3))
            cell = self.cell(forget, cell, update, new)
            hidden = self.hidden(cell, output)
            history.append(_shaped(call, hidden, (1, batch, units) if self.time_axis == 0
                                   else (batch, 1, units)))  # fmt: skip
        _keep(call, _HIDDEN, hidden)
        _keep(call, _CELL, cell)
        call.emit(Concat(self.time_axis), tuple(history), "plain")


def _halved(x: np.ndarray, count: int) -> np.ndarray:
    """``x / 2**count`` rounded half up."""
    return (x + (1 << (count - 1))) >> count if count else x


def _sigmoid(x: Expr) -> Expr:
    return 1.0 / (Function("exp", (0.0 - x,), "float32") + 1.0)


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
    _Lstm(call, dtype, {"float32": "float32", "int8": "int32", "int16": "int64"}[dtype]).run()


#: Readers by operator and by the first operand's type.
TYPED: dict[str, dict[str, Reader]] = {
    "SVDF": {"float32": _svdf, "int8": _svdf},
    "UNIDIRECTIONAL_SEQUENCE_LSTM": dict.fromkeys(("float32", "int8", "int16"), _lstm),
}
