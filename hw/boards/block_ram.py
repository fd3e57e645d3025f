"""Block RAM behind an AXI4 port: the memory of boards, or of tests, that have nothing else.

It is the memory of ``isa/memory.py`` with the parameters of :data:`MEMORY`, so that a core in front
of it takes as many cycles as in simulation.
"""

from __future__ import annotations

from amaranth.hdl import Module, Mux, Signal, unsigned
from amaranth.lib import wiring
from amaranth.lib.memory import Memory
from amaranth.lib.wiring import In

from ...isa.memory import MemoryParams
from ...isa.params import HwParams
from ..core.dma import RESP_SLVERR, axi_signature
from ..core.queue import Queue

#: One burst at a time on each channel; its words pass the RAM, a register and a queue.
MEMORY = MemoryParams(read_latency_cycles=3, write_latency_cycles=1, outstanding=1)
_QUEUE_DEPTH = 4


class BlockRam(wiring.Component):
    """Parameters
    ----------
    size_bytes : int
        A power of two; accesses beyond it are answered with an error.

    Attributes
    ----------
    axi : the port, seen from the master
    restart : nothing happens; memories whose cycles have a history need it
    """

    def __init__(self, params: HwParams, size_bytes: int):
        assert size_bytes & (size_bytes - 1) == 0, size_bytes
        self.params, self.size_bytes = params, size_bytes
        super().__init__({"axi": In(axi_signature(params)), "restart": In(1)})

    def elaborate(self, platform) -> Module:
        m = Module()
        width = self.params.bus_bits
        m.submodules.storage = memory = Memory(
            shape=unsigned(width),
            depth=self.size_bytes * 8 // width,
            init=[],
            attrs={"no_rw_check": 1},
        )
        self._reads(m, memory.read_port(domain="sync"))
        self._writes(m, memory.write_port(granularity=8))
        return m

    def _inside(self, address):
        return (address >> (self.size_bytes.bit_length() - 1)) == 0

    def _reads(self, m: Module, port) -> None:
        axi, bus_bytes = self.axi, self.params.bus_bytes
        busy, left, to_ask = Signal(), Signal(9), Signal(9)
        address = Signal(len(axi.araddr))
        asked, asked_inside = Signal(), Signal()
        m.submodules.beats = beats = Queue(unsigned(self.params.bus_bits + 1), _QUEUE_DEPTH)
        # The word that the RAM was asked for in the last cycle has its place in the queue.
        ask = (to_ask != 0) & (beats.level + asked < _QUEUE_DEPTH)
        m.d.comb += [
            port.addr.eq(address // bus_bytes), port.en.eq(ask),
            beats.i.valid.eq(asked),
            beats.i.payload.eq((Mux(asked_inside, port.data, 0) << 1) | ~asked_inside),
            beats.o.ready.eq(axi.rready),
            axi.arready.eq(~busy),
            axi.rvalid.eq(beats.o.valid),
            axi.rdata.eq(beats.o.payload[1:]),
            axi.rresp.eq(Mux(beats.o.payload[0], RESP_SLVERR, 0)),
            axi.rlast.eq(left == 1),
        ]  # fmt: skip
        m.d.sync += [asked.eq(ask), asked_inside.eq(self._inside(address))]
        with m.If(ask):
            m.d.sync += [to_ask.eq(to_ask - 1), address.eq(address + bus_bytes)]
        with m.If(axi.rvalid & axi.rready):
            m.d.sync += left.eq(left - 1)
            with m.If(axi.rlast):
                m.d.sync += busy.eq(0)
        with m.If(axi.arvalid & ~busy):
            m.d.sync += [
                busy.eq(1), axi.rid.eq(axi.arid), address.eq(axi.araddr),
                left.eq(axi.arlen + 1), to_ask.eq(axi.arlen + 1),
            ]  # fmt: skip

    def _writes(self, m: Module, port) -> None:
        axi, bus_bytes = self.axi, self.params.bus_bytes
        busy, left, error = Signal(), Signal(9), Signal()
        address = Signal(len(axi.awaddr))
        taken = axi.wvalid & axi.wready
        m.d.comb += [
            axi.awready.eq(~busy),
            axi.wready.eq(left != 0),
            port.addr.eq(address // bus_bytes),
            port.data.eq(axi.wdata),
            port.en.eq(Mux(taken & self._inside(address), axi.wstrb, 0)),
            axi.bvalid.eq(busy & (left == 0)),
            axi.bresp.eq(Mux(error, RESP_SLVERR, 0)),
        ]
        with m.If(taken):
            m.d.sync += [left.eq(left - 1), address.eq(address + bus_bytes)]
            m.d.sync += error.eq(error | ~self._inside(address))
        with m.If(axi.bvalid & axi.bready):
            m.d.sync += busy.eq(0)
        with m.If(axi.awvalid & ~busy):
            m.d.sync += [
                busy.eq(1), axi.bid.eq(axi.awid), address.eq(axi.awaddr),
                left.eq(axi.awlen + 1), error.eq(0),
            ]  # fmt: skip
