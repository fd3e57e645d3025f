"""Tensor intrinsics of processors: what an instruction computes, declared as the accelerator's are.

``micro_kernel_code.py`` has their code. On other processors they become loops that do the same.
"""

from __future__ import annotations

from ...te.expr import Expr
from ...te.intrinsic import TensorIntrin
from ...te.tensor import compute, placeholder, reduce_axis, sum_of

#: int32 in a vector register of AVX-512, and products that are added to each at once.
DOT_LANES, DOT_WIDTH = 16, 4


def _dot(name: str, each: bool) -> TensorIntrin:
    """``y[o] += sum over 4 k of x[k] * w[o, k]``, uint8 by int8; ``x[k, o]`` where ``each`` lane
    has elements of its own."""
    x = placeholder((DOT_WIDTH, DOT_LANES) if each else (DOT_WIDTH,), "uint8", "x")
    w = placeholder((DOT_LANES, DOT_WIDTH), "int8", "w")
    k = reduce_axis(DOT_WIDTH, "k")

    def rule(o: Expr) -> Expr:
        element = x[k, o] if each else x[k]
        return sum_of(element.astype("int32") * w[o, k].astype("int32"), k)

    return TensorIntrin(name, compute((DOT_LANES,), rule, "y"))


#: AVX-512 VNNI, https://www.felixcloutier.com/x86/vpdpbusd: on four channels that all outputs read,
#: and on four places of 16 channels each by itself.
DOT = _dot("dot", each=False)
DOT_EACH = _dot("dot_each", each=True)
