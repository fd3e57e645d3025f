"""Readers of TensorFlow Lite operators on float32 tensors."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np

from ...graph.ir import Tensor
from ...graph.ops.convolution import Conv2d
from ...graph.ops.elementwise import Add, Map
from ...graph.ops.linear import Dense
from ...graph.ops.pooling import AvgPool, MaxPool
from ...te.expr import Call as Function
from ...te.expr import Expr, Var, maximum, minimum
from .elementwise import elementwise_layout
from .geometry import activation, dense_operands, emit_matrix, image_shape, window, window_geometry
from .graph import Call


def _bias(call: Call, position: int) -> tuple[Tensor, ...]:
    """The name of the bias, if there is one."""
    tensor = call.optional(position)
    if tensor is None:
        return ()
    data = call.constant(position, "bias").reshape(-1)
    return (call.importer.constant(call.importer.label(tensor), data),)


def _weight(call: Call) -> np.ndarray:
    data = call.constant(1, "weight")
    if data.dtype != np.float32:
        raise call.refuse(f"supported weights of a float operator are float32, got {data.dtype}")
    return data


def _conv(call: Call, depthwise: bool = False) -> None:
    channels, weight = image_shape(call)[3], _weight(call)
    if weight.ndim != 4:
        raise call.refuse(f"expected a weight of 4 dimensions, got {list(weight.shape)}")
    weight = weight.transpose((3, 0, 1, 2) if depthwise else (0, 3, 1, 2))
    strides, pads, dilations = window_geometry(call, (weight.shape[2], weight.shape[3]))
    groups = channels // weight.shape[1]
    op = Conv2d(strides, pads, dilations, groups, *activation(call))
    stored = call.importer.constant(f"{call.importer.label(call.operand(1))}.oihw", weight)
    call.define(call.emit(op, call.tensor(0, "nchw"), stored, *_bias(call, 2)), "nchw")


def _dense(call: Call) -> None:
    operands = dense_operands(call, _weight(call))
    emit_matrix(call, Dense(True, *activation(call)), *operands, *_bias(call, 2))


def _add(call: Call) -> None:
    layout = elementwise_layout(call, (0, 1))
    operands = (call.tensor(0, layout), call.tensor(1, layout))
    call.define(call.emit(Add(*activation(call)), *operands), layout)


def _pool(call: Call, kind: type[AvgPool] | type[MaxPool]) -> None:
    lo, hi = activation(call)
    op = kind(*window(call), lo=lo, hi=hi)
    call.define(call.emit(op, call.tensor(0, "nchw")), "nchw")


def _softmax(call: Call) -> None:
    """exp(beta * (x - max)) over their sum, along the last axis."""
    source, beta = call.tensor(0), float(call.option("Beta"))
    axes = (len(source.shape) - 1,)
    most = call.reduce("max", source, axes)
    powers = call.map(lambda a, b: function("exp", (a - b) * beta), source, most)
    call.define(call.map(lambda a, b: a / b, powers, call.reduce("+", powers, axes)))


def _unary(label: str, body: Callable[[Expr], Expr]) -> Callable[[Call], None]:
    def read(call: Call) -> None:
        layout, x = elementwise_layout(call, (0,)), Var("x", "float32")
        call.define(call.emit(Map(label, (x,), body(x)), call.tensor(0, layout)), layout)

    return read


def function(name: str, x: Expr) -> Expr:
    return Function(name, (x,), "float32")


#: One row per operator that has a float32 form.
READERS: dict[str, Callable[[Call], None]] = {
    "ADD": _add,
    "AVERAGE_POOL_2D": lambda call: _pool(call, AvgPool),
    "CONV_2D": _conv,
    "DEPTHWISE_CONV_2D": lambda call: _conv(call, depthwise=True),
    "FULLY_CONNECTED": _dense,
    "LOGISTIC": _unary("Logistic", lambda x: 1.0 / (function("exp", 0.0 - x) + 1.0)),
    "MAX_POOL_2D": lambda call: _pool(call, MaxPool),
    "RELU": _unary("Relu", lambda x: maximum(x, 0.0)),
    "RELU6": _unary("Relu6", lambda x: minimum(maximum(x, 0.0), 6.0)),
    "SOFTMAX": _softmax,
    "TANH": _unary("Tanh", lambda x: function("tanh", x)),
}
