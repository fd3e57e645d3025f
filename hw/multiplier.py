"""A multiplier array for FPGAs: as many bits as there are, and a balanced tree of adders."""

from __future__ import annotations

from amaranth.hdl import Module, Signal, signed

from ..isa.params import HwParams


def multiply_narrow(m: Module, params: HwParams, x: Signal, w: Signal) -> list[Signal]:
    """What ``gemm.multiply`` computes, in as many cycles."""
    sums = []
    size = params.block_in
    for b in range(params.batch):
        for o in range(params.block_out):
            terms = []
            for i in range(size):
                left = x[8 * (b * size + i) :][:8].as_signed()
                right = w[8 * (o * size + i) :][:8].as_signed()
                product = Signal(signed(16), name=f"product_{b}_{o}_{i}", reset_less=True)
                m.d.sync += product.eq(left * right)
                terms.append(product)
            while len(terms) > 1:
                terms = [low + high for low, high in zip(terms[::2], terms[1::2], strict=True)]
            total = Signal(signed(16 + size.bit_length()), name=f"sum_{b}_{o}", reset_less=True)
            m.d.sync += total.eq(terms[0])
            sums.append(total)
    return sums
