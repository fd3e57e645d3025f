"""Read arbiter: one grant at a time, fetch first, every request passed on once, as it came."""

from __future__ import annotations

from pathlib import Path

import pytest
from amaranth.hdl import Assert, Cover, Module, Signal, Value
from vdla.hw.core.dma import FETCH_ID, LOAD_ID, ReadArbiter, burst_layout
from vdla.isa.params import HwParams

from .prove import Proof, solve

pytestmark = pytest.mark.more

PARAMS = HwParams()
DEPTH = 6


class _Around(ReadArbiter):
    """An arbiter around another one, with connections in which subclasses plant a bug."""

    #: Client that each client's port of the inner arbiter is joined to.
    clients = ("fetch", "load")

    def __init__(self):
        super().__init__(PARAMS)

    def elaborate(self, platform) -> Module:
        m = Module()
        m.submodules.inner = inner = ReadArbiter(PARAMS)
        for port, client in zip((inner.fetch, inner.load), self.clients, strict=True):
            outer = getattr(self, client)
            m.d.comb += [
                port.valid.eq(outer.valid),
                port.payload.eq(outer.payload),
                outer.ready.eq(port.ready),
            ]
        self.join(m, inner)
        return m

    def join(self, m: Module, inner: ReadArbiter) -> None:
        m.d.comb += [
            self.o.valid.eq(inner.o.valid),
            self.o.payload.burst.eq(inner.o.payload.burst),
            self.o.payload.id.eq(inner.o.payload.id ^ (self.clients[0] == "load")),
            inner.o.ready.eq(self.o.ready),
        ]


class LoadWins(_Around):
    clients = ("load", "fetch")


class ForgetsWhatWaits(_Around):
    """Overwrites a request that the memory did not accept."""

    def join(self, m: Module, inner: ReadArbiter) -> None:
        m.d.comb += [
            self.o.valid.eq(inner.o.valid),
            self.o.payload.eq(inner.o.payload),
            inner.o.ready.eq(1),
        ]


class RepeatsRequest(_Around):
    """Offers a request once more after the memory accepted it."""

    def join(self, m: Module, inner: ReadArbiter) -> None:
        again = Signal()
        m.d.sync += again.eq(inner.o.valid & self.o.ready & ~again)
        m.d.comb += [
            self.o.valid.eq(inner.o.valid),
            self.o.payload.eq(inner.o.payload),
            inner.o.ready.eq(self.o.ready & again),
        ]


class ConfusesClients(_Around):
    """Gives both clients the identifier of fetch."""

    def join(self, m: Module, inner: ReadArbiter) -> None:
        m.d.comb += [
            self.o.valid.eq(inner.o.valid),
            self.o.payload.burst.eq(inner.o.payload.burst),
            self.o.payload.id.eq(FETCH_ID),
            inner.o.ready.eq(self.o.ready),
        ]


def contract(arbiter: ReadArbiter) -> Proof:
    """docs/timing.md, "Read port", about clients and a memory that do anything at any time."""
    m = Module()
    m.submodules.arbiter = arbiter
    o = arbiter.o
    granted = [port.valid & port.ready for port in (arbiter.fetch, arbiter.load)]
    accepted = o.valid & o.ready
    # What was granted and not accepted yet: a request at most.
    waits, burst, client = Signal(), Signal(burst_layout(PARAMS)), Signal()
    with m.If(accepted):
        m.d.sync += waits.eq(0)
    for identifier, port in ((FETCH_ID, arbiter.fetch), (LOAD_ID, arbiter.load)):
        with m.If(granted[identifier]):
            m.d.sync += [waits.eq(1), burst.eq(port.payload), client.eq(identifier)]
    may_grant = ~waits | o.ready
    m.d.comb += [
        Assert(~(granted[FETCH_ID] & granted[LOAD_ID])),
        Assert(granted[FETCH_ID] == (arbiter.fetch.valid & may_grant)),
        Assert(granted[LOAD_ID] == (arbiter.load.valid & may_grant & ~arbiter.fetch.valid)),
        Assert(o.valid == waits),
        Cover(accepted & (o.payload.id == LOAD_ID) & arbiter.fetch.valid & arbiter.load.valid),
    ]
    with m.If(waits):
        m.d.comb += [
            Assert(o.payload.burst.as_value() == burst.as_value()),
            Assert(o.payload.id == client),
        ]
    _none_lost(m, arbiter, granted, accepted)
    _stable(m, o)
    ports = (arbiter.fetch, arbiter.load)
    free = (o.ready, *(v for port in ports for v in (port.valid, port.payload)))
    return Proof(m, tuple(Value.cast(value) for value in free))


def _none_lost(m: Module, arbiter: ReadArbiter, granted: list, accepted) -> None:
    """Per client: requests granted are those accepted and the one on offer."""
    o = arbiter.o
    for identifier in (FETCH_ID, LOAD_ID):
        taken, passed = (Signal(8, name=f"{n}_{identifier}") for n in ("taken", "passed"))
        of_client = o.payload.id == identifier
        m.d.sync += taken.eq(taken + granted[identifier])
        m.d.sync += passed.eq(passed + (accepted & of_client))
        m.d.comb += Assert((taken - passed)[:8] == (o.valid & of_client))
        m.d.comb += Cover(passed == 2)


def _stable(m: Module, o) -> None:
    """What the memory does not accept is offered again."""
    stalled, offered = Signal(), Signal.like(o.payload.as_value())
    m.d.sync += [stalled.eq(o.valid & ~o.ready), offered.eq(o.payload.as_value())]
    with m.If(stalled):
        m.d.comb += [Assert(o.valid), Assert(o.payload.as_value() == offered)]


@pytest.mark.slow
def test_passes_every_request_once_and_fetch_first(tmp_path: Path) -> None:
    assert solve(contract(ReadArbiter(PARAMS)), "prove", DEPTH, tmp_path) == "PASS"


@pytest.mark.slow
def test_reaches_both_clients_at_once(tmp_path: Path) -> None:
    assert solve(contract(ReadArbiter(PARAMS)), "cover", DEPTH, tmp_path) == "PASS"


@pytest.mark.slow
@pytest.mark.parametrize("broken", [LoadWins, ForgetsWhatWaits, RepeatsRequest, ConfusesClients])
def test_finds_the_seeded_bug(broken: type[_Around], tmp_path: Path) -> None:
    assert solve(contract(broken()), "prove", DEPTH, tmp_path) == "FAIL"


@pytest.mark.slow
def test_the_frame_of_the_broken_ones_is_sound(tmp_path: Path) -> None:
    assert solve(contract(_Around()), "prove", DEPTH, tmp_path) == "PASS"
