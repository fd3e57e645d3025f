"""Expressions that the parts of the vector unit share."""

from __future__ import annotations

from collections.abc import Iterable
from functools import reduce
from operator import or_

from amaranth.hdl import Module, Mux, Signal, Value, ValueLike, signed


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
