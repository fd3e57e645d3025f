"""Additions on the carry chains of the ECP5 (FPGA-DS-02012, slices in ripple mode).

A bit of a chain has a table of four inputs, which says whether it propagates the carry, and gives
the sum; the lowest four entries of the same table, of the inputs A and B, are what it generates
otherwise. So a table of ``(A & B) ^ (C & D)`` adds two bits that each have a gate: two rows of a
product and their sum take one lookup table a bit. Synthesis does not do this for the operators of
the language: it makes sums of many terms with compressors of lookup tables.
"""

from __future__ import annotations

from amaranth.hdl import Cat, Const, Instance, Module, Signal, Value, signed

from .adder import Term

#: The table of ``(A & B) ^ (C & D)``, entry ``A + 2 * B + 4 * C + 8 * D``. Its inverse adds the
#: complement of the first bit.
ADD = 0x7888


def add(m: Module, a: Term, b: Term) -> Term:
    """The sum of two terms, as ``adder.add``; the chain begins at the lowest bit of the upper
    term."""
    a, b = sorted((a, b), key=lambda term: term.shift)
    shift = b.shift - a.shift
    # At least its sign is above the shift.
    extended = Signal(signed(max(len(a.value), shift + 1)))
    m.d.comb += extended.eq(a.value)
    high = Term(extended[shift:].as_signed(), gate=a.gate)
    width = max(len(high.value), len(b.value)) + 1
    if a.negative != b.negative:
        total = _chain(m, b, high, width, complement=True)
    else:
        total = _chain(m, high, b, width)
    low = extended[:shift] & _gate(a).replicate(shift)
    return Term(Cat(low, total).as_signed(), a.shift, negative=a.negative)


def _chain(m: Module, first: Term, second: Term, width: int, complement: bool = False) -> Value:
    """``second`` plus ``first``, or minus it: plus its complement and a carry."""
    cells = (width + 1) // 2
    table = Const(ADD ^ 0xFFFF if complement else ADD, 16)
    total, carry = Signal(2 * cells), Const(int(complement))
    # Signals, because elaboration would process the whole expression for every pin.
    a, c = Signal(2 * cells), Signal(2 * cells)
    b, d = Signal(), Signal()
    m.d.comb += [a.eq(first.value), b.eq(_gate(first)), c.eq(second.value), d.eq(_gate(second))]
    for cell in range(cells):
        pins = {}
        for half in range(2):
            bit = 2 * cell + half
            inputs = {"A": a[bit], "B": b, "C": c[bit], "D": d}
            pins |= {f"i_{pin}{half}": value for pin, value in inputs.items()}
            pins |= {f"o_S{half}": total[bit], f"p_INIT{half}": table}
            pins[f"p_INJECT1_{half}"] = "NO"
        into, carry = carry, Signal()
        m.submodules += Instance("CCU2C", i_CIN=into, o_COUT=carry, **pins)
    return total[:width]


def _gate(term: Term) -> Value:
    return Const(1) if term.gate is None else term.gate
