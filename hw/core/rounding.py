"""Right shifts that keep enough of the bits they drop to round the result."""

from __future__ import annotations

from amaranth.hdl import Cat, Module, Mux, Signal


def shift_right(m: Module, value, dropped, amount, steps: tuple[int, ...], keep: int = 0):
    """Do a part of a right shift of a signed value. Returns the value, of which only the ``keep``
    lowest bits count (0: all), and the new ``dropped``.

    ``dropped`` has in bit 1 the last bit that was dropped, and in bit 0 whether any dropped bit
    below it was set. ``steps`` are the powers of two of ``amount`` that this part shifts by,
    largest first.
    """
    sign = value[-1]
    wide, below = Cat(dropped[1], value), dropped[0]
    left = sum(steps)
    for step in steps:
        left -= step
        # The bits that later steps can still bring into those that count.
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
