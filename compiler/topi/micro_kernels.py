"""Tensor intrinsics of processors: what an instruction computes, declared as the accelerator's are.

``codegen/micro_kernels.py`` has their code; elsewhere they are the loops of their behaviour.
"""

from __future__ import annotations

from ..te.tensor import compute, placeholder, reduce_axis, sum_of
from ..tir.tensorize import TensorIntrin

#: int32 in a vector register of AVX-512, and products that are added to each at once.
DOT_LANES, DOT_WIDTH = 16, 4


def _dot() -> TensorIntrin:
    """``y[o] += sum over 4 k of x[k] * w[o, k]``: uint8 by int8, sums of int32."""
    x = placeholder((DOT_WIDTH,), "uint8", "x")
    w = placeholder((DOT_LANES, DOT_WIDTH), "int8", "w")
    k = reduce_axis(DOT_WIDTH, "k")
    product = compute(
        (DOT_LANES,), lambda o: sum_of(x[k].astype("int32") * w[o, k].astype("int32"), k), "y"
    )
    return TensorIntrin("vpdpbusd", product)


#: AVX-512 VNNI: https://www.felixcloutier.com/x86/vpdpbusd
VPDPBUSD = _dot()
