"""Token bank: every counter is pushes minus pops since reset or clear; overflow is exact."""

from __future__ import annotations

from itertools import permutations
from pathlib import Path
from types import SimpleNamespace

import pytest
from amaranth.hdl import Assert, Assume, Cat, Cover, Fragment, Module, Signal, Value
from vdla.hw.core.token import TokenBank
from vdla.isa.opcodes import Unit
from vdla.isa.params import HwParams

from .prove import Proof, signals, solve

pytestmark = pytest.mark.more

#: Narrower than HwParams allows: a full counter is a few cycles from reset.
NARROW = SimpleNamespace(token_bits=2)
DEPTH = 6


class LosesCancelledToken(TokenBank):
    """Push and pop of one counter in one cycle: the pop wins."""

    def elaborate(self, platform) -> Module:
        m = Module()
        m.submodules.bank = bank = TokenBank(self.params)
        m.d.comb += self.overflow.eq(bank.overflow)
        for unit in Unit:
            m.d.comb += [
                bank.pop[unit].eq(self.pop[unit]),
                self.available[unit].eq(bank.available[unit]),
            ]
            cancelled = Cat(self.pop[taker][unit] for taker in Unit)
            m.d.comb += bank.push[unit].eq(self.push[unit] & ~cancelled)
        return m


class OverflowsLate(TokenBank):
    """Says overflow two cycles after it."""

    def elaborate(self, platform) -> Module:
        m = Module()
        m.submodules.bank = bank = TokenBank(self.params)
        for unit in Unit:
            m.d.comb += [
                bank.push[unit].eq(self.push[unit]),
                bank.pop[unit].eq(self.pop[unit]),
                self.available[unit].eq(bank.available[unit]),
            ]
        m.d.sync += self.overflow.eq(bank.overflow)
        return m


def contract(bank: TokenBank, lemmas: bool = False) -> Proof:
    """Counts in parallel. Units pop only what is available; an overflow stops the core, so what
    comes after one is left out. ``lemmas``, for inductions, speak of the counters themselves.
    """
    m = Module()
    full = (1 << bank.params.token_bits) - 1
    m.submodules.bank = fragment = Fragment.get(bank, None)
    state = {signal.name: signal for signal in signals(fragment, "sync")}
    overflows, overflowed, late = [], Signal(), Signal()
    for giver, taker in permutations(Unit, 2):
        push, pop = bank.push[giver][taker], bank.pop[taker][giver]
        balance = Signal(bank.params.token_bits + 1, name=f"balance_{giver.name}_{taker.name}")
        m.d.sync += balance.eq(balance + push - pop)
        m.d.comb += [
            Assume(~pop | bank.available[taker][giver]),
            Assert(bank.available[taker][giver] == (balance != 0)),
            Assert((balance <= full) | bank.overflow),
        ]
        if lemmas:
            pair = f"{giver.name}_to_{taker.name}"
            count, some = state[f"from_{pair}"], state[f"some_from_{pair}"]
            m.d.comb += Assert((count == balance) & (some == (balance != 0)) | bank.overflow)
        overflows.append((balance == full) & push & ~pop)
    m.d.sync += [overflowed.eq(bank.overflow), late.eq(Cat(overflows).any())]
    m.d.comb += [
        Assert(bank.overflow == late),
        Assume(~overflowed),
        Cover(bank.overflow),
        Cover((balance == full) & push & pop),
        *(Assert(~bank.available[unit][unit]) for unit in Unit),
    ]
    free = (*bank.push, *bank.pop)
    return Proof(m, tuple(Value.cast(port) for port in free))


@pytest.mark.slow
@pytest.mark.parametrize("params", [NARROW, HwParams()], ids=["narrow", "as built"])
def test_counts_and_overflows_exactly(params, tmp_path: Path) -> None:
    assert solve(contract(TokenBank(params), lemmas=True), "prove", DEPTH, tmp_path) == "PASS"


@pytest.mark.slow
def test_reaches_overflow(tmp_path: Path) -> None:
    assert solve(contract(TokenBank(NARROW)), "cover", DEPTH, tmp_path) == "PASS"


@pytest.mark.slow
@pytest.mark.parametrize("broken", [LosesCancelledToken, OverflowsLate])
def test_finds_the_seeded_bug(broken: type[TokenBank], tmp_path: Path) -> None:
    assert solve(contract(broken(NARROW)), "prove", DEPTH, tmp_path) == "FAIL"
