"""Multiplier arrays for FPGAs: as many bits as there are, balanced trees of adders. They compute
what ``gemm.multiply`` computes, in as many cycles.
"""

from __future__ import annotations

from amaranth.hdl import Cat, Const, Module, Signal, signed

from ..isa.params import HwParams
from .gemm import Multiplier

#: Where the second operand of a packed multiplication begins: 18 bits hold both.
SPACING = 9
#: Bits by which the lower of two packed products reaches into the upper one.
OVERLAP = 16 - SPACING


#: Products a cycle up to which every one has a multiplier of its own.
_OWN = 64


def fpga_multiplier(params: HwParams) -> Multiplier:
    """The array for a configuration: packed where multipliers run short."""
    return multiply_narrow if params.peak_macs_per_cycle <= _OWN else multiply_packed


def multiply_narrow(m: Module, params: HwParams, x: Signal, w: Signal) -> list[Signal]:
    """A multiplier for every product."""
    sums = []
    for b in range(params.batch):
        for o in range(params.block_out):
            terms = []
            for i in range(params.block_in):
                product = Signal(signed(16), name=f"product_{b}_{o}_{i}", reset_less=True)
                m.d.sync += product.eq(_activation(params, x, b, i) * _weight(params, w, o, i))
                terms.append(product)
            sums.append(_sum(m, params, terms, f"sum_{b}_{o}"))
    return sums


def multiply_packed(m: Module, params: HwParams, x: Signal, w: Signal) -> list[Signal]:
    """An 18 x 18 bit multiplier for every two products of one activation.

    ``a * (w1 * 2**9 + w0)`` is ``a * w0`` plus 2**9 times ``a * w1``. The lowest bits of this,
    which lookup tables compute once more, tell what the lower product added to them.
    """
    sums = []
    for b in range(params.batch):
        for o in range(0, params.block_out, 2):
            low_terms, high_terms = [], []
            for i in range(params.block_in):
                name = f"{b}_{o}_{i}"
                a, w0, w1 = (
                    _activation(params, x, b, i),
                    _weight(params, w, o, i),
                    _weight(params, w, o + 1, i),
                )
                both = Signal(signed(18), name=f"both_{name}")
                product = Signal(signed(26), name=f"product_{name}", reset_less=True)
                again = Signal(OVERLAP, name=f"again_{name}", reset_less=True)
                m.d.comb += both.eq((w1 << SPACING) + w0)
                m.d.sync += [product.eq(a * both), again.eq(_low_product(a, w1))]
                carried = Signal(signed(OVERLAP), name=f"carried_{name}")
                m.d.comb += carried.eq(product[SPACING:16] - again)
                low_terms.append(Cat(product[:SPACING], carried).as_signed())
                high_terms.append((product >> SPACING) - carried)
            sums.append(_sum(m, params, low_terms, f"sum_{b}_{o}"))
            sums.append(_sum(m, params, high_terms, f"sum_{b}_{o + 1}"))
    return sums


def _activation(params: HwParams, x: Signal, b: int, i: int):
    return x[8 * (b * params.block_in + i) :][:8].as_signed()


def _weight(params: HwParams, w: Signal, o: int, i: int):
    return w[8 * (o * params.block_in + i) :][:8].as_signed()


def _low_product(a, b):
    """The OVERLAP lowest bits of a product, from adders: synthesis gives ``*`` a multiplier."""
    rows = [
        Cat(Const(0, k), a[: OVERLAP - k] & b[k].replicate(OVERLAP - k)) for k in range(OVERLAP)
    ]
    return _tree(rows)[:OVERLAP]


def _sum(m: Module, params: HwParams, terms: list, name: str) -> Signal:
    total = Signal(signed(16 + params.block_in.bit_length()), name=name, reset_less=True)
    m.d.sync += total.eq(_tree(terms))
    return total


def _tree(terms: list):
    while len(terms) > 1:
        terms = [*(a + b for a, b in zip(terms[::2], terms[1::2], strict=False)),
                 *terms[len(terms) & ~1 :]]  # fmt: skip
    return terms[0]
