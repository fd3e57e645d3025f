"""Multiplier arrays for FPGAs, with no more bits than needed, and balanced trees of adders. They
compute what ``core.technology.multiply`` computes, in as many cycles.
"""

from __future__ import annotations

from dataclasses import replace
from functools import partial, reduce

from amaranth.hdl import Cat, Const, Module, Signal, signed
from amaranth.utils import ceil_log2

from ...isa.encoding import INT8_BITS
from ...isa.params import HwParams
from ..core.technology import Multiplier
from .adder import Adder, Term, add, add_all, add_pairs

#: Bits of the operands of a multiplier.
MULTIPLIER_BITS = 18
#: Where the second operand of a packed multiplication begins, so that both fit.
SPACING = 9
#: Bits by which the lower of two packed products reaches into the upper one.
OVERLAP = 2 * INT8_BITS - SPACING
#: Additions one after the other that a cycle has time for before the terms are registered.
ADDITIONS = 4

#: Multipliers of a lane of the vector unit: 32 x 32 bits of an operator, of which the lower half
#: counts, and of requantisation.
VECTOR_LANE = 3 + 4


def vector_multipliers(params: HwParams) -> int:
    """Multipliers of the vector unit; each lane has further ones for the products of a window."""
    return params.vector_lanes * (VECTOR_LANE + params.vector_window)


