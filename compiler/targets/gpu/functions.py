"""Functions that kernels call: what C's operators do not do exactly as the expressions say.

Each function is written once, in the common part of CUDA C++ and OpenCL C. A kernel's text has only
those that it uses.

Functions such as ``exp_f32`` are polynomials of ours (``common/float_functions.py``), so that all
GPUs give the same bits, which are the processor's.
"""

from __future__ import annotations

import math
import re

import numpy as np

from ...te.expr import INT_DTYPES, Binary, Call, Const, Expr, Select, Var, bits_of
from ..common.float_functions import FUNCTIONS as FLOAT_FUNCTIONS
from ..common.float_functions import FloatFunction
from .warp_functions import WARP_FUNCTIONS

#: Names of types in kernels; a bool is stored as one byte.
TYPES = {"bool": "u8", "float32": "float", "float64": "double"} | {
    dtype: f"{dtype[0]}{bits_of(dtype)}" for dtype in INT_DTYPES
}
#: Floats of two bytes are stored as their bits.
TYPES |= {"float16": "u16", "bfloat16": "u16"}

_SCALE = """\
FUNCTION float scale_f32(float x, float n) {
  i32 k = (i32)(n > 300.0f ? 300.0f : (n > -300.0f ? n : -300.0f));  // not-a-number as -300
  i32 h = k / 2;
  return x * float_of((u32)(h + 127) << 23) * float_of((u32)(k - h + 127) << 23);
}
"""

_SCALED_DOWN = """\
FUNCTION float scaled_down(i32 x, float factor, float offset) {
  double product = (double)(float)x * (double)factor;  // exact
  double total = product + (double)offset;
  double added = total - product;
  double lost = (product - (total - added)) + ((double)offset - added);
  float nearest = (float)total;
  i32 raw = nearest == 0.0f ? (i32)0x80000000 : (i32)bits_of(nearest);
  i32 below = raw < 0 ? raw + 1 : raw - 1;
  return (double)nearest - total > lost ? float_of((u32)below) : nearest;
}
"""

_REQUANTIZE = """\
FUNCTION i64 requantize(i32 acc, i32 multiplier, i32 shift) {
  i64 product = (i64)acc * (i64)multiplier;
  i32 count = shift & 63;
  i64 middle = (i64)((((u64)1) << count) >> 1);
  i64 odd = (product >> count) & 1;
  i64 rounded = (product + middle - 1 + odd) >> count;
  return count == 0 ? product : rounded;
}
"""

_REQUANTIZE_TFLITE = """\
FUNCTION i64 requantize_tflite(i32 acc, i32 multiplier, i32 shift) {
  i32 left = shift < 0 ? -shift & 31 : 0;
  i32 right = shift < 0 ? 0 : shift & 31;
  i64 lifted = (i64)(i32)((u32)acc << left);
  i64 high = (lifted * (i64)multiplier + ((i64)1 << 30)) >> 31;
  high = high > 2147483647 ? 2147483647 : high;
  i64 mask = ((i64)1 << right) - 1;
  i64 threshold = (mask >> 1) + (high < 0 ? 1 : 0);
  return (high >> right) + ((high & mask) > threshold ? 1 : 0);
}
"""

_HALF_OF = """\
FUNCTION u16 float16_of(float x) {
  u32 bits = bits_of(x), sign = bits >> 16 & 0x8000u, m = bits & 0x7fffffffu;
  if (m > 0x7f800000u) return (u16)(sign | 0x7e00u);
  if (m >= 0x477ff000u) return (u16)(sign | 0x7c00u);
  if (m < 0x38800000u) return (u16)(sign | (u32)rint_f32(float_of(m) * 16777216.0f));
  return (u16)(sign | ((m - 0x38000000u + 0xfffu + (m >> 13 & 1u)) >> 13));
}
"""

