"""The core for systems with an AXI interconnect: registers behind an AXI4-Lite slave, memory behind
an AXI4 master, the names of ports as Xilinx' tools expect them.
"""

from __future__ import annotations

from amaranth.hdl import ClockDomain, ClockSignal, Module, ResetSignal, Signal
from amaranth.lib import wiring
from amaranth.lib.wiring import Component, In, Out, connect

from ...isa.params import HwParams
from ..core.core import Core
from ..core.dma import RESP_OKAY, RESP_SLVERR, axi_signature
from ..core.regs import ADDR_BITS, port_signature
from ..core.technology import Technology

#: What the core leaves open of an AXI4 master's address channels: normal, secure data accesses to
#: memory that may be buffered, not cached.
CACHE, PROT = 0b0011, 0b000


def axi_lite_signature() -> wiring.Signature:
    """An AXI4-Lite port of 32 bits, seen from the slave."""
    return wiring.Signature(
        {
            "awvalid": In(1), "awready": Out(1), "awaddr": In(ADDR_BITS), "awprot": In(3),
            "wvalid": In(1), "wready": Out(1), "wdata": In(32), "wstrb": In(4),
            "bvalid": Out(1), "bready": In(1), "bresp": Out(2),
            "arvalid": In(1), "arready": Out(1), "araddr": In(ADDR_BITS), "arprot": In(3),
            "rvalid": Out(1), "rready": In(1), "rdata": Out(32), "rresp": Out(2),
        }
    )  # fmt: skip


class AxiLite(Component):
    """Turns the accesses of an AXI4-Lite master into accesses to the registers, one at a time; a
    write of less than a whole register is refused.

    Attributes
    ----------
    axi : the slave port;  regs : the register file
    """

    def __init__(self) -> None:
        super().__init__({"axi": Out(axi_lite_signature()), "regs": Out(port_signature())})

    def elaborate(self, platform) -> Module:
        m = Module()
        axi, regs = self.axi, self.regs
        write, read = Signal(), Signal()
        m.d.comb += [
            write.eq(axi.awvalid & axi.wvalid & ~axi.bvalid),
            # The port has one address; writes go first.
            read.eq(axi.arvalid & ~axi.rvalid & ~write),
            axi.awready.eq(write), axi.wready.eq(write), axi.arready.eq(read),
            regs.addr.eq(axi.araddr),
            regs.wdata.eq(axi.wdata), regs.write.eq(write & axi.wstrb.all()),
            axi.rresp.eq(RESP_OKAY),
        ]  # fmt: skip
        with m.If(write):
            m.d.comb += regs.addr.eq(axi.awaddr)
            m.d.sync += [
                axi.bvalid.eq(1), axi.bresp.eq((~axi.wstrb.all()) << (RESP_SLVERR - 1)),
            ]  # fmt: skip
        with m.Elif(axi.bready):
            m.d.sync += axi.bvalid.eq(0)
        with m.If(read):
            m.d.sync += [axi.rvalid.eq(1), axi.rdata.eq(regs.rdata)]
        with m.Elif(axi.rready):
            m.d.sync += axi.rvalid.eq(0)
        return m


class AxiCore(Component):
    """The core, its registers at ``s_axi`` and its memory at ``m_axi``, clocked by ``aclk`` and
    reset by ``aresetn`` = 0.
    """

    def __init__(self, params: HwParams, technology: Technology) -> None:
        self.params, self.technology = params, technology
        extra = {f"m_axi_a{c}{n}": Out(w, init=init) for c in "rw"
                 for n, w, init in (("cache", 4, CACHE), ("prot", 3, PROT))}  # fmt: skip
        flat = {
            f"{prefix}_{name}": member
            for prefix, signature in (("m_axi", axi_signature(params)),
                                      ("s_axi", axi_lite_signature()))
            for name, member in signature.members.items()
        }  # fmt: skip
        super().__init__({"aclk": In(1), "aresetn": In(1), **flat, **extra})

    def elaborate(self, platform) -> Module:
        m = Module()
        m.domains.sync = ClockDomain()
        m.d.comb += [ClockSignal().eq(self.aclk), ResetSignal().eq(~self.aresetn)]
        m.submodules.core = core = Core(self.params, self.technology)
        m.submodules.slave = slave = AxiLite()
        connect(m, slave.regs, core.regs)
        for prefix, port in (("m_axi", core.axi), ("s_axi", slave.axi)):
            for name, member in port.signature.members.items():
                outer, inner = getattr(self, f"{prefix}_{name}"), getattr(port, name)
                m.d.comb += outer.eq(inner) if member.flow == Out else inner.eq(outer)
        return m
