"""A queue of registered level: what enters in cycle t can leave from t+1; a slot freed in t can be
filled from t+1.
"""

from __future__ import annotations

from amaranth.hdl import Cat, Module, Signal
from amaranth.lib import data, stream, wiring
from amaranth.lib.fifo import SyncFIFO
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
        payload = Signal.like(data_value(self.i.payload))
        m.submodules.fifo = fifo = SyncFIFO(width=len(payload), depth=self.depth)
        m.d.comb += [
            fifo.w_data.eq(data_value(self.i.payload)),
            fifo.w_en.eq(self.i.valid),
            self.i.ready.eq(fifo.w_rdy),
            data_value(self.o.payload).eq(fifo.r_data),
            self.o.valid.eq(fifo.r_rdy),
            fifo.r_en.eq(self.o.ready),
            self.level.eq(fifo.level),
        ]
        return m


def data_value(value):
    """A view's bits, or the value itself."""
    return value.as_value() if isinstance(value, data.View) else value


def strobe(valid, mask):
    """``mask`` while ``valid``, else 0."""
    return Cat(bit & valid for bit in mask)
