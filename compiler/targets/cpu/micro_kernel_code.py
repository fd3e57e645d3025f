"""LLVM code of the tensor intrinsics for which a processor has instructions."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from llvmlite import ir

from ...te.intrinsic import TensorIntrin
from .llvm_vector import splat
from .micro_kernels import DOT, DOT_EACH, DOT_LANES, DOT_WIDTH
from .processor import Processor

#: Objects of llvmlite, whose type annotations do not agree with its code.
Value = Any

_I32 = ir.IntType(32)
_SUMS = ir.VectorType(_I32, DOT_LANES)
_BYTES = ir.VectorType(ir.IntType(8), DOT_LANES * DOT_WIDTH)


@dataclass(frozen=True)
class MicroKernel:
    """``feature`` is LLVM's name of the feature that the processor must have; ``emit`` takes a
    builder and the addresses of output and inputs."""

    feature: str
    emit: Callable[..., None]


def add_products(builder: Value, sums: Value, x: Value, w: Value) -> Value:
    """Add the products of four uint8 in ``x`` and four int8 in ``w`` to each lane of ``sums``."""
    name = "llvm.x86.avx512.vpdpbusd.512"
    callee = builder.module.globals.get(name)
    if callee is None:
        callee = ir.Function(builder.module, ir.FunctionType(_SUMS, [_SUMS, _BYTES, _BYTES]), name)
    return builder.call(callee, [sums, x, w])


def _update(builder: Value, y: Value, x: Value, w: Value) -> None:
    sums, weights = builder.load(y, align=4, typ=_SUMS), builder.load(w, align=1, typ=_BYTES)
    builder.store(add_products(builder, sums, x, weights), y, align=4)


def _dot(builder: Value, y: Value, x: Value, w: Value) -> None:
    """All lanes use the same four bytes of ``x``."""
    element = splat(builder, builder.load(x, align=1, typ=_I32), DOT_LANES)
    _update(builder, y, builder.bitcast(element, _BYTES), w)


def _dot_each(builder: Value, y: Value, x: Value, w: Value) -> None:
    """Each lane uses four bytes of its own: ``x`` is transposed from four places of 16 channels to
    16 channels of four places.
    """
    places = builder.load(x, align=1, typ=_BYTES)
    order = [k * DOT_LANES + o for o in range(DOT_LANES) for k in range(DOT_WIDTH)]
    indices = ir.Constant(ir.VectorType(_I32, len(order)), order)
    _update(builder, y, builder.shuffle_vector(places, places, indices), w)


def emit(builder: Value, intrinsic: TensorIntrin, y: Value, *inputs: Value) -> None:
    """The code of an intrinsic on its operands' addresses; without inputs it sets ``y`` to the
    neutral element."""
    if inputs:
        MICRO_KERNELS[intrinsic].emit(builder, y, *inputs)
    else:
        builder.store(ir.Constant(_SUMS, None), y, align=4)


MICRO_KERNELS: dict[TensorIntrin, MicroKernel] = {
    DOT: MicroKernel("avx512vnni", _dot),
    DOT_EACH: MicroKernel("avx512vnni", _dot_each),
}


def native_intrinsics(processor: Processor) -> frozenset[TensorIntrin]:
    """The intrinsics that are instructions of a processor."""
    found = (i for i, kernel in MICRO_KERNELS.items() if processor.has(kernel.feature))
    return frozenset(found)
