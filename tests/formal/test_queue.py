"""Queue: order and contents of every element, level, and the rules of a stream."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest
from amaranth.hdl import Assert, Const, Cover, Fragment, MemoryInstance, Module, Mux, Signal
from vdla.hw.core.queue import Queue
from vdla.isa.params import HwParams

from .prove import Proof, signals, solve

pytestmark = pytest.mark.more

#: A queue never looks at its payload, so few bits show as much as many.
WIDTH = 4
DEPTH = 8


class WaitsForReady(Queue):
    """Is valid only where the receiver is ready."""

    def elaborate(self, platform) -> Module:
        m, inner = _around(self)
        m.d.comb += [
            self.i.ready.eq(inner.i.ready),
            self.o.payload.eq(inner.o.payload),
            self.o.valid.eq(inner.o.valid & self.o.ready),
        ]
        return m


class LosesWhenFull(Queue):
    """Accepts what it has no room for."""

    def elaborate(self, platform) -> Module:
        m, inner = _around(self)
        m.d.comb += [
            self.i.ready.eq(1),
            self.o.payload.eq(inner.o.payload),
            self.o.valid.eq(inner.o.valid),
        ]
        return m


class ShowsThePast(Queue):
    """Its payload comes a cycle late."""

    def elaborate(self, platform) -> Module:
        m, inner = _around(self)
        m.d.comb += [self.i.ready.eq(inner.i.ready), self.o.valid.eq(inner.o.valid)]
        m.d.sync += self.o.payload.eq(inner.o.payload)
        return m


class ConfusesTwoValues(Queue):
    """Gives 4 where 5 came in."""

    def elaborate(self, platform) -> Module:
        m, inner = _around(self)
        value = inner.o.payload
        m.d.comb += [
            self.i.ready.eq(inner.i.ready),
            self.o.valid.eq(inner.o.valid),
            self.o.payload.eq(Mux(value == 5, 4, value)),
        ]
        return m


def _around(queue: Queue) -> tuple[Module, Queue]:
    m = Module()
    m.submodules.inner = inner = Queue(WIDTH, queue.depth)
    m.d.comb += [
        inner.i.payload.eq(queue.i.payload),
        inner.i.valid.eq(queue.i.valid),
        inner.o.ready.eq(queue.o.ready),
        queue.level.eq(inner.level),
    ]
    return m, inner


def contract(queue: Queue, lemmas: bool = False) -> Proof:
    """Follows any one element at a time: ``mark`` chooses it as it enters. ``lemmas``, for
    inductions, speak of the pointers and the memory."""
    m = Module()
    m.submodules.queue = fragment = Fragment.get(queue, None)
    enter, leave = queue.i.valid & queue.i.ready, queue.o.valid & queue.o.ready
    entered, left = Signal(8), Signal(8)
    m.d.sync += [entered.eq(entered + enter), left.eq(left + leave)]
    held = (entered - left)[:8]
    m.d.comb += [
        Assert(held <= queue.depth),
        Assert(queue.level == held),
        # Functions of the past alone: neither end waits for the other in the same cycle.
        Assert(queue.o.valid == (held != 0)),
        Assert(queue.i.ready == (held != queue.depth)),
        Cover((held == queue.depth) & (left == 2)),
    ]
    _stable(m, queue)
    mark = Signal()
    marked, value, ahead = Signal(), Signal(WIDTH), Signal(range(queue.depth + 1))
    with m.If(marked & leave):
        m.d.sync += [ahead.eq(ahead - 1), marked.eq(ahead != 0)]
    with m.If(~marked & mark & enter):
        m.d.sync += [marked.eq(1), value.eq(queue.i.payload), ahead.eq(held - leave)]
    with m.If(marked & (ahead == 0)):
        m.d.comb += Assert(queue.o.valid & (queue.o.payload == value))
    m.d.comb += Cover(marked & (ahead == queue.depth - 1) & (value == 5) & (left == 1))
    if lemmas:
        _lemmas(m, fragment, queue, marked, value, ahead)
    return Proof(m, (queue.i.payload, queue.i.valid, queue.o.ready, mark))


def _stable(m: Module, queue: Queue) -> None:
    """What is offered and not taken is offered again."""
    waits, offered = Signal(), Signal(WIDTH)
    m.d.sync += [waits.eq(queue.o.valid & ~queue.o.ready), offered.eq(queue.o.payload)]
    with m.If(waits):
        m.d.comb += [Assert(queue.o.valid), Assert(queue.o.payload == offered)]


def _lemmas(m: Module, fragment: Fragment, queue: Queue, marked, value, ahead) -> None:
    """The pointers agree with the level; the followed element is in its place of the memory, or in
    the register in front of it.
    """
    state = {signal.name: signal for signal in signals(fragment, "sync")}
    following, produce = state["following"], state["produce"]
    (memory,) = _memories(fragment)
    place, content = Signal.like(following), Signal(WIDTH)
    memory.read_port(domain="comb", addr=place, data=content, en=Const(1, 1), transparent_for=())
    m.d.comb += [
        place.eq((following + ahead + queue.depth - 1) % queue.depth),
        Assert((following < queue.depth) & (produce < queue.depth)),
        Assert((produce + 1) % queue.depth == (following + queue.level) % queue.depth),
        Assert(state["valid"] == (queue.level != 0)),
        Assert(state["ready"] == (queue.level != queue.depth)),
        Assert(~marked | (ahead < queue.level)),
        Assert(~(marked & (ahead == 0)) | (state["head"] == value)),
        Assert(~(marked & (ahead != 0)) | (content == value)),
    ]


def _memories(fragment: Fragment) -> Iterator[MemoryInstance]:
    if isinstance(fragment, MemoryInstance):
        yield fragment
    for child, *_ in fragment.subfragments:
        yield from _memories(child)


@pytest.mark.slow
@pytest.mark.parametrize("depth", [1, 3, HwParams().queue_depth])
def test_keeps_order_contents_and_level(depth: int, tmp_path: Path) -> None:
    assert solve(contract(Queue(WIDTH, depth), lemmas=True), "prove", DEPTH, tmp_path) == "PASS"


@pytest.mark.slow
def test_reaches_a_full_queue_in_use(tmp_path: Path) -> None:
    assert solve(contract(Queue(WIDTH, 3)), "cover", DEPTH, tmp_path) == "PASS"


@pytest.mark.slow
@pytest.mark.parametrize("broken", [WaitsForReady, LosesWhenFull, ShowsThePast, ConfusesTwoValues])
def test_finds_the_seeded_bug(broken: type[Queue], tmp_path: Path) -> None:
    assert solve(contract(broken(WIDTH, 3)), "prove", DEPTH, tmp_path) == "FAIL"
