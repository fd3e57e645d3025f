"""The side of the load unit that takes data."""

from __future__ import annotations

from amaranth.hdl import Module, Mux, Signal
from amaranth.lib import stream, wiring
from amaranth.lib.wiring import In, Out

from ....isa.params import HwParams
from ..layouts import queued_insn
from .beats import Collector, Splitter
from .transfer import Decoder, beats_layout, entry_bits, target_layout
from .walker import Walker


def placed_signature(params: HwParams) -> wiring.Signature:
    """What the placer does in a cycle, for the writer.

    ``target``: what is filled. ``entry``: which entry of it. ``step``: the entry is finished.
    ``pad``: it is padding. ``arrives``: a beat of data comes, number ``number`` of the entry.
    ``finished``: the instruction ends in this cycle. ``data``: the beat, or the entry of it in the
    lowest bytes. ``first``: the first beat of an entry that takes several.
    """
    return wiring.Signature(
        {
            "target": Out(target_layout(params)),
            "entry": Out(entry_bits(params)),
            "step": Out(1),
            "pad": Out(1),
            "arrives": Out(1),
            "number": Out(beats_layout(params)["more_beats"].shape),
            "finished": Out(1),
            "data": Out(params.bus_bits),
            "first": Out(params.bus_bits),
        }
    )


class Placer(wiring.Component):
    """Takes descriptors one after the other, and makes entries of padding and of beats. An entry of
    padding takes a cycle; so does a beat, or each of its entries if it holds several.

    Attributes
    ----------
    descriptor : instructions in the order in which their bursts were requested;  beat : data
    placed : what is placed in this cycle
    working : padding or a beat takes this cycle
    """

    def __init__(self, params: HwParams):
        self.params = params
        super().__init__(
            {
                "descriptor": In(stream.Signature(queued_insn(params))),
                "beat": In(stream.Signature(params.bus_bits)),
                "placed": Out(placed_signature(params)),
                "working": Out(1),
            }
        )

    def elaborate(self, platform) -> Module:
        m = Module()
        params, placed = self.params, self.placed
        m.submodules.decoder = decoder = Decoder(params)
        m.submodules.walker = walker = Walker(params)
        m.submodules.splitter = splitter = Splitter(params)
        m.submodules.collector = collector = Collector(params)
        transfer = decoder.transfer
        busy, start, target = Signal(), Signal(), Signal.like(transfer.target)
        m.d.comb += [
            decoder.descriptor.eq(self.descriptor.payload),
            self.descriptor.ready.eq(~busy),
            start.eq(self.descriptor.valid & ~busy),
            placed.target.eq(target),
            placed.entry.eq(walker.entry),
            walker.start.eq(start),
            walker.box.eq(transfer.box),
            splitter.start.eq(start),
            splitter.entry_bytes.eq(transfer.beats.entry_bytes),
            splitter.offset.eq(walker.offset),
            splitter.beyond.eq(walker.beyond),
            splitter.beat.eq(self.beat.payload),
            placed.data.eq(splitter.data),
            collector.start.eq(start),
            collector.beats.eq(transfer.beats),
            collector.beat.eq(self.beat.payload),
            placed.number.eq(collector.number),
            placed.first.eq(collector.first),
        ]
        with m.If(placed.finished):
            m.d.sync += busy.eq(0)
        with m.If(start):
            m.d.sync += [busy.eq(1), target.eq(transfer.target)]
        self._place(m, busy, start, decoder, walker, splitter, collector)
        return m

    def _place(
        self, m: Module, busy: Signal, start: Signal,
        decoder: Decoder, walker: Walker, splitter: Splitter, collector: Collector,
    ) -> None:  # fmt: skip
        """What a cycle is for: padding, a beat, or an entry of a beat that came before."""
        placed = self.placed
        narrow, wide = Signal(), Signal()
        with m.If(start):
            m.d.sync += [
                narrow.eq(decoder.transfer.beats.narrow), wide.eq(decoder.transfer.beats.wide)
            ]  # fmt: skip
        free, pad, arrives = Signal(), Signal(), Signal()
        # The first beat of an entry of several need not wait for the padding left of it.
        beside = walker.before & ~walker.pad_row & wide & collector.at_first
        m.d.comb += [
            free.eq(busy & ~splitter.holds),
            pad.eq(free & (walker.pad_row | walker.before | walker.beyond)),
            self.beat.ready.eq(free & (~pad | beside)),
            # A beat that comes beside padding does not count here.
            arrives.eq(self.beat.valid & free & ~pad),
            splitter.arrives.eq(arrives & narrow),
            collector.arrives.eq(self.beat.valid & self.beat.ready & ~narrow),
        ]
        step, row_over = Signal(), Signal()
        # Whether a beat arrives is known late, so it comes last in the logic. A beat that holds
        # several entries may go on after those of its row; padding to the right of them waits until
        # the beat is over.
        m.d.comb += [
            step.eq(
                pad
                | (splitter.holds & splitter.inside)
                | (arrives & Mux(narrow, splitter.inside, collector.at_last))
            ),
            row_over.eq(
                (pad & walker.at_last)
                | (splitter.holds & splitter.last
                   & Mux(splitter.inside, walker.at_last, walker.behind))
                | (arrives & ~narrow & collector.at_last & walker.at_last)
            ),
            walker.step.eq(step),
            walker.row_over.eq(row_over),
            splitter.entered.eq(step & ~pad),
            splitter.row_over.eq(row_over),
            placed.step.eq(step),
            placed.pad.eq(pad),
            placed.arrives.eq(arrives),
            placed.finished.eq(row_over & walker.last_row),
            self.working.eq(pad | arrives | splitter.holds),
        ]  # fmt: skip
