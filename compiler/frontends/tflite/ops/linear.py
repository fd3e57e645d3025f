"""Dense layers and products of matrices."""

from __future__ import annotations

import math

import numpy as np
import tflite

from ....graph.ir import Tensor
from ....graph.ops.base import Op
from ....graph.ops.linear import Dense, MatMul, QDense
from ....graph.ops.movement import Reshape
from ....te.expr import Expr
from ..graph import Call, Rows
from .rules import between, swapped
from .weights import (
    accumulator,
    bias8,
    emit_sum,
    float_bias,
    float_weight,
    is_hybrid,
    products,
    requant8,
    stored_weight,
    weight8,
    widened,
)

# ---- rows ----------------------------------------------------------------------------------------


def _dense_operands(call: Call, weight: np.ndarray) -> tuple[Tensor, Tensor]:
    """The rows that a dense layer reads, and its weight, in the rows' order."""
    if call.option("WeightsFormat") != tflite.FullyConnectedOptionsWeightsFormat.DEFAULT:
        raise call.refuse("shuffled weights are not supported")
    if weight.ndim != 2:
        raise call.refuse(f"expected a weight matrix, got {list(weight.shape)}")
    x, order = _rows(call, weight.shape[1])
    name = call.importer.label(call.operand(1))
    if order is not None:
        name, weight = f"{name}.{call.name}", weight[:, order]
    return x, call.importer.constant(name, weight)


def _emit_matrix(call: Call, op: Op, *operands: Tensor) -> None:
    """The node of a dense layer, whose result may have more than two dimensions in the file."""
    matrix = call.emit(op, *operands)
    if len(call.result.shape) != 2:
        matrix = call.reshape(matrix, _matrix_shape(call, matrix.shape[1]))
    call.define(matrix)


