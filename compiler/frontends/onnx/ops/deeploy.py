"""Operators of Deeploy (github.com/pulp-platform/Deeploy) and QuantLib: integers, which their files
often hold as floats.
"""

from __future__ import annotations

import onnx
from onnx import numpy_helper

from ....graph.ir import Tensor
from ....te.expr import FLOAT_DTYPES, Expr, maximum, minimum
from ....te.expr import Call as FunctionCall
from .call import Call, Outputs, Reader
from .elementwise import converted, function
from .reduction import READERS as REDUCTION


def _setting(call: Call, name: str) -> int:
    """An attribute that is a whole number, or a tensor with one."""
    found = call.attributes.get(name)
    if isinstance(found, onnx.TensorProto):
        array = numpy_helper.to_array(found)
        found = array.item() if array.size == 1 else None
    if not isinstance(found, int | float) or found % 1 != 0:
        raise call.refuse(f"expected a whole number {name}, got {found!r:.40}")
    return int(found)


def _shift(call: Call, name: str) -> int:
    """The power of two of an attribute that divides."""
    divisor = _setting(call, name)
    if divisor < 1 or divisor & (divisor - 1):
        raise call.refuse(f"expected a power of two as {name}, got {divisor}")
    return divisor.bit_length() - 1


def _whole(call: Call, x: Tensor) -> Tensor:
    return call.map(converted("int64"), x, label="Cast")


def _along_channels(call: Call, position: int, name: str, x: Tensor) -> Tensor:
    """Factors or addends: an operand or, in old files, an attribute. A list has one for each
    element of axis 1 or, where that has another size, of the last axis."""
    stored = call.attributes.get(name)
    if isinstance(stored, onnx.TensorProto):
        values = call.value(numpy_helper.to_array(stored))
    else:
        values = call.operand(position)
    if len(values.shape) == 1 and len(x.shape) > 1 and values.shape[0] == x.shape[1]:
        values = call.reshape(values, (values.shape[0], *[1] * (len(x.shape) - 2)))
    return _whole(call, values)


def _requant_shift(call: Call) -> Outputs:
    """``clamp((x * mul + add + div / 2) >> log2(div))``, in the type of ``x`` if that is float."""
    x, shift = call.operand(0), _shift(call, "div")
    levels = _setting(call, "n_levels" if "n_levels" in call.attributes else "n_levels_out")
    signed = bool(_setting(call, "signed"))
    low, high = (-(levels // 2), levels // 2 - 1) if signed else (0, levels - 1)
    bits = 8 if levels <= 1 << 8 else 16 if levels <= 1 << 16 else 32
    dtype = x.dtype if x.dtype in FLOAT_DTYPES else f"{'' if signed else 'u'}int{bits}"

    def rule(v: Expr, mul: Expr, add: Expr) -> Expr:
        total = v * mul + add
        total = (total + (1 << (shift - 1))) >> shift if shift else total
        return minimum(maximum(total, low), high).astype(dtype)

    factors = [_along_channels(call, i, name, x) for i, name in ((1, "mul"), (2, "add"))]
    return call.map(rule, _whole(call, x), *factors)


def _rms_norm(call: Call) -> Outputs:
    """With the attribute ``D`` integers of 8 bits: rows times a weight, over the root of the mean
    square plus 1, over D; roots and quotients lose their fractions. Else ONNX's own, of floats."""
    if "D" not in call.attributes:
        epsilon = call.number("eps", call.number("epsilon", 1e-6))
        call.attributes["epsilon"] = epsilon
        return REDUCTION["RMSNormalization"](call)
    x, shift = call.operand(0), _shift(call, "D")
    rows, weight = _whole(call, x), _whole(call, call.operand(1))
    width = x.shape[-1]
    total = call.reduce("+", call.map(lambda v: v * v, rows), (len(x.shape) - 1,))

    def root(v: Expr) -> Expr:
        mean = FunctionCall("divide", (v, v * 0 + width), "int64") + 1
        return function("floor", function("sqrt", mean.astype("float64"))).astype("int64")

    def rule(v: Expr, w: Expr, r: Expr) -> Expr:
        made = FunctionCall("divide", (v * w, r), "int64") >> shift
        return minimum(maximum(made, -128), 127).astype(dtype)

    dtype = x.dtype if x.dtype in FLOAT_DTYPES else "int8"
    return call.map(rule, rows, weight, call.map(root, total))


READERS: dict[str, Reader] = {
    "RMSNorm": _rms_norm,
    "RequantShift": _requant_shift,
    "iRMSNorm": _rms_norm,
}
