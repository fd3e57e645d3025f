"""Operators of the domain ``com.microsoft`` that ONNX Runtime's quantiser writes.

``QLinear<Operator>`` is the operator between DequantizeLinear and QuantizeLinear. It is read as
these three nodes, which passes fuse again.
"""

from __future__ import annotations

from collections.abc import Mapping
from functools import partial
from typing import Any

import numpy as np

from ....graph.ir import Tensor
from .call import Call, Outputs, Reader, standard
from .elementwise import READERS as ELEMENTWISE
from .elementwise import number
from .linear import READERS as LINEAR
from .quantized import READERS as QUANTIZED
from .recurrent import dynamic_quantize_lstm
from .reduction import READERS as REDUCTION
from .shape import READERS as SHAPE
from .spatial import READERS as SPATIAL

#: The operator set whose readers are called.
OPSET = 13
STANDARD = ELEMENTWISE | LINEAR | QUANTIZED | REDUCTION | SHAPE | SPATIAL
_apply = partial(standard, STANDARD, OPSET)


def _real(call: Call, first: int, axis: int = 1) -> Tensor:
    """Operand ``first`` as floats; its scale and zero point are the two operands after it."""
    x, scale, zero = call.operand(first), call.operand(first + 1), call.optional(first + 2)
    return _apply(call, "DequantizeLinear", x, scale, zero, axis=axis)


def _stored(call: Call, y: Tensor, first: int) -> Tensor:
    """Quantise floats by the scale and zero point in operands ``first`` and ``first + 1``."""
    return _apply(call, "QuantizeLinear", y, call.operand(first), call.optional(first + 1))


def _binary(kind: str) -> Reader:
    return lambda call: _stored(call, _apply(call, kind, _real(call, 0), _real(call, 3)), 6)


def _unary(kind: str, call: Call, *, names: Mapping[str, Any] | None = None) -> Outputs:
    """Keeps the attributes in ``names``, which gives the value of each where it is absent."""
    call.only(channels_last=0)
    kept = {name: call.attributes.get(name, value) for name, value in (names or {}).items()}
    kept = {name: value for name, value in kept.items() if value is not None}
    return _stored(call, _apply(call, kind, _real(call, 0), **kept), 3)


def _softmax(call: Call) -> Outputs:
    x = _real(call, 0)
    if call.integer("opset", OPSET) < 13:
        rank = len(x.shape)
        axis = call.axis(call.integer("axis", 1), rank)
        rows = int(np.prod(x.shape[:axis]))
        flat = call.reshape(x, (rows, int(np.prod(x.shape[axis:]))))
        y = call.reshape(_apply(call, "Softmax", flat, axis=1), x.shape)
    else:
        y = _apply(call, "Softmax", x, axis=call.integer("axis", -1))
    return _stored(call, y, 3)


def _concat(call: Call) -> Outputs:
    """The result's scale and zero point come first, then three operands for each part."""
    parts = [_real(call, first) for first in range(2, len(call.operands), 3)]
    y = _apply(call, "Concat", *parts, axis=call.integer("axis", 0))
    return _stored(call, y, 0)


def _where(call: Call) -> Outputs:
    y = _apply(call, "Where", call.operand(0), _real(call, 1), _real(call, 4))
    return _stored(call, y, 7)


def _gemm(call: Call) -> Outputs:
    """The bias is int32 in units of both scales and alpha, which multiplies it, too; without a
    result's scale the result is float."""
    trans_a, trans_b = call.integer("transA", 0), call.integer("transB", 0)
    alpha = call.number("alpha", 1.0)
    operands = [_real(call, 0), _real(call, 3, axis=0 if trans_b else 1)]
    bias = call.optional(6)
    if bias is not None:
        factors = (call.operand(1), call.operand(4))
        scales = call.map(lambda a, b: a * b * number(alpha, a), *factors, label="Mul")
        if scales.shape == (1,):
            scales = call.reshape(scales, ())
        operands.append(_apply(call, "DequantizeLinear", bias, scales, axis=0))
    attributes = {"transA": trans_a, "transB": trans_b, "alpha": alpha}
    y = _apply(call, "Gemm", *operands, **attributes)
    return y if call.optional(7) is None else _stored(call, y, 7)


READERS: dict[str, Reader] = {
    "DequantizeLinear": QUANTIZED["DequantizeLinear"],
    "DynamicQuantizeLSTM": dynamic_quantize_lstm,
    "QGemm": _gemm,
    "QLinearAdd": _binary("Add"),
    "QLinearAveragePool": partial(
        _unary,
        "AveragePool",
        names=dict.fromkeys(
            ("auto_pad", "ceil_mode", "count_include_pad", "kernel_shape", "pads", "strides")
        ),
    ),
    "QLinearConcat": _concat,
    "QLinearGlobalAveragePool": partial(_unary, "GlobalAveragePool"),
    "QLinearLeakyRelu": partial(_unary, "LeakyRelu", names={"alpha": 0.01}),
    "QLinearMul": _binary("Mul"),
    "QLinearReduceMean": partial(_unary, "ReduceMean", names={"axes": None, "keepdims": 1}),
    "QLinearSigmoid": partial(_unary, "Sigmoid"),
    "QLinearSoftmax": _softmax,
    "QLinearWhere": _where,
    "QuantizeLinear": QUANTIZED["QuantizeLinear"],
}
