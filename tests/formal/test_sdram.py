"""The SDRAM's controller: the chip's rules of banks and refreshes, for all bursts."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import asdict, replace
from functools import cached_property
from pathlib import Path

import pytest
from amaranth.hdl import (
    Assert,
    Assume,
    Cat,
    Const,
    Cover,
    Fragment,
    MemoryInstance,
    Module,
    Mux,
    Signal,
)
from amaranth.lib import wiring
from vdla.hw.boards import sdram
from vdla.hw.boards.sdram import Command, Mover, Opener, burst_layout, segment_layout
from vdla.hw.core.queue import Queue
from vdla.isa.sdram import OPENED, PARTS, Part, Rules

from .prove import Proof, signals, solve

pytestmark = pytest.mark.more

#: Its set-up begins early, so that what comes after it is near.
PART = replace(PARTS["ulx3s"], init_us=0.1)
RULES = PART.rules
DEPTH = 4
#: States of the half that opens rows; cycles from one refresh to the next, if it is owed.
RUN, CLOSED = 2, 3
AGE = RULES.refresh_to_open - 1 + RULES.close_to_open
#: Counters of cycles stay here.
LONG = 7
#: What is assumed of traffic: so long after it is owed, the first refresh comes. Before it, OPENED
#: and two more segments can be under way, of at most 128 beats of two cycles each, a row.
STALL_CYCLES = 1600


class Faster(Part):
    """A part whose rules are not kept: one of them is shorter by a cycle."""

    rule: str

    @cached_property
    def rules(self) -> Rules:
        true = super().rules
        return replace(true, **{self.rule: getattr(true, self.rule) - 1})


def faster(rule: str) -> Part:
    """:data:`PART` with a rule that is too short."""
    return type("Faster", (Faster,), {"rule": rule})(**asdict(PART))


def since(m: Module, name: str, happens) -> Signal:
    """Cycles since something happened, up to LONG."""
    count = Signal(range(LONG + 1), name=f"since_{name}", init=LONG)
    m.d.sync += count.eq(Mux(happens, 1, Mux(count == LONG, LONG, count + 1)))
    return count


def contract(part: Part = PART) -> Proof:
    """Both halves of the controller and the queue between them, for all bursts at all times. The
    controller is that of ``part``, the rules are those of :data:`PART`.
    """
    m = Module()
    opener, mover, opened = Opener(part), Mover(part), Queue(segment_layout(part), OPENED)
    halves = {"opener": opener, "mover": mover, "opened": opened}
    inside = {}
    for name, half in halves.items():
        m.submodules[name] = fragment = Fragment.get(half, None)
        inside[name] = {signal.name: signal for signal in signals(fragment, "sync")}
        if name == "opened":
            (memory,) = _memories(fragment)
    wiring.connect(m, opener.o, opened.i)
    wiring.connect(m, opened.o, mover.i)
    valid, payload, restart = Signal(), Signal(burst_layout(part)), Signal()
    m.d.comb += [
        opener.i.valid.eq(valid), opener.i.payload.eq(payload), opener.restart.eq(restart),
        opener.moves.eq(mover.moves), opener.ends.eq(mover.ends), opener.writes.eq(mover.writes),
        opener.bank.eq(mover.bank),
        Assume(payload.beats != 0),
        # Nothing is under way, nor comes, in the cycle in which the core starts.
        Assume(~(restart & (inside["opener"]["busy"] | inside["mover"]["active"] | valid))),
        Assume(~(restart & (opened.level != 0))), Assume(~restart | opener.ready),
    ]  # fmt: skip
    banks = _rules(m, opener, mover)
    state = inside["opener"]
    held = Cat(
        state[f"{name}_{n}"] for name in ("hold", "pending") for n in range(len(banks["of"]))
    )
    _refreshes(m, opener, state, held.any())
    _lemmas(m, inside, memory, opener, mover, opened, banks)
    m.d.comb += Cover(mover.moves & mover.writes & (opener.command == Command.OPEN))
    return Proof(m, (valid, payload.as_value(), restart))


def _rules(m: Module, opener: Opener, mover: Mover) -> dict:
    """What must never be asked of the chip. Returns what the chip is known to be like."""
    is_command = {c: opener.command == c for c in Command}
    closes_all = opener.address[10]
    m.d.comb += Assert(~(is_command[Command.READ] | is_command[Command.WRITE]))
    reads, writes = mover.moves & ~mover.writes, mover.moves & mover.writes
    any_ = {
        "moves": since(m, "moves", mover.moves), "reads": since(m, "reads", reads),
        "closes": since(m, "closes", is_command[Command.CLOSE]),
        "refreshes": since(m, "refreshes", is_command[Command.REFRESH]),
    }  # fmt: skip
    of_bank = []
    for n in range(1 << PART.bank_bits):
        here, moved = opener.at == n, mover.bank == n
        opens = is_command[Command.OPEN] & here
        closes = is_command[Command.CLOSE] & (here | closes_all)
        bank = {
            "open": Signal(name=f"open_{n}"),
            "opens": since(m, f"opens_{n}", opens),
            "reads": since(m, f"reads_{n}", reads & moved),
            "writes": since(m, f"writes_{n}", writes & moved),
        }
        m.d.sync += bank["open"].eq((bank["open"] | opens) & ~closes)
        with m.If(opens):
            m.d.comb += Assert(~bank["open"])
        with m.If(mover.moves & moved):
            m.d.comb += [
                Assert(bank["open"]), Assert(bank["opens"] >= RULES.open_to_move), Assert(~closes),
            ]  # fmt: skip
        with m.If(closes & bank["open"]):
            m.d.comb += [
                Assert(bank["opens"] >= RULES.open_to_close),
                Assert(bank["reads"] >= RULES.read_to_close),
                Assert(bank["writes"] >= RULES.write_to_close),
            ]
        of_bank.append(bank)
    closed = ~Cat(bank["open"] for bank in of_bank).any()
    with m.If(mover.moves):
        m.d.comb += Assert(any_["moves"] >= RULES.beat)
    with m.If(writes):
        m.d.comb += Assert(any_["reads"] >= RULES.read_to_write)
    with m.If(is_command[Command.OPEN] | is_command[Command.REFRESH]):
        m.d.comb += Assert(any_["closes"] >= RULES.close_to_open)
    with m.If(is_command[Command.REFRESH]):
        m.d.comb += Assert(closed)
    with m.If((opener.command != Command.NOP) | mover.moves):
        m.d.comb += Assert(any_["refreshes"] >= RULES.refresh_to_open)
    return {"any": any_, "of": of_bank, "closed": closed}


def _refreshes(m: Module, opener: Opener, state: dict, held) -> None:
    """The counter of refreshes that are owed does not run over, once the core has started.

    What is owed is a debt in cycles, which grows in each. When the first refresh begins, the others
    follow at once, each in far fewer cycles than it pays.
    """
    owed, passed, run = state["owed"], state["since"], RULES.refresh
    started, catches, waits = Signal(), Signal(), Signal(range(STALL_CYCLES + 1))
    age, debt = Signal(range(LONG + 1)), Signal(range(9 * run))
    refreshes = opener.command == Command.REFRESH
    with m.If((owed == 0) | opener.restart):
        m.d.sync += [started.eq(started | opener.restart), waits.eq(0), catches.eq(0), age.eq(0)]
    with m.Elif(~catches):
        closes_all = (opener.command == Command.CLOSE) & opener.address[10]
        m.d.sync += [waits.eq(waits + 1), catches.eq(closes_all), age.eq(0)]
    with m.Else():
        m.d.sync += age.eq(Mux(refreshes, 0, age + 1))
    closed = state["fsm_state"] == CLOSED
    m.d.comb += [
        debt.eq(owed * run + passed),
        Assert(passed < run),
        Assert(~started | opener.ready),
    ]  # fmt: skip
    with m.If(started):
        m.d.comb += [
            Assume(waits < STALL_CYCLES),
            Assert(debt < (1 << len(owed)) * run - 1),
            Assert(~closed | ((owed != 0) & catches)),
        ]
        with m.If((owed != 0) & ~catches):
            m.d.comb += Assert(debt == run + waits)
        with m.If((owed != 0) & catches):
            m.d.comb += [
                Assert(debt <= run + STALL_CYCLES + age), Assert(~held),
                Assert(~state["busy"] | state["fresh"]),
                Assert(age + state["rest"] <= Mux(closed, AGE, RULES.refresh_to_open - 1)),
            ]  # fmt: skip


def _lemmas(m: Module, inside: dict, memory, opener, mover, opened, chip: dict) -> None:
    """What makes the rules inductive: registers of the controller, against the chip's past."""
    state, moving, queue = (inside[name] for name in ("opener", "mover", "opened"))
    following, produce = queue["following"], queue["produce"]
    second = Signal(segment_layout(PART))
    head = Signal(segment_layout(PART))
    memory.read_port(
        domain="comb", addr=following, data=second.as_value(), en=Const(1, 1), transparent_for=()
    )
    m.d.comb += [
        head.eq(queue["head"]),
        Assert((following < OPENED) & (produce < OPENED) & (opened.level <= OPENED)),
        Assert((produce + 1) % OPENED == (following + opened.level) % OPENED),
        Assert(queue["valid"] == (opened.level != 0)),
        Assert(queue["ready"] == (opened.level != OPENED)),
    ]
    any_, rest = chip["any"], state["rest"]
    m.d.comb += [
        Assert(rest + any_["closes"] >= RULES.close_to_open),
        Assert(rest + any_["refreshes"] >= RULES.refresh_to_open),
        Assert(moving["gap"] + any_["moves"] >= RULES.beat),
        Assert(moving["turn"] + any_["reads"] >= RULES.read_to_write),
    ]
    phase = state["fsm_state"]
    m.d.comb += [
        Assert((phase == RUN) | chip["closed"]),
        Assert(opener.ready == ((phase == RUN) | (phase == CLOSED))),
    ]
    moved = moving["segment"]
    bank_of = (moved[len(Signal(range(PART.row_beats))) :])[: PART.bank_bits]
    for n, bank in enumerate(chip["of"]):
        hold, pending = state[f"hold_{n}"], state[f"pending_{n}"]
        under_way = (
            (moving["active"] & (bank_of == n))
            + ((opened.level >= 1) & (head.bank == n))
            + ((opened.level >= 2) & (second.bank == n))
        )
        m.d.comb += [
            Assert(state[f"is_open_{n}"] == bank["open"]),
            Assert(~bank["open"] | (hold + bank["opens"] >= RULES.open_to_close)),
            Assert(hold + bank["reads"] >= RULES.read_to_close),
            Assert(hold + bank["writes"] >= RULES.write_to_close),
            Assert(pending == under_way),
            Assert((pending == 0) | (bank["open"] & (bank["opens"] >= 2))),
            Assert(~bank["open"] | (any_["refreshes"] >= RULES.refresh_to_open)),
        ]