_OF_HALF = """\
FUNCTION float of_float16(u16 x) {
  u32 m = x & 0x7fffu, sign = (u32)(x & 0x8000u) << 16;
  if (m < 0x400u) return float_of(sign | bits_of((float)m * 5.9604644775390625e-08f));
  return float_of(sign | (m >= 0x7c00u ? 0x7f800000u | m << 13 : (m << 13) + 0x38000000u));
}
"""

_BFLOAT_OF = """\
FUNCTION u16 bfloat16_of(float x) {
  u32 bits = bits_of(x);
  return (u16)(x != x ? bits >> 16 | 0x40u : (bits + 0x7fffu + (bits >> 16 & 1u)) >> 16);
}
"""

_OF_BFLOAT = """\
FUNCTION float of_bfloat16(u16 x) { return float_of((u32)x << 16); }
"""

_TO_INTEGER = """\
FUNCTION i64 to_i64_{s}({t} x) {{
  {t} rounded = rint_{s}(x);
  i64 low = (i64)((u64)1 << 63);
  return x != x ? 0 : (rounded >= {end} ? ~low : (rounded < -{end} ? low : (i64)rounded));
}}
"""

_SMALL = """\
FUNCTION i32 to_small_{s}({t} x) {{
  return x != x ? 0 : (i32)rint_{s}(x);
}}
"""


def _integer_functions(dtype: str) -> dict[str, str]:
    """Functions of an integer type, by name."""
    t, bits = TYPES[dtype], bits_of(dtype)
    wide = f"u{max(bits, 32)}"
    signed = dtype[0] == "i"
    fill = f"(a < 0 ? ({t})-1 : ({t})0)" if signed else f"({t})0"
    truncating = (
        f"b == ({t})-1 ? ({t})(({wide})0 - ({wide})a) : ({t})(a / b)" if signed else f"({t})(a / b)"
    )
    rest = f"b == ({t})-1 ? ({t})0 : ({t})(a % b)" if signed else f"({t})(a % b)"
    inside = f"({wide})b < {bits}u"
    bodies = {
        "min": "return b < a ? b : a;",
        "max": "return a < b ? b : a;",
        "shl": f"return {inside} ? ({t})(({wide})a << b) : ({t})0;",
        "shr": f"return {inside} ? ({t})(a >> b) : {fill};",
        "divide": f"return b == 0 ? ({t})0 : ({truncating});",
        "remainder": f"return b == 0 ? ({t})0 : ({rest});",
        "floor_div": f"{t} q = ({t})(a / b); return ({t})(q - (a % b < 0 ? 1 : 0));",
        "floor_mod": f"{t} r = ({t})(a % b); return ({t})(r < 0 ? r + b : r);",
    }
    return {
        f"{name}_{t}": f"FUNCTION {t} {name}_{t}({t} a, {t} b) {{ {body} }}\n"
        for name, body in bodies.items()
    }


def _float_functions(dtype: str) -> dict[str, str]:
    t, s = TYPES[dtype], f"f{dtype[5:]}"
    end = "9223372036854775808.0" + ("f" if s == "f32" else "")
    return {
        f"min_{s}": f"FUNCTION {t} min_{s}({t} a, {t} b) {{ return b < a ? b : a; }}\n",
        f"max_{s}": f"FUNCTION {t} max_{s}({t} a, {t} b) {{ return a < b ? b : a; }}\n",
        f"to_i64_{s}": _TO_INTEGER.format(s=s, t=t, end=end),
        f"to_small_{s}": _SMALL.format(s=s, t=t),
    }


_REINTERPRET = """\
FUNCTION {to} reinterpret_{to}({of} x) {{
  union {{ {of} before; {to} after; }} both;
  both.before = x;
  return both.after;
}}
"""