def _rows_of(call: Call, value: Tensor, width: int) -> Tensor:
    """A tensor of the graph as rows of ``width`` elements."""
    count = math.prod(value.shape)
    if count % width:
        raise call.refuse(f"{call.operand(0)} has no rows of {width} elements")
    return call.reshape(value, (count // width, width))


def _matrix_shape(call: Call, units: int) -> tuple[int, ...]:
    """The shape of a dense layer's result: all dimensions of its rows, or one."""
    said = call.importer.shape(call.result)
    if -1 not in call.result.signature:
        return said
    shape = call.importer.shape(call.operand(0))
    if call.option("KeepNumDims"):
        return (*shape[:-1], units)
    return (math.prod(shape) // call.operand(1).shape[-1], units)


def _rows(call: Call, width: int) -> tuple[Tensor, np.ndarray | None]:
    """The operand as a matrix of rows, and the order in which weights must come, or None."""
    importer, layouts = call.importer, call.layouts(0)
    if "plain" not in layouts and "flat" in layouts:
        image = importer.tensors[importer.nodes_of(layouts["flat"]).inputs[0]].shape[1:]
        if math.prod(image) == width:
            return importer.tensors[layouts["flat"]], _nchw_order(image)
    if "plain" not in layouts and "nchw" in layouts:
        batch, *image = importer.tensors[layouts["nchw"]].shape
        if math.prod(image) == width:
            shape = (batch, width)
            return _reshaped(call, layouts["nchw"], shape, "rows"), _nchw_order(tuple(image))
    source = call.tensor(0)
    if math.prod(source.shape) % width:
        raise call.refuse(f"{call.operand(0)} {list(source.shape)} has no rows of {width} elements")
    rows = (math.prod(source.shape) // width, width)
    if source.shape == rows:
        return source, None
    return _reshaped(call, source.name, rows, f"rows{width}"), None


def _reshaped(call: Call, source: str, shape: tuple[int, ...], layout: str) -> Tensor:
    """The operand in another shape, which all operators that read it so share."""
    importer, name = call.importer, f"{call.importer.label(call.operand(0))}.{layout}"
    if name not in importer.tensors:
        importer.emit(name, Reshape(shape), (source,), name)
    return importer.tensors[name]


def _nchw_order(image: tuple[int, ...]) -> np.ndarray:
    """For each element of a flattened [C,H,W], its place in the flattened [H,W,C]."""
    channels, height, width = image
    places = np.arange(math.prod(image)).reshape(height, width, channels)
    return places.transpose(2, 0, 1).reshape(-1)


# ---- dense layers --------------------------------------------------------------------------------


def _dense(call: Call) -> None:
    """By whether the weights are known, and by types."""
    real = call.operand(0).dtype == "float32"
    if call.operand(1).data is None:
        _dense_of_computed(call)
    elif is_hybrid(call):
        _dense_hybrid(call)
    elif real:
        operands = _dense_operands(call, float_weight(call))
        _emit_matrix(call, Dense(True, *call.activation()), *operands, *float_bias(call, 2))
    else:
        weight, scales = weight8(call, channel_axis=0)
        op = QDense(call.quant(call.operand(0))[1], requant8(call, scales))
        _emit_matrix(call, op, *_dense_operands(call, weight), bias8(call, 2, weight.shape[0]))


def _dense16(call: Call) -> None:
    (weight, scales), dtype = weight8(call, channel_axis=0), accumulator(call, 2)
    if weight.ndim != 2:
        raise call.refuse(f"expected a weight matrix, got {list(weight.shape)}")
    x = widened(call, 0, "plain", dtype)
    _emit_scaled(call, _matrix_product(call, x, call.value(weight.T.astype(dtype))), scales)


def _dense_hybrid(call: Call) -> None:
    """``bias + sum * (scale of the row * scale of the weights)``; each output may have its own."""
    weight, scales = weight8(call, channel_axis=0)
    if weight.ndim != 2:
        raise call.refuse(f"expected a weight matrix, got {list(weight.shape)}")
    units, width = weight.shape
    stored = stored_weight(call, weight.T, np.broadcast_to(scales, (1, units)))
    sums = products(call, _rows_of(call, call.tensor(0), width), stored)

    def rule(made: Expr, *bias: Expr) -> Expr:
        return between(call, bias[0] + made if bias else made)

    made = call.map(rule, sums, *float_bias(call, 2))
    call.define(call.reshape(made, _matrix_shape(call, units)))


def _dense_of_computed(call: Call) -> None:
    """Weights that are computed: a product of two matrices."""
    real = call.operand(0).dtype == "float32"
    x, weight = (call.tensor(i) if real else widened(call, i, "plain", "int32") for i in (0, 1))
    if len(weight.shape) != 2 or call.operand(1).scale.size > 1:
        raise call.refuse(f"expected a matrix with one scale, got {call.operand(1)}")
    total = _matrix_product(call, x, call.transpose(weight, (1, 0)))
    if not real:
        _emit_scaled(call, total, call.operand(1).scale)
        return
    rule = lambda x, *b: between(call, x + b[0] if b else x * 1.0)  # noqa: E731
    call.define(call.map(rule, total, *float_bias(call, 2)))


def _matrix_product(call: Call, x: Tensor, weight: Tensor) -> Tensor:
    """Rows times a weight [width, units], in the result's shape."""
    width, units = weight.shape
    total = call.emit(MatMul(), _rows_of(call, x, width), weight)
    return call.reshape(total, _matrix_shape(call, units))


def _emit_scaled(call: Call, total: Tensor, scales: np.ndarray) -> None:
    shape = (*[1] * (len(total.shape) - 1), total.shape[-1])
    emit_sum(call, total, scales, 2, shape, "plain")


# ---- products of matrices ------------------------------------------------------------------------


def _turned(call: Call, value: Tensor, option: str) -> Tensor:
    """Matrices, transposed if an option says so."""
    return swapped(call, value) if call.option(option) else value


def _batch_matmul(call: Call) -> None:
    real, dtype = call.operand(0).dtype == "float32", call.operand(0).dtype
    if is_hybrid(call):
        _hybrid_matrices(call)
        return
    wide = "int64" if dtype == "int16" else "int32"
    sides = [call.tensor(i) if real else widened(call, i, "plain", wide) for i in (0, 1)]
    total = call.emit(MatMul(), _turned(call, sides[0], "AdjX"), _turned(call, sides[1], "AdjY"))
    if real:
        call.define(total)
        return
    scale, shape = call.quant(call.operand(1))[0], (1,) * len(total.shape)
    emit_sum(call, total, np.array([scale]), len(call.operator.inputs), shape, "plain")


def _hybrid_matrices(call: Call) -> None:
    """A product of float matrices with int8 matrices of one scale; each row is quantised by its own
    range, as in a dense layer."""
    weight, scales = weight8(call, channel_axis=0)
    if weight.ndim < 2 or scales.size != 1:
        raise call.refuse(f"expected weights with one scale, got {call.operand(1)}")
    value = _turned(call, call.tensor(0), "AdjX")
    weight = weight.swapaxes(-1, -2) if call.option("AdjY") else weight
    call.define(products(call, value, stored_weight(call, weight, scales)))


#: Readers by operator and by the first operand's types.
READERS: Rows = {
    "BATCH_MATMUL": {"float32 int8 int16": _batch_matmul},
    "FULLY_CONNECTED": {"int8 uint8 float32": _dense, "int16": _dense16},
}
