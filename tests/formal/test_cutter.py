"""Burst cutter: no burst crosses a page or is too long; the bursts are exactly the transfer."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest
import vdla.hw.core.dma
from amaranth.hdl import Assert, Assume, Cover, Fragment, Module, Signal, Value
from vdla.hw.core.dma import BurstCutter
from vdla.isa.encoding import DRAM_ADDR_BITS
from vdla.isa.params import HwParams

from .prove import Proof, signals, solve

pytestmark = pytest.mark.more

PARAMS = HwParams()
#: Bursts as long as a page.
LONG = HwParams(bus_bits=128, max_burst_beats=256)
#: AXI4: no burst crosses a multiple of this.
AXI_PAGE = 4096
DEPTH = 5
INPUTS = ("addr", "row_bytes", "y_size", "z_size", "y_stride", "z_stride")


class _Around(BurstCutter):
    """A cutter around another one, to whose connections a subclass adds a bug."""

    def elaborate(self, platform) -> Module:
        m = Module()
        m.submodules.inner = inner = BurstCutter(self.inner_params())
        m.d.comb += [
            *(getattr(inner, name).eq(getattr(self, name)) for name in (*INPUTS, "start")),
            *(getattr(self, n).eq(getattr(inner, n)) for n in ("row_start", "row_offset", "last")),
            self.o.valid.eq(inner.o.valid),
            self.o.payload.eq(inner.o.payload),
            inner.o.ready.eq(self.o.ready),
        ]
        self.seed(m, inner)
        return m

    def inner_params(self) -> HwParams:
        return self.params

    def seed(self, m: Module, inner: BurstCutter) -> None:
        """The bug: statements that override the ones before."""


class ForgetsOffset(_Around):
    """Counts the beats of a row as if it began at the start of a bus word."""

    def seed(self, m: Module, inner: BurstCutter) -> None:
        shift = self.params.bus_bytes.bit_length() - 1
        m.d.comb += inner.addr[:shift].eq(0)


class SkipsPlaneStride(_Around):
    """Takes every plane from where the first began."""

    def seed(self, m: Module, inner: BurstCutter) -> None:
        m.d.comb += inner.z_stride.eq(0)


class StopsARowEarly(_Around):
    def seed(self, m: Module, inner: BurstCutter) -> None:
        with m.If(self.y_size > 1):
            m.d.comb += inner.y_size.eq(self.y_size - 1)


class OverlongBursts(_Around):
    def inner_params(self) -> HwParams:
        return replace(self.params, max_burst_beats=2 * self.params.max_burst_beats)


def contract(cutter: BurstCutter, lemmas: bool = False) -> Proof:
    """The cutter beside a transfer in bytes: row, plane, and how much of the row was asked for.

    A transfer starts where no burst is offered and has rows that are not empty (load and store
    refuse others). ``lemmas``, for inductions, speak of the cutter's registers.
    """
    m = Module()
    bus, longest = cutter.params.bus_bytes, cutter.params.max_burst_beats
    m.submodules.cutter = fragment = Fragment.get(cutter, None)
    o, addr, beats = cutter.o, cutter.o.payload.addr, cutter.o.payload.beats
    of = {name: Signal.like(getattr(cutter, name), name=f"the_{name}") for name in INPUTS}
    moving = Signal()
    # Bytes of the row, and of those before it in its first bus word.
    asked = Signal(len(of["row_bytes"]) + 2)
    y, z = (Signal(len(of[name]) + 1, name=name) for name in ("y_size", "z_size"))
    row, plane = Signal(DRAM_ADDR_BITS), Signal(DRAM_ADDR_BITS)
    offset = row % bus
    needed = Signal.like(asked)
    asks = Signal.like(asked)  # with this burst
    m.d.comb += [
        needed.eq(offset + of["row_bytes"]),
        asks.eq(asked + beats * bus),
        Assume(~cutter.start | ~moving),
        Assume((cutter.row_bytes != 0) & (cutter.z_size != 0)),
        Assert(o.valid == moving),
    ]
    row_ends = asks >= needed
    plane_ends = row_ends & (y + 1 == of["y_size"])
    ends = plane_ends & (z + 1 == of["z_size"])
    page_ends = ((addr + beats * bus) % AXI_PAGE) == 0
    with m.If(moving):
        m.d.comb += [
            Assert((beats > 0) & (beats <= longest)),
            Assert(addr % AXI_PAGE + beats * bus <= AXI_PAGE),
            Assert(addr == (row - offset + asked)[:DRAM_ADDR_BITS]),
            Assert(asks < needed + bus),  # no beat that the row does not need
            Assert(row_ends | page_ends | (beats == longest)),  # greedily
            Assert(cutter.row_start == (asked == 0)),
            Assert(cutter.row_offset == offset),
            Assert(cutter.last == ends),
            Cover(ends & (y == 1) & (z == 1) & page_ends & (asked != 0)),
            Cover((beats == longest) & (asked != 0) & ~row_ends),
        ]
    with m.If(moving & o.ready):
        m.d.sync += asked.eq(asks)
        with m.If(row_ends):
            m.d.sync += [asked.eq(0), y.eq(y + 1), row.eq(row + of["y_stride"])]
        with m.If(plane_ends):
            next_plane = plane + of["z_stride"]
            m.d.sync += [y.eq(0), z.eq(z + 1), row.eq(next_plane), plane.eq(next_plane)]
        with m.If(ends):
            m.d.sync += moving.eq(0)
    with m.If(cutter.start):
        m.d.sync += [of[name].eq(getattr(cutter, name)) for name in INPUTS]
        m.d.sync += [moving.eq(cutter.y_size != 0), asked.eq(0), y.eq(0), z.eq(0)]
        m.d.sync += [row.eq(cutter.addr), plane.eq(cutter.addr)]
    if lemmas:
        more = Signal.like(asked)
        m.d.comb += more.eq(((needed - asked + bus - 1)[: len(asked)] // bus) - 1)
        words = AXI_PAGE // bus
        model = {
            "row_bytes": of["row_bytes"], "y_stride": of["y_stride"], "z_stride": of["z_stride"],
            "row": row, "plane": plane, "y_more": of["y_size"] - 1 - y,
            "z_more": of["z_size"] - 1 - z, "y_all": of["y_size"] - 1, "more": more,
            "plane_ends": y + 1 == of["y_size"], "last_plane": z + 1 == of["z_size"],
            "long": more >= longest, "crosses": more % longest + (addr // bus) % words >= words,
        }  # fmt: skip
        state = {signal.name: signal for signal in signals(fragment, "sync")}
        with m.If(moving):
            m.d.comb += [
                *(Assert(state[name] == value) for name, value in model.items()),
                Assert(asked % bus == 0),
                Assert((asked < needed) & (of["row_bytes"] != 0)),
                Assert((of["y_size"] > y) & (of["z_size"] > z)),
            ]
    free = (o.ready, cutter.start, *(getattr(cutter, name) for name in INPUTS))
    return Proof(m, tuple(Value.cast(value) for value in free))


@pytest.mark.slow
@pytest.mark.parametrize("params", [PARAMS, LONG], ids=["as built", "long bursts"])
def test_asks_for_exactly_the_transfer(params: HwParams, tmp_path: Path) -> None:
    proof = contract(BurstCutter(params), lemmas=True)
    assert solve(proof, "prove", 3, tmp_path) == "PASS"


@pytest.mark.slow
def test_reaches_pages_planes_and_long_bursts(tmp_path: Path) -> None:
    assert solve(contract(BurstCutter(PARAMS)), "cover", 10, tmp_path) == "PASS"


@pytest.mark.slow
@pytest.mark.parametrize(
    "broken", [ForgetsOffset, SkipsPlaneStride, StopsARowEarly, OverlongBursts]
)
def test_finds_the_seeded_bug(broken: type[_Around], tmp_path: Path) -> None:
    assert solve(contract(broken(PARAMS)), "prove", DEPTH, tmp_path) == "FAIL"


@pytest.mark.slow
def test_finds_bursts_across_pages(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(vdla.hw.core.dma, "PAGE_BYTES", 2 * AXI_PAGE)
    assert solve(contract(BurstCutter(PARAMS)), "prove", DEPTH, tmp_path) == "FAIL"
