"""float32 rounded to float16 or bfloat16, half to even, by arithmetic on its bits: every processor
has that, and conversions of its own only some."""

from __future__ import annotations

from typing import Any

from llvmlite import ir

#: Objects of llvmlite, whose type annotations do not agree with its code.
Value = Any

_I32, _FLOAT = ir.IntType(32), ir.FloatType()
#: Bits that are rounded off.
_DROPPED = {"float16": 13, "bfloat16": 16}
_SIGN, _INFINITY = 1 << 31, 0x7F800000
#: Bits of the least normal float16, 2**-14, and of the number above the largest, 2**16.
_NORMAL, _ABOVE = 113 << 23, 143 << 23


def rounded_to(builder: ir.IRBuilder, value: Value, half: str) -> Value:
    """A float32 that is rounded to a half type."""
    bits = builder.bitcast(value, _I32)
    sign, magnitude = builder.and_(bits, _I32(_SIGN)), builder.and_(bits, _I32(_SIGN - 1))
    count = _DROPPED[half]
    odd = builder.and_(builder.lshr(magnitude, _I32(count)), _I32(1))
    nudged = builder.add(builder.add(magnitude, _I32((1 << (count - 1)) - 1)), odd)
    near = builder.and_(nudged, _I32(-(1 << count)))
    if half == "float16":
        beyond = builder.icmp_unsigned(">=", near, _I32(_ABOVE))
        near = builder.select(beyond, _I32(_INFINITY), near)
        # Below, the sum with 0.5 has the float16's last place as its own.
        positive = builder.bitcast(magnitude, _FLOAT)
        lifted = builder.fsub(builder.fadd(positive, _FLOAT(0.5)), _FLOAT(0.5))
        small = builder.icmp_unsigned("<", magnitude, _I32(_NORMAL))
        near = builder.select(small, builder.bitcast(lifted, _I32), near)
    is_number = builder.icmp_unsigned("<=", magnitude, _I32(_INFINITY))
    kept = builder.select(is_number, near, magnitude)
    return builder.bitcast(builder.or_(kept, sign), _FLOAT)
