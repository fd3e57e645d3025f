"""Expressions that the parts of the vector unit share; right shifts keep enough of the bits they
drop to round the result.
"""

from __future__ import annotations

from collections.abc import Iterable
from functools import reduce
from operator import or_

from amaranth.hdl import Cat, Module, Mux, Signal, Value, ValueLike, signed


def any_of(values: Iterable[Value]) -> Value:
    """All values, or-ed: the one that is not 0."""
    return reduce(or_, values)


def named(m: Module, value, name: str, bits: int) -> Signal:
    """Name a signed value, so that simulators compute it once: they are slow with slices of
    expressions."""
    signal = Signal(signed(bits), name=name)
    m.d.comb += signal.eq(value)
    return signal


def register(name: str, bits: int) -> Signal:
    """A signed register of the datapath. What it holds counts only beside a flag, so it needs no
    reset.
    """
    return Signal(signed(bits), name=name, reset_less=True)


def either(flag: ValueLike | None, then: ValueLike, otherwise: ValueLike) -> Value:
    """``then`` where the flag is set. ``otherwise`` alone, without logic, where there is no flag:
    in a configuration without the feature that it is for.
    """
    return Value.cast(otherwise) if flag is None else Mux(flag, then, otherwise)


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
