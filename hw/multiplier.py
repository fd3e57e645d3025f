"""Multiplier arrays for FPGAs: as many bits as there are, balanced trees of adders. They compute
what ``gemm.multiply`` computes, in as many cycles.
"""

from __future__ import annotations

from functools import partial

from amaranth.hdl import Cat, Const, Module, Signal, signed

from ..isa.params import HwParams
from .gemm import Multiplier

#: Where the second operand of a packed multiplication begins: 18 bits hold both.
SPACING = 9
#: Bits by which the lower of two packed products reaches into the upper one.
OVERLAP = 16 - SPACING


#: Multipliers of a lane of the vector unit: 32 x 32 bits of an operator, of which the lower half
#: counts, and of requantisation.
VECTOR_LANE = 3 + 4


def fpga_multiplier(params: HwParams, multipliers: int) -> Multiplier:
    """The array for a configuration, on a device with so many 18 x 18 bit multipliers: one for a
    product, one for two, or lookup tables for those that remain without.
    """
    left = max(0, multipliers - VECTOR_LANE * params.lanes)
    products = params.peak_macs_per_cycle
    if products <= left:
        return multiply_narrow
    return partial(multiply_packed, packed=min(left, products // 2))


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


def multiply_packed(
    m: Module, params: HwParams, x: Signal, w: Signal, packed: int | None = None
) -> list[Signal]:
    """A multiplier for every two products of one activation: for all of them, or for the first
    ``packed``. The others are adders.
    """
    sums = []
    made = 0
    for b in range(params.batch):
        for o in range(0, params.block_out, 2):
            terms = [], []
            for i in range(params.block_in):
                operands = (
                    _activation(params, x, b, i),
                    _weight(params, w, o, i),
                    _weight(params, w, o + 1, i),
                )
                is_packed = packed is None or made < packed
                both = (_packed if is_packed else _added)(m, *operands, f"{b}_{o}_{i}")
                made += 1
                for each, term in zip(terms, both, strict=True):
                    each.append(term)
            sums += [_sum(m, params, each, f"sum_{b}_{o + n}") for n, each in enumerate(terms)]
    return sums


def _packed(m: Module, a, w0, w1, name: str) -> tuple:
    """``a * w0`` and ``a * w1`` a cycle later, from one multiplier of 18 x 18 bits.

    ``a * (w1 * 2**9 + w0)`` is ``a * w0`` plus 2**9 times ``a * w1``. The lowest bits of this,
    which lookup tables compute once more, tell what the lower product added to them.
    """
    both = Signal(signed(18), name=f"both_{name}")
    product = Signal(signed(26), name=f"product_{name}", reset_less=True)
    again = Signal(OVERLAP, name=f"again_{name}", reset_less=True)
    m.d.comb += both.eq((w1 << SPACING) + w0)
    m.d.sync += [product.eq(a * both), again.eq(_low_product(a, w1))]
    carried = Signal(signed(OVERLAP), name=f"carried_{name}")
    m.d.comb += carried.eq(product[SPACING:16] - again)
    return Cat(product[:SPACING], carried).as_signed(), (product >> SPACING) - carried


def _added(m: Module, a, w0, w1, name: str) -> tuple:
    """``a * w0`` and ``a * w1`` a cycle later, without a multiplier."""
    products = tuple(
        Signal(signed(16), name=f"product_{name}_{n}", reset_less=True) for n in range(2)
    )
    m.d.sync += [p.eq(_whole_product(a, w)) for p, w in zip(products, (w0, w1), strict=True)]
    return products


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


def _whole_product(a, b):
    """A product of signed factors, from adders."""
    *rows, sign_row = [
        Cat(Const(0, k), (a & bit.replicate(len(a)))[: len(a)]).as_signed()
        for k, bit in enumerate(b)
    ]
    return _tree([*rows, -sign_row])


def _sum(m: Module, params: HwParams, terms: list, name: str) -> Signal:
    total = Signal(signed(16 + params.block_in.bit_length()), name=name, reset_less=True)
    m.d.sync += total.eq(_tree(terms))
    return total


def _tree(terms: list):
    while len(terms) > 1:
        terms = [*(a + b for a, b in zip(terms[::2], terms[1::2], strict=False)),
                 *terms[len(terms) & ~1 :]]  # fmt: skip
    return terms[0]
