"""The core as a peripheral: registers on the processor's bus, a memory port, an interrupt."""

from __future__ import annotations

import re

from amaranth.hdl import Module, Signal
from amaranth.lib import wiring
from amaranth.lib.wiring import In, Out

from ...isa.params import HwParams
from ...isa.regmap import CONTROL_RESET, OFFSETS
from ...isa.soc import INTERRUPT, WINDOW
from ..core.core import Core
from ..core.dma import axi_signature
from ..core.regs import ADDR_BITS
from ..core.technology import SIMULATION, Technology
from ..core.verilog import to_verilog
from .wishbone import WORD_BITS, bus_signature

TOP = "vdla_peripheral"
_PORT = re.compile(r"\b(bus|axi)__(\w+)\b")


class Peripheral(wiring.Component):
    """Registers as of ``isa/soc.py``; each access takes a few cycles.

    Attributes
    ----------
    reset : the core and its peripheral forget what they did
    bus : the registers; of an address it looks at the bits of its own registers only
    axi : the core's memory port, at addresses in the window
    irq : the core has stopped, until the processor says that it knows
    running : the core runs
    """

    def __init__(self, params: HwParams, technology: Technology = SIMULATION):
        self.params, self.technology = params, technology
        super().__init__(
            {
                "bus": In(bus_signature()), "axi": Out(axi_signature(params)),
                "irq": Out(1), "running": Out(1), "reset": In(1),
            }
        )  # fmt: skip

    def elaborate(self, platform) -> Module:
        m = Module()
        bus = self.bus
        m.submodules.core = core = Core(self.params, self.technology)
        window, stopped = Signal(len(self.axi.araddr)), Signal()
        for name, member in self.axi.signature.members.items():
            ours, its = getattr(self.axi, name), getattr(core.axi, name)
            if member.flow != Out:
                m.d.comb += its.eq(ours)
            elif name in ("araddr", "awaddr"):
                m.d.comb += ours.eq(its | window)
            else:
                m.d.comb += ours.eq(its)
        # To the core's registers and back through registers, because the way through is long.
        address, own = bus.adr[: ADDR_BITS - 2], bus.adr[ADDR_BITS - 2]
        asked, answered = Signal(), Signal()
        taken = bus.cyc & bus.stb & ~asked & ~answered & ~bus.ack
        m.d.sync += [
            asked.eq(taken), answered.eq(asked), bus.ack.eq(answered),
            core.regs.addr.eq(address << 2), core.regs.wdata.eq(bus.dat_w),
            core.regs.write.eq(taken & bus.we & ~own),
        ]  # fmt: skip
        shown = Signal(WORD_BITS)
        with m.If(own):
            m.d.comb += shown.eq(stopped)
            with m.If(bus.adr[0] == (WINDOW >> 2 & 1)):
                m.d.comb += shown.eq(window)
        with m.Else():
            m.d.comb += shown.eq(core.regs.rdata)
        m.d.sync += bus.dat_r.eq(shown)
        ran = Signal()
        m.d.sync += ran.eq(core.running)
        with m.If(taken & bus.we & own):
            with m.If(bus.adr[0] == (WINDOW >> 2 & 1)):
                m.d.sync += window.eq(bus.dat_w)
            with m.Elif(bus.adr[0] == (INTERRUPT >> 2 & 1)):
                m.d.sync += stopped.eq(0)
        with m.If(ran & ~core.running):
            m.d.sync += stopped.eq(1)
        with m.If(self.reset):
            m.d.sync += [
                stopped.eq(0), core.regs.addr.eq(OFFSETS["control"]), core.regs.write.eq(1),
                core.regs.wdata.eq(CONTROL_RESET),
            ]  # fmt: skip
        m.d.comb += [self.irq.eq(stopped), self.running.eq(core.running)]
        return m


def peripheral_verilog(params: HwParams, technology: Technology = SIMULATION) -> str:
    """The peripheral as Verilog text; ports are flat: ``bus_adr``, ``axi_araddr``, ``irq``, ..."""
    return _PORT.sub(r"\1_\2", to_verilog(Peripheral(params, technology), TOP))
