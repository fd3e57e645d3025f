"""A queue of registered level: what enters in cycle t can leave from t+1; a slot freed in t can be
filled from t+1. Both of its ends are registers, so that decoders and arbiters beside it have the
whole cycle.
"""

from __future__ import annotations

from amaranth.hdl import Module, Mux, Signal, unsigned
from amaranth.lib import data, stream, wiring
from amaranth.lib.memory import Memory
from amaranth.lib.wiring import In, Out


class Queue(wiring.Component):
    """First in, first out.

    Parameters
    ----------
    shape : shape of the payload
    depth : entries, at least 1

    Attributes
    ----------
    i, o : streams in and out
    level : entries held
    """

    def __init__(self, shape, depth: int):
        self._shape, self.depth = shape, depth
        super().__init__(
            {
                "i": In(stream.Signature(shape)),
                "o": Out(stream.Signature(shape)),
                "level": Out(range(depth + 1)),
            }
        )

    def elaborate(self, platform) -> Module:
        m = Module()
        width = len(data_value(self.i.payload))
        m.submodules.storage = memory = Memory(shape=unsigned(width), depth=self.depth, init=[])
        write, read = memory.write_port(), memory.read_port(domain="comb")
        produce = Signal(range(self.depth))
        # The address of the element after the head.
        following = Signal(range(self.depth), init=1 % self.depth)
        level = Signal(range(self.depth + 1))
        valid = Signal()
        ready = Signal(init=1)
        # The element to leave next; those behind it are read from the memory.
        head = Signal(width, reset_less=True)
        enters = Signal()
        leaves = Signal()
        m.d.comb += [
            enters.eq(self.i.valid & ready),
            leaves.eq(self.o.ready & valid),
            write.addr.eq(produce), write.en.eq(enters),
            write.data.eq(data_value(self.i.payload)),
            read.addr.eq(following),
            data_value(self.o.payload).eq(head),
            self.o.valid.eq(valid), self.i.ready.eq(ready), self.level.eq(level),
        ]  # fmt: skip
        with m.If(leaves | (enters & ~valid)):
            m.d.sync += head.eq(Mux(level > 1, read.data, write.data))
        with m.If(enters):
            m.d.sync += produce.eq(self._next(produce))
        with m.If(leaves):
            m.d.sync += following.eq(self._next(following))
        with m.If(enters & ~leaves):
            m.d.sync += [level.eq(level + 1), valid.eq(1), ready.eq(level != self.depth - 1)]
        with m.Elif(leaves & ~enters):
            m.d.sync += [level.eq(level - 1), valid.eq(level != 1), ready.eq(1)]
        return m

    def _next(self, place: Signal):
        return Mux(place == self.depth - 1, 0, place + 1)


def data_value(value):
    """A view's bits, or the value itself."""
    return value.as_value() if isinstance(value, data.View) else value
