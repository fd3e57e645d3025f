"""What every board holds: the core, the host link, and one memory between them."""

from __future__ import annotations

from amaranth.hdl import Cat, Module, Mux, ResetInserter, Signal
from amaranth.lib import wiring
from amaranth.lib.wiring import In, Out, connect

from ...isa.params import HwParams
from ...isa.regmap import CONTROL_RESET, OFFSETS
from ..core.core import Core
from ..core.dma import axi_signature
from ..core.technology import Technology
from .host_link import HostLink

#: Status LEDs: heartbeat, core runs, host link active, an unfinished write is being drained.
LEDS = 4
_HEARTBEAT_BITS = 25


class MemoryShare(wiring.Component):
    """Gives the memory to the core while it runs, and to the host otherwise.

    A core that was stopped by an error leaves unfinished bursts behind. Their read data is accepted
    in its place, and their missing write beats are sent with no byte enabled, so that the memory
    becomes idle. The memory takes one burst at a time on each channel, so an access of the host
    waits until then.

    Attributes
    ----------
    core, host : the masters;  memory : the memory
    running : the core has the memory
    draining : a write that the core has left is completed
    """

    def __init__(self, params: HwParams):
        port = axi_signature(params)
        super().__init__(
            {
                "core": In(port), "host": In(port), "memory": Out(port),
                "running": In(1), "draining": Out(1),
            }
        )  # fmt: skip

    def elaborate(self, platform) -> Module:
        m = Module()
        for name, member in self.memory.signature.members.items():
            ours, theirs = (
                getattr(self.memory, name),
                (getattr(self.core, name), getattr(self.host, name)),
            )
            if member.flow == Out:
                m.d.comb += ours.eq(Mux(self.running, *theirs))
            else:
                gated = name.endswith(("valid", "ready"))
                m.d.comb += theirs[0].eq(Mux(self.running, ours, 0) if gated else ours)
                m.d.comb += theirs[1].eq(Mux(self.running, 0, ours) if gated else ours)
        unanswered, host_reads = Signal(), Signal()
        core, memory, host = self.core, self.memory, self.host
        with m.If(memory.bvalid & memory.bready):
            m.d.sync += unanswered.eq(0)
        with m.If(self.running & core.awvalid & core.awready):
            m.d.sync += unanswered.eq(1)
        with m.If(~self.running & memory.rvalid & host.rready & memory.rlast):
            m.d.sync += host_reads.eq(0)
        with m.If(~self.running & host.arvalid & host.arready):
            m.d.sync += host_reads.eq(1)
        m.d.comb += self.draining.eq(unanswered & ~self.running)
        with m.If(self.draining):
            m.d.comb += [memory.wvalid.eq(1), memory.wstrb.eq(0), memory.bready.eq(1)]
            m.d.comb += [host.wready.eq(0), host.bvalid.eq(0)]
        with m.If(~self.running & ~host_reads):
            m.d.comb += [memory.rready.eq(1), host.rvalid.eq(0)]
        return m


class System(wiring.Component):
    """Parameters
    ----------
    memory : component
        With ``axi``; its other ports are left to the board.
    divisor : int
        Clock cycles of a bit of the host link.
    technology : Technology
        What the core is built from.

    Attributes
    ----------
    reset : resets everything. It is not the reset of the clock domain: like the core's reset, which
        the host can ask for, it must come from a register, because it goes everywhere.
    rx, tx : the host link
    leds : see :data:`LEDS`
    """

    def __init__(
        self,
        params: HwParams,
        memory: wiring.Component,
        divisor: int,
        technology: Technology,
    ):
        self.params, self.memory = params, memory
        self.divisor, self.technology = divisor, technology
        super().__init__(
            {"reset": In(1), "rx": In(1, init=1), "tx": Out(1, init=1), "leds": Out(LEDS)}
        )

    def elaborate(self, platform) -> Module:
        m = Module()
        m.submodules.core = core = Core(self.params, self.technology)
        link, share = HostLink(self.params, self.divisor), MemoryShare(self.params)
        reset = ResetInserter(self.reset)
        m.submodules.link, m.submodules.share = reset(link), reset(share)
        m.submodules.memory = reset(self.memory)
        connect(m, link.regs, core.regs)
        resets = Signal()
        m.d.sync += resets.eq(self.reset)
        with m.If(resets):
            m.d.comb += [core.regs.addr.eq(OFFSETS["control"]), core.regs.write.eq(1)]
            m.d.comb += core.regs.wdata.eq(CONTROL_RESET)
        connect(m, core.axi, share.core)
        connect(m, link.axi, share.host)
        connect(m, share.memory, self.memory.axi)
        heartbeat = Signal(_HEARTBEAT_BITS)
        # A cycle late, before the core's first access.
        m.d.sync += [heartbeat.eq(heartbeat + 1), share.running.eq(core.running)]
        m.d.comb += [
            link.rx.eq(self.rx), self.tx.eq(link.tx),
            self.leds.eq(Cat(heartbeat[-1], core.running, link.active, share.draining)),
        ]  # fmt: skip
        return m
