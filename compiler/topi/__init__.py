"""Operators as tensor expressions: what each element of a result is, never how it is computed.

Every function takes tensors of ``vdla.te`` and returns one. Operators of the graph
(``graph/ops``) are written with these, and so may be schedules of your own::

    x, w = te.placeholder((8, 16), "int8", "x"), te.placeholder((32, 16), "int8", "w")
    acc = topi.dense(topi.cast(x, "int32"), topi.cast(w, "int32"), transposed=True)
"""

from __future__ import annotations

from .convolution import convolution, convolution_transpose
from .elements import broadcast_shapes, cast, clip_between, element, elementwise, merged_axes, over
from .linear import dense, matmul
from .movement import (
    concat,
    gather,
    gather_elements,
    interpolate,
    pad,
    reshape,
    strided_slice,
    transpose,
)
from .pooling import pool, pool_places
from .quantisation import dequantize, quantize, requantize, rescale
from .reduction import arg_reduce, reduce
from .windows import bordered, positions, window_counts

__all__ = [
    "arg_reduce", "bordered", "broadcast_shapes", "cast", "clip_between", "concat", "convolution",
    "convolution_transpose", "dense", "dequantize", "element", "elementwise", "gather",
    "gather_elements", "interpolate", "matmul", "merged_axes", "over", "pad", "pool", "pool_places",
    "positions", "quantize", "reduce", "requantize", "rescale", "reshape", "strided_slice",
    "transpose", "window_counts",
]  # fmt: skip
