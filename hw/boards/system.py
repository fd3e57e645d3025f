"""What every board holds: the core, the host link, and one memory between them."""

from __future__ import annotations

from amaranth.hdl import Cat, Module, Mux, ResetInserter, Signal
from amaranth.lib import wiring
from amaranth.lib.wiring import In, Out, connect

from ...isa.memory import MEMORY_LEGAL
from ...isa.params import HwParams
from ...isa.regmap import CONTROL_RESET, OFFSETS
from ..core.core import Core
from ..core.dma import AXI_LEN_BITS, axi_signature
from ..core.technology import Technology
from .host_link import HostLink

#: Status LEDs: heartbeat, core runs, host link active, unfinished bursts are being drained.
LEDS = 4
_HEARTBEAT_BITS = 25


class MemoryShare(wiring.Component):
    """Gives the memory to the core while it runs, and to the host otherwise.

    A core that was stopped by an error leaves unfinished bursts behind. The data of its reads are
    accepted in its place, and the missing beats of a write are sent with no byte enabled. The host
    has the memory when all of them are finished.

    The core sends all beats of a write before it announces the next one, so of one write at most
    beats are missing.

    Attributes
    ----------
    core, host : the masters;  memory : the memory
    running : the core has the memory
    receiving : the same from a register of its own: the way of a beat into the core is long
    draining : what the core has left is finished
    """

    def __init__(self, params: HwParams):
        port = axi_signature(params)
        super().__init__(
            {
                "core": In(port), "host": In(port), "memory": Out(port),
                "running": In(1), "receiving": In(1), "draining": Out(1),
            }
        )  # fmt: skip

    def elaborate(self, platform) -> Module:
        m = Module()
        core, memory, host = self.core, self.memory, self.host
        free = Signal(init=1)
        for name, member in memory.signature.members.items():
            ours, its, hosts = (getattr(port, name) for port in (memory, core, host))
            handshake = name.endswith(("valid", "ready"))
            if member.flow == Out:
                m.d.comb += ours.eq(Mux(self.running, its, hosts & free if handshake else hosts))
            else:
                m.d.comb += its.eq(ours & self.receiving if handshake else ours)
                m.d.comb += hosts.eq(ours & free & ~self.running if handshake else ours)
        reads, writes = self._unfinished(m)
        # Counts are a cycle late, so the first cycle without the core says nothing.
        ran = Signal()
        m.d.sync += [
            ran.eq(self.running),
            free.eq(~self.running & (free | (~ran & (reads == 0) & (writes == 0)))),
        ]  # fmt: skip
        missing, more = Signal(), Signal(AXI_LEN_BITS)
        with m.If(memory.wvalid & memory.wready):
            m.d.sync += [missing.eq(more != 0), more.eq(more - 1)]
        with m.If(memory.awvalid & memory.awready):
            m.d.sync += [missing.eq(1), more.eq(memory.awlen)]
        m.d.comb += self.draining.eq(~self.running & ~free)
        with m.If(self.draining):
            m.d.comb += [
                memory.rready.eq(1), memory.bready.eq(1),
                memory.wvalid.eq(missing), memory.wstrb.eq(0), memory.wlast.eq(more == 0),
            ]  # fmt: skip
        return m

    def _unfinished(self, m: Module) -> tuple[Signal, Signal]:
        """Reads and writes that the memory has under way, a cycle late."""
        memory = self.memory
        most = max(MEMORY_LEGAL["outstanding"])
        counts = []
        for begins, ends in (
            (memory.arvalid & memory.arready, memory.rvalid & memory.rready & memory.rlast),
            (memory.awvalid & memory.awready, memory.bvalid & memory.bready),
        ):
            begun, ended, count = Signal(), Signal(), Signal(range(most + 1))
            m.d.sync += [begun.eq(begins), ended.eq(ends), count.eq(count + begun - ended)]
            counts.append(count)
        return counts[0], counts[1]


class System(wiring.Component):
    """Parameters
    ----------
    memory : component
        With ``axi``, and ``restart``: the core starts in this cycle. Its other ports are left to
        the board.
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
        # From registers, because the way through the core's counters is long. The link reads two
        # cycles after it has said the address.
        port = {name: Signal.like(getattr(core.regs, name)) for name in ("addr", "write", "wdata")}
        for name, asked in port.items():
            m.d.sync += asked.eq(getattr(link.regs, name))
            m.d.comb += getattr(core.regs, name).eq(asked)
        m.d.comb += link.regs.rdata.eq(core.regs.rdata)
        with m.If(self.reset):
            m.d.sync += [port["addr"].eq(OFFSETS["control"]), port["write"].eq(1)]
            m.d.sync += port["wdata"].eq(CONTROL_RESET)
        connect(m, core.axi, share.core)
        connect(m, link.axi, share.host)
        connect(m, share.memory, self.memory.axi)
        heartbeat, receiving = Signal(_HEARTBEAT_BITS), Signal(init=1)
        # A cycle late, before the core's first access. With the same initial value, which no beat
        # comes to see, synthesis would make one register of both.
        m.d.sync += [heartbeat.eq(heartbeat + 1), share.running.eq(core.running)]
        m.d.sync += receiving.eq(core.running)
        m.d.comb += [
            link.rx.eq(self.rx), self.tx.eq(link.tx), share.receiving.eq(receiving),
            self.memory.restart.eq(core.running & ~share.running),
            self.leds.eq(Cat(heartbeat[-1], core.running, link.active, share.draining)),
        ]  # fmt: skip
        return m