#: Text by name.
FUNCTIONS: dict[str, str] = {
    "scale_f32": _SCALE,
    "scaled_down": _SCALED_DOWN,
    "scaled_floor": "FUNCTION i32 scaled_floor(i32 x, float factor, float offset) "
    "{ return (i32)floor_f32(scaled_down(x, factor, offset)); }\n",
    "swizzled": "FUNCTION i32 swizzled(i32 place, i32 mask) "
    "{ return place ^ (place >> 3 & mask); }\n",
    "float16_of": _HALF_OF,
    "of_float16": _OF_HALF,
    "bfloat16_of": _BFLOAT_OF,
    "of_bfloat16": _OF_BFLOAT,
    "requantize": _REQUANTIZE,
    "requantize_tflite": _REQUANTIZE_TFLITE,
}
for _of, _to in (("float", "i32"), ("i32", "float"), ("double", "i64"), ("i64", "double")):
    FUNCTIONS[f"reinterpret_{_to}"] = _REINTERPRET.format(of=_of, to=_to)
for _dtype in INT_DTYPES:
    FUNCTIONS |= _integer_functions(_dtype)
for _dtype in ("float32", "float64"):
    FUNCTIONS |= _float_functions(_dtype)

FUNCTIONS |= WARP_FUNCTIONS


# ---- functions of floats -------------------------------------------------------------------------

_C_NAMES = {"round": "rint"}


def _function_text(function: FloatFunction) -> str:
    lines = [f"FUNCTION float {function.name}_f32(float {function.x.name}) {{"]
    lines += [f"  float {step.name} = {_c_text(value)};" for step, value in function.steps]
    return "\n".join((*lines, f"  return {_c_text(function.result)};", "}", ""))


def _c_text(expr: Expr) -> str:
    match expr:
        case Var(name):
            return name
        case Const(value):
            return "float_of(0x7f800000u)" if value == math.inf else f"{np.float32(value)!s}f"
        case Binary("max", a, b):
            return f"max_f32({_c_text(a)}, {_c_text(b)})"
        case Binary(op, a, b):
            return f"{_c_operand(a)} {op} {_c_operand(b)}"
        case Select(cond, a, b):
            return f"{_c_text(cond)} ? {_c_operand(a)} : {_c_operand(b)}"
        case Call(name, args):
            return f"{_C_NAMES.get(name, name)}_f32({', '.join(map(_c_text, args))})"
    raise TypeError(f"expected an expression of float32, got {expr!r}")


def _c_operand(expr: Expr) -> str:
    text = _c_text(expr)
    return f"({text})" if isinstance(expr, Binary | Select) else text


FUNCTIONS |= {f"{name}_f32": _function_text(f) for name, f in FLOAT_FUNCTIONS.items()}

#: Words that a name in a kernel cannot be, in C, C++ or OpenCL C.
_RESERVED = """\
auto bool break case char class const constant continue default delete do double else enum extern
false float for friend global goto half if image1d_t image2d_t image3d_t inline int kernel local
long namespace new operator pipe private protected public register restrict return sampler_t short
signed sizeof static struct switch template this throw true try typedef union uniform unsigned using
virtual void volatile wchar_t while popcount_32 popcount_64 float_of bits_of FUNCTION threadIdx
blockIdx blockDim gridDim bx by bz tx ty tz"""
RESERVED = frozenset(_RESERVED.split())


def is_taken(name: str) -> bool:
    """Whether a name means something else in the text of kernels."""
    ours = name in RESERVED or name in FUNCTIONS or name in TYPES.values()
    return ours or name.endswith(("_f32", "_f64"))


_NAME = re.compile(r"\b[a-z]\w*(?=\()")


def functions_for(text: str) -> str:
    """The functions that a text calls, directly or not, each after those that it calls."""
    found: dict[str, None] = {}

    def visit(caller: str, inside: str) -> None:
        for name in _NAME.findall(inside):
            if name in FUNCTIONS and name not in found and name != caller:
                visit(name, FUNCTIONS[name])
                found.setdefault(name)

    visit("", text)
    return "".join(FUNCTIONS[name] for name in found)
