"""Operators that ONNX Runtime's optimiser writes into files: each is some of ONNX's in one.

They belong to the domain ``com.microsoft``, but for ``SimplifiedLayerNormalization``, which ONNX
Runtime adds to ONNX's own domain.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import Any

import numpy as np

from ....graph.ir import Tensor
from ....te.expr import Expr, maximum, minimum
from .call import Call, Outputs, Reader, standard
from .elementwise import READERS as ELEMENTWISE
from .elementwise import function, hard_sigmoid, leaky_relu, logistic, number
from .linear import READERS as LINEAR
from .reduction import READERS as REDUCTION
from .spatial import READERS as SPATIAL

#: The operator set whose readers are called.
_OPSET = 23
_STANDARD = ELEMENTWISE | LINEAR | REDUCTION | SPATIAL
_apply = partial(standard, _STANDARD, _OPSET)
#: Activations by name: the rule, and the values of its numbers where they are absent.
_ACTIVATIONS: dict[str, tuple[Callable[..., Expr], tuple[float, ...]]] = {
    "": (lambda x: x, ()),
    "Clip": (
        lambda x, low, high: minimum(maximum(x, number(low, x)), number(high, x)),
        (float(np.finfo(np.float32).min), float(np.finfo(np.float32).max)),
    ),
    "HardSigmoid": (hard_sigmoid, (0.2, 0.5)),
    "LeakyRelu": (leaky_relu, (0.01,)),
    "Relu": (lambda x: maximum(x, number(0, x)), ()),
    "Sigmoid": (logistic, ()),
    "Tanh": (lambda x: function("tanh", x), ()),
}


def _activated(call: Call, x: Tensor, numbers: list[float]) -> Tensor:
    """The activation that the node names; ``numbers`` come before the usual ones."""
    name = call.text("activation", "")
    if name not in _ACTIVATIONS:
        raise call.refuse(f"expected an activation of {', '.join(_ACTIVATIONS)}, got {name!r}")
    rule, usual = _ACTIVATIONS[name]
    given = (*numbers, *usual[len(numbers) :])[: len(usual)]
    return x if not name else call.map(lambda v: rule(v, *given), x, label=name)


def _others(call: Call, *own: str) -> dict[str, Any]:
    """The attributes that are ONNX's."""
    return {name: value for name, value in call.attributes.items() if name not in own}


def _conv(call: Call) -> Outputs:
    """A convolution, a sum with a fourth operand, an activation."""
    others = _others(call, "activation", "activation_params")
    y = _apply(call, "Conv", call.operand(0), call.operand(1), call.optional(2), **others)
    addend = call.optional(3)
    if addend is not None:
        y = _apply(call, "Add", y, addend)
    return _activated(call, y, [float(v) for v in call.attributes.get("activation_params", ())])


def _gemm(call: Call) -> Outputs:
    names = ("activation_alpha", "activation_beta", "activation_gamma")
    others = _others(call, "activation", *names)
    y = _apply(call, "Gemm", call.operand(0), call.operand(1), call.optional(2), **others)
    return _activated(call, y, [call.number(n, 0) for n in names if n in call.attributes])


def _matmul(call: Call) -> Outputs:
    """A product of matrices, transposed before it, times a number. A batch that is transposed, too,
    has its matrices' rows first."""
    operands = []
    for position, side in enumerate("AB"):
        x = call.operand(position)
        order = list(range(len(x.shape)))
        if call.integer(f"transBatch{side}", 0) and len(order) > 2:
            order.insert(len(order) - 2, order.pop(0))
        if call.integer(f"trans{side}", 0) and len(order) > 1:
            order[-2:] = order[:-3:-1]
        operands.append(call.transpose(x, tuple(order)))
    alpha = call.number("alpha", 1.0)
    y = _apply(call, "MatMul", *operands)
    return y if alpha == 1 else call.map(lambda v: v * number(alpha, v), y, label="Alpha")


def _gelu(approximate: str, call: Call) -> Outputs:
    """GELU of the first operand and a bias, if there is one."""
    x, bias = call.operand(0), call.optional(1)
    x = x if bias is None else _apply(call, "Add", x, bias)
    return _apply(call, "Gelu", x, approximate=approximate.encode())


def _quick_gelu(call: Call) -> Outputs:
    alpha = call.number("alpha", 1.702)
    return call.map(lambda x: x * logistic(x * number(alpha, x)), call.operand(0))


def _skip_norm(kind: str, bias_at: int, call: Call) -> Outputs:
    """The norm of a sum of two tensors and a bias; the fourth result is that sum."""
    total, bias = _apply(call, "Add", call.operand(0), call.operand(1)), call.optional(bias_at)
    total = total if bias is None else _apply(call, "Add", total, bias)
    scale = [call.operand(2), *([call.optional(3)] if bias_at == 4 else [])]
    epsilon = call.number("epsilon", 1e-12)
    return _apply(call, kind, total, *scale, axis=-1, epsilon=epsilon), None, None, total


def _simplified_norm(call: Call) -> Outputs:
    axis, epsilon = call.integer("axis", -1), call.number("epsilon", 1e-5)
    operands = call.operand(0), call.operand(1)
    return _apply(call, "RMSNormalization", *operands, axis=axis, epsilon=epsilon)


READERS: dict[str, Reader] = {"SimplifiedLayerNormalization": _simplified_norm}
#: Of the domain ``com.microsoft``.
OWN_READERS: dict[str, Reader] = {
    "BiasGelu": partial(_gelu, "none"),
    "FastGelu": partial(_gelu, "tanh"),
    "FusedConv": _conv,
    "FusedGemm": _gemm,
    "FusedMatMul": _matmul,
    "Gelu": partial(_gelu, "none"),
    "QuickGelu": _quick_gelu,
    "SkipLayerNormalization": partial(_skip_norm, "LayerNormalization", 4),
    "SkipSimplifiedLayerNormalization": partial(_skip_norm, "RMSNormalization", 3),
}