def shared_products(params: HwParams, multipliers: int) -> tuple[int, int]:
    """Products of the tensor core with a multiplier of their own, and pairs that share one, on a
    device with this many multipliers."""
    left = max(0, multipliers - vector_multipliers(params))
    products = params.peak_macs_per_cycle
    return (products, 0) if products <= left else (0, min(left, products // 2))


def fpga_multiplier(params: HwParams, multipliers: int, adder: Adder = add) -> Multiplier:
    """The array for a configuration, on a device with this many 18 x 18 bit multipliers. If they
    suffice, each product gets one. Otherwise two products share one, and products for which none is
    left are sums of rows.

    ``adder`` makes the additions beside packed multipliers.
    """
    narrow, packed = shared_products(params, multipliers)
    return multiply_narrow if narrow else partial(multiply_packed, packed=packed, adder=adder)


def multiply_narrow(m: Module, params: HwParams, x: list[Signal], w: Signal) -> list[Signal]:
    """A multiplier for every product."""
    sums = []
    for b in range(params.batch):
        for o in range(params.block_out):
            terms = []
            for i in range(params.block_in):
                product = _activation(params, x[o], b, i) * _weight(params, w, o, i)
                terms.append(_register(m, Term(product), f"product_{b}_{o}_{i}"))
            sums.append(_sum(m, params, add_all(m, add, terms), f"sum_{b}_{o}"))
    return sums


def multiply_packed(
    m: Module,
    params: HwParams,
    x: list[Signal],
    w: Signal,
    packed: int | None = None,
    adder: Adder = add,
) -> list[Signal]:
    """A multiplier for every two products of one activation: for all products, or ``packed``
    multipliers, spread evenly over the pairs of outputs. The other products are sums of rows.
    """
    sums = []
    pairs = params.batch * params.block_out // 2
    left = params.block_in * pairs if packed is None else packed
    for b in range(params.batch):
        for o in range(0, params.block_out, 2):
            activations = [_activation(params, x[o], b, i) for i in range(params.block_in)]
            weights = [[_weight(params, w, o + n, i) for i in range(params.block_in)]
                       for n in range(2)]  # fmt: skip
            count = -(-left // pairs)
            left, pairs = left - count, pairs - 1
            operands = list(zip(activations, *weights, strict=True))
            totals = _packed(m, adder, operands[:count], f"{b}_{o}")
            for n, total in enumerate(totals):
                factors = [(activation, pair[n]) for activation, *pair in operands[count:]]
                # What comes last is added last.
                terms = [*_without(m, adder, factors, f"{b}_{o + n}"), *total]
                sums.append(_sum(m, params, reduce(partial(adder, m), terms), f"sum_{b}_{o + n}"))
    return sums


def _packed(m: Module, adder: Adder, operands: list[tuple], name: str) -> tuple[list[Term], ...]:
    """For tuples (a, w0, w1), the sums of ``a * w0`` and of ``a * w1`` a cycle later, from one
    multiplier of 18 x 18 bits for each tuple. Each sum comes as terms that remain to be added; the
    last of these is known late in the cycle.

    ``a * (w1 * 2**9 + w0)`` is ``a * w0`` plus 2**9 times ``a * w1``. The lowest bits of this,
    which lookup tables compute once more, tell what the lower product has above its 9 lowest bits,
    and so what it added to the upper one.
    """
    lower, upper, carried = [], [], []
    for i, (a, w0, w1) in enumerate(operands):
        both = Signal(signed(MULTIPLIER_BITS), name=f"both_{name}_{i}")
        # Synthesis keeps one name of a register, and the floorplan looks for this.
        shape = signed(INT8_BITS + MULTIPLIER_BITS)
        product = Signal(shape, name=f"product_{name}_{i}", reset_less=True, attrs={"keep": 1})
        again = Signal(OVERLAP, name=f"again_{name}_{i}", reset_less=True)
        m.d.comb += both.eq(adder(m, Term(w0), Term(w1, SPACING)).value)
        m.d.sync += [product.eq(a * both), again.eq(_low_product(m, adder, a, w1))]
        above = Term(product[SPACING : 2 * INT8_BITS].as_signed())
        rest = adder(m, above, Term(again.as_signed(), negative=True))
        carried.append(Term(rest.value[:OVERLAP].as_signed()))
        lower.append(Term(Cat(product[:SPACING], Const(0, 1)).as_signed()))
        upper.append(Term(product[SPACING:].as_signed()))
    if not operands:
        return [], []
    total = add_all(m, adder, carried)
    return (
        [add_all(m, adder, lower), replace(total, shift=SPACING)],
        [add_all(m, adder, upper), replace(total, negative=True)],
    )


def _low_product(m: Module, adder: Adder, a, b):
    """The OVERLAP lowest bits of a product, from adders: synthesis gives ``*`` a multiplier."""
    rows = [Term(a[: OVERLAP - k].as_signed(), k, gate=b[k]) for k in range(OVERLAP)]
    return add_all(m, adder, rows).value[:OVERLAP]


def _without(m: Module, adder: Adder, factors: list[tuple], name: str) -> list[Term]:
    """The sum of products a cycle later, without multipliers, as a term if there are any.

    For every bit of the weights, the activations whose weight has this bit set are added, which
    takes fewer bits than adding shifted activations. Then the sums of neighbouring bits are added,
    as far as the cycle has time.
    """
    if not factors:
        return []
    terms = [
        add_all(m, adder, [Term(a, k, gate=w[k], negative=k == INT8_BITS - 1) for a, w in factors])
        for k in range(INT8_BITS)
    ]
    for _ in range(ceil_log2(len(factors)), ADDITIONS):
        terms = add_pairs(m, adder, terms)
    late = [_register(m, term, f"bits_{name}_{n}") for n, term in enumerate(terms)]
    return [add_all(m, adder, late)]


def _activation(params: HwParams, x: Signal, b: int, i: int):
    return x.word_select(b * params.block_in + i, INT8_BITS).as_signed()


def _weight(params: HwParams, w: Signal, o: int, i: int):
    return w.word_select(o * params.block_in + i, INT8_BITS).as_signed()


def _register(m: Module, term: Term, name: str) -> Term:
    """The term a cycle later."""
    value = term.gated
    later = Signal(signed(len(value)), name=name, reset_less=True)
    m.d.sync += later.eq(value)
    return replace(term, value=later, gate=None)


def _sum(m: Module, params: HwParams, total: Term, name: str) -> Signal:
    late = Signal(signed(2 * INT8_BITS + params.block_in.bit_length()), name=name, reset_less=True)
    m.d.sync += late.eq(total.value)
    return late
