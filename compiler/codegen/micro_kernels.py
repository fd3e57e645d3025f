"""LLVM code of tensor intrinsics that a processor has instructions for."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from llvmlite import ir

from ..tir.tensorize import TensorIntrin
from ..topi.micro_kernels import DOT_LANES, DOT_WIDTH, VPDPBUSD
from .llvm_vector import splat
from .machine import Processor

#: Objects of llvmlite, whose annotations are not those of its code.
Value = Any

_I32 = ir.IntType(32)
_SUMS = ir.VectorType(_I32, DOT_LANES)
_BYTES = ir.VectorType(ir.IntType(8), DOT_LANES * DOT_WIDTH)


@dataclass(frozen=True)
class MicroKernel:
    """``feature`` is what the processor must have, in LLVM's words; ``emit`` takes a builder and
    the addresses of output and inputs: of none to set the output to the neutral element."""

    feature: str
    emit: Callable[..., None]


def _vpdpbusd(builder: Value, y: Value, *inputs: Value) -> None:
    if not inputs:
        builder.store(ir.Constant(_SUMS, None), y, align=4)
        return
    x, w = inputs
    element = splat(builder, builder.load(x, align=1, typ=_I32), DOT_LANES)
    name = "llvm.x86.avx512.vpdpbusd.512"
    callee = builder.module.globals.get(name)
    if callee is None:
        callee = ir.Function(builder.module, ir.FunctionType(_SUMS, [_SUMS, _BYTES, _BYTES]), name)
    operands = (
        builder.load(y, align=4, typ=_SUMS),
        builder.bitcast(element, _BYTES),
        builder.load(w, align=1, typ=_BYTES),
    )
    builder.store(builder.call(callee, operands), y, align=4)


MICRO_KERNELS: dict[TensorIntrin, MicroKernel] = {VPDPBUSD: MicroKernel("avx512vnni", _vpdpbusd)}


def native_intrinsics(processor: Processor) -> frozenset[TensorIntrin]:
    """The intrinsics that are instructions of a processor."""
    found = (i for i, kernel in MICRO_KERNELS.items() if processor.has(kernel.feature))
    return frozenset(found)
