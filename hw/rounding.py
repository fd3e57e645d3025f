"""Right shifts that round: one barrel shifter each, which keeps or remembers what it drops."""

from __future__ import annotations

from amaranth.hdl import Cat, Const, Module, Mux, Signal


def shift_half_even(value, shift):
    """``value / 2**shift`` rounded to nearest, ties to even: its floor, and whether to add one. The
    half bit decides unless only it was dropped.
    """
    bits = len(value)
    wide = shift_keeping(value, shift)
    floor, half, below = wide[bits:].as_signed(), wide[bits - 1], wide[: bits - 1].any()
    return floor, half & (below | floor[0])


def shift_keeping(value, shift):
    """``value >> shift`` in the upper half of a result that has what was dropped below it. All
    shifts of the same operands, whatever their rounding, are one shifter after synthesis.
    """
    bits = len(value)
    return (Cat(Const(0, bits), value).as_signed() >> shift)[: 2 * bits]


def shift_right(m: Module, value, dropped, amount, steps: tuple[int, ...]):
    """Part of a right shift that remembers what it drops.

    ``dropped`` is the last bit dropped (1) and whether any below it was set (0); ``steps`` are the
    powers of two of ``amount`` that this part shifts by, largest first.
    """
    sign = value[-1]
    wide, below = Cat(dropped[1], value), dropped[0]
    for step in steps:
        chosen = amount[step.bit_length() - 1]
        shifted = Signal(len(wide), name=f"by_{step}")
        any_below = Signal(name=f"below_{step}")
        m.d.comb += [
            shifted.eq(Mux(chosen, Cat(wide[step:], sign.replicate(step)), wide)),
            any_below.eq(below | (chosen & wide[:step].any())),
        ]
        wide, below = shifted, any_below
    return wide[1:].as_signed(), Cat(below, wide[0])
