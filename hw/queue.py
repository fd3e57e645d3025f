"""Instruction queue: a FIFO whose every output is a register or a lookup by one."""

from __future__ import annotations

from amaranth.hdl import Module, Mux, ShapeLike, Signal
from amaranth.lib import stream, wiring
from amaranth.lib.memory import Memory
from amaranth.lib.wiring import In, Out


class Queue(wiring.Component):
    """FIFO of a fixed depth with registered level.

    What is put in cycle *t* can be taken from *t + 1*; a slot taken in cycle *s* can be filled from
    *s + 1* (``docs/timing.md``).

    Parameters
    ----------
    shape : ShapeLike
        Shape of an element.
    depth : int
        Elements held, at least 1.

    Members
    -------
    i : In(stream.Signature(shape))
        Where elements enter.
    o : Out(stream.Signature(shape))
        Where they leave, in order.
    level : Out(range(depth + 1))
        Elements held now.
    """

    def __init__(self, shape: ShapeLike, depth: int) -> None:
        if depth < 1:
            raise ValueError(f"Queue depth: expected at least 1, got {depth!r}")
        self.shape = shape
        self.depth = depth
        super().__init__(
            {
                "i": In(stream.Signature(shape)),
                "o": Out(stream.Signature(shape)),
                "level": Out(range(depth + 1)),
            }
        )

    def elaborate(self, platform: object) -> Module:
        m = Module()
        m.submodules.storage = storage = Memory(shape=self.shape, depth=self.depth, init=[])
        write = storage.write_port()
        read = storage.read_port(domain="comb")
        head = Signal(range(self.depth))
        tail = Signal(range(self.depth))
        put = Signal()
        take = Signal()
        m.d.comb += [
            self.i.ready.eq(self.level != self.depth),
            self.o.valid.eq(self.level != 0),
            put.eq(self.i.valid & self.i.ready),
            take.eq(self.o.valid & self.o.ready),
            write.addr.eq(tail),
            write.data.eq(self.i.payload),
            write.en.eq(put),
            read.addr.eq(head),
            self.o.payload.eq(read.data),
        ]
        m.d.sync += self.level.eq(self.level + put - take)
        with m.If(put):
            m.d.sync += tail.eq(Mux(tail == self.depth - 1, 0, tail + 1))
        with m.If(take):
            m.d.sync += head.eq(Mux(head == self.depth - 1, 0, head + 1))
        return m
