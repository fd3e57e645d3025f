"""From beats to entries: beats that hold several entries, and entries that take several beats."""

from __future__ import annotations

from amaranth.hdl import Module, Mux, Signal
from amaranth.lib import wiring
from amaranth.lib.wiring import In, Out

from ....isa.params import HwParams
from .transfer import beats_layout, bus_offset_bits


class Splitter(wiring.Component):
    """Splits beats that hold several entries: an entry a cycle, from the cycle on in which the beat
    comes.

    The first beat of a row may begin with bytes before the row, and its last beat may end with
    bytes behind it. These are no entries of the row, but take their cycles all the same.

    Attributes
    ----------
    start, entry_bytes : a transfer begins, with entries of so many bytes
    offset : where in its first bus word the row begins, in bytes
    beyond : the row needs no more data
    beat, arrives : a beat, and that it comes in this cycle and holds several entries
    entered : an entry of the row's data is finished;  row_over : the row is finished
    holds : there are entries left of a beat that came before
    inside : this cycle's entry belongs to the row;  last : it is the last of its beat
    data : the entry, in the lowest bytes; a beat that is not split passes through
    """

    def __init__(self, params: HwParams):
        self.params = params
        place = bus_offset_bits(params)
        super().__init__(
            {
                "start": In(1),
                "entry_bytes": In(place),
                "offset": In(place),
                "beyond": In(1),
                "beat": In(params.bus_bits),
                "arrives": In(1),
                "entered": In(1),
                "row_over": In(1),
                "holds": Out(1),
                "inside": Out(1),
                "last": Out(1),
                "data": Out(params.bus_bits),
            }
        )

    def elaborate(self, platform) -> Module:
        m = Module()
        entry_bytes = Signal.like(self.entry_bytes)
        held = Signal.like(self.beat, reset_less=True)
        # Where in the beat this cycle's entry begins, and where it ends.
        place, end = Signal.like(self.offset), Signal(len(self.offset) + 1)
        began = Signal()  # the row has had an entry of data
        skipped = ~began & (end <= self.offset)
        m.d.comb += [
            self.inside.eq(~skipped & ~self.beyond),
            self.last.eq(end[-1]),
            self.data.eq(Mux(self.holds, held >> (place << 3), self.beat)),
        ]
        with m.If(self.entered):
            m.d.sync += began.eq(1)
        with m.If(self.row_over):
            m.d.sync += began.eq(0)
        with m.If(self.arrives):
            m.d.sync += [held.eq(self.beat), self.holds.eq(1)]
        with m.If(self.arrives | self.holds):
            m.d.sync += [place.eq(end), end.eq(end + entry_bytes)]
            with m.If(self.last):
                m.d.sync += [place.eq(0), end.eq(entry_bytes), self.holds.eq(0)]
        with m.If(self.start):
            m.d.sync += [entry_bytes.eq(self.entry_bytes), began.eq(0)]
            m.d.sync += [place.eq(0), end.eq(self.entry_bytes)]
        return m


class Collector(wiring.Component):
    """Counts the beats of an entry, and keeps the first: it is written together with the last,
    because it may come while padding is written.

    Attributes
    ----------
    start, beats : a transfer begins
    beat, arrives : a beat, which is taken in this cycle and is an entry or a part of one
    number : which beat of its entry is the next
    at_first, at_last : it is the first, it is the last
    first : the first beat of the entry, once it was taken
    """

    def __init__(self, params: HwParams):
        self.params = params
        beats = beats_layout(params)
        super().__init__(
            {
                "start": In(1),
                "beats": In(beats),
                "beat": In(params.bus_bits),
                "arrives": In(1),
                "number": Out(beats["more_beats"].shape),
                "at_first": Out(1),
                "at_last": Out(1),
                "first": Out(params.bus_bits),
            }
        )

    def elaborate(self, platform) -> Module:
        m = Module()
        beats = Signal.like(self.beats)
        first = Signal.like(self.first, reset_less=True)
        m.d.comb += self.first.eq(first)
        following = self.number + 1
        with m.If(self.arrives):
            m.d.sync += [
                self.number.eq(Mux(self.at_last, 0, following)),
                self.at_first.eq(self.at_last),
                self.at_last.eq(Mux(self.at_last, ~beats.wide, following == beats.more_beats)),
            ]
            with m.If(self.at_first):
                m.d.sync += first.eq(self.beat)
        with m.If(self.start):
            m.d.sync += [
                beats.eq(self.beats),
                self.number.eq(0),
                self.at_first.eq(1),
                self.at_last.eq(~self.beats.wide),
            ]
        return m
