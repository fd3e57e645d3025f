"""Right shifts that remember what they drop, for what rounds them."""

from __future__ import annotations

from amaranth.hdl import Cat, Module, Mux, Signal


def shift_right(m: Module, value, dropped, amount, steps: tuple[int, ...], keep: int = 0):
    """Part of a right shift of a signed value that remembers what it drops: the value, of whose
    bits the ``keep`` lowest count (0: all), and what is dropped now.

    ``dropped`` is the last bit dropped (1) and whether any below it was set (0); ``steps`` are the
    powers of two of ``amount`` that this part shifts by, largest first.
    """
    sign = value[-1]
    wide, below = Cat(dropped[1], value), dropped[0]
    left = sum(steps)
    for step in steps:
        left -= step
        # What the steps behind this one can bring into the bits that count.
        bits = min(len(wide), 1 + keep + left) if keep else len(wide)
        chosen = amount[step.bit_length() - 1]
        shifted = Signal(bits, name=f"by_{step}")
        any_below = Signal(name=f"below_{step}")
        m.d.comb += [
            shifted.eq(Mux(chosen, Cat(wide[step:], sign.replicate(step))[:bits], wide[:bits])),
            any_below.eq(below | (chosen & wide[:step].any())),
        ]
        wide, below = shifted, any_below
    return wide[1:].as_signed(), Cat(below, wide[0])