def _memories(fragment: Fragment) -> Iterator[MemoryInstance]:
    if isinstance(fragment, MemoryInstance):
        yield fragment
    for child, *_ in fragment.subfragments:
        yield from _memories(child)


@pytest.mark.slow
def test_keeps_the_rules_of_the_chip(tmp_path: Path) -> None:
    assert solve(contract(), "prove", DEPTH, tmp_path) == "PASS"


@pytest.mark.slow
@pytest.mark.parametrize("rule", [
    "beat", "open_to_close", "read_to_close", "write_to_close", "read_to_write", "close_to_open",
    "refresh_to_open",
])  # fmt: skip
def test_no_rule_is_shorter(rule: str, tmp_path: Path) -> None:
    """The controller of another part fails; a counterexample from reset is a minute away."""
    assert solve(contract(faster(rule)), "prove", DEPTH, tmp_path) != "PASS"


@pytest.mark.slow
def test_finds_a_counterexample(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sdram, "INIT_REFRESHES", 1)
    assert solve(contract(faster("close_to_open")), "bmc", 20, tmp_path) == "FAIL"


@pytest.mark.slow
def test_reaches_a_write_beside_an_open(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sdram, "INIT_REFRESHES", 1)
    assert solve(contract(), "cover", 24, tmp_path) == "PASS"
