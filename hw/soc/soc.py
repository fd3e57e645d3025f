"""The system: a VexRiscv processor, the core as its peripheral, one memory for both, a serial line.

While the core runs the memory is its alone, so it takes the same cycles as without a processor,
which goes on in a memory of its own.
"""

from __future__ import annotations

import re
from importlib.util import find_spec
from pathlib import Path

from amaranth.hdl import ClockSignal, Const, Instance, Module, Mux, ResetInserter, Signal
from amaranth.lib import wiring
from amaranth.lib.wiring import In, Out, connect, flipped

from ...isa.errors import VdlaError
from ...isa.params import HwParams
from ...isa.sdram import PARTS
from ...isa.soc import (
    BOARD_BASE,
    DRAM_BASE,
    FAULT_LINE,
    FLASH,
    INTERRUPT_LINE,
    IO_BASE,
    LED_COUNT,
    LEDS,
    RAM_BASE,
    RAM_BYTES,
)
from ..boards.host_link import UartTransmitter
from ..boards.sdram import Sdram
from ..boards.system import MemoryShare
from ..core.technology import SIMULATION, Technology
from ..core.verilog import to_verilog
from .flash import Flash, flash_signature
from .peripheral import Peripheral
from .wishbone import WORD_BITS, AxiBridge, Ram, Share, bus_signature

TOP = "vdla_soc"
#: Cycles for which the processor is held in reset.
_RESET_CYCLES = 8
_PORT = re.compile(r"\b(pins|flash)__(\w+?)(?:__(\d))?\b")


class Cpu(wiring.Component):
    """The processor: VexRiscv of LiteX, RV32IM with caches for instructions and data.

    It knows no errors of its buses: what failed reads as 0, and ``fault`` says so.

    Attributes
    ----------
    instructions, data : its buses
    interrupts : its interrupts
    fault : a request has failed since power-on
    """

    def __init__(self) -> None:
        port = bus_signature()
        super().__init__(
            {"instructions": Out(port), "data": Out(port), "interrupts": In(32), "fault": Out(1)}
        )

    def elaborate(self, platform) -> Module:
        m = Module()
        held = Signal(range(_RESET_CYCLES + 1), init=_RESET_CYCLES)
        with m.If(held != 0):
            m.d.sync += held.eq(held - 1)
        ports = {}
        for name, bus in (("i", self.instructions), ("d", self.data)):
            for theirs, ours in (("CYC", "cyc"), ("STB", "stb"), ("WE", "we"), ("ADR", "adr"),
                                 ("DAT_MOSI", "dat_w"), ("SEL", "sel")):  # fmt: skip
                ports[f"o_{name}BusWishbone_{theirs}"] = getattr(bus, ours)
            ports[f"i_{name}BusWishbone_ERR"] = Const(0)
            ports[f"i_{name}BusWishbone_ACK"] = bus.ack | bus.err
            ports[f"i_{name}BusWishbone_DAT_MISO"] = Mux(bus.err, 0, bus.dat_r)
            with m.If(bus.err):
                m.d.sync += self.fault.eq(1)
        m.submodules.cpu = Instance(
            "VexRiscv", i_clk=ClockSignal(), i_reset=held != 0,
            i_externalResetVector=Const(RAM_BASE, 32), i_timerInterrupt=Const(0),
            i_softwareInterrupt=Const(0), i_externalInterruptArray=self.interrupts, **ports,
        )  # fmt: skip
        return m


class Soc(wiring.Component):
    """Core, processor, serial line and reader of the flash around one memory.

    Parameters
    ----------
    memory : with ``axi``; ``restart`` says that the core starts in this cycle
    divisor : int
        Clock cycles of a bit of the serial line.
    firmware : bytes
        What the processor's memory begins with; it starts at the first byte.

    Attributes
    ----------
    reset : resets all but the firmware's memory; from a register, as that of ``boards/system.py``
    tx : the serial line
    leds : what the firmware shows
    flash : pins of the flash that has the image
    """

    def __init__(
        self,
        params: HwParams,
        memory: wiring.Component,
        divisor: int,
        technology: Technology = SIMULATION,
        firmware: bytes = b"",
    ):
        self.params, self.memory, self.divisor = params, memory, divisor
        self.technology, self.firmware = technology, firmware
        super().__init__(
            {"reset": In(1), "tx": Out(1, init=1), "leds": Out(LED_COUNT),
             "flash": Out(flash_signature())}
        )  # fmt: skip

    def elaborate(self, platform) -> Module:
        m = Module()
        reset = ResetInserter(self.reset)
        cpu, bus = Cpu(), Share((RAM_BASE, DRAM_BASE, IO_BASE))
        ram, bridge = Ram(RAM_BYTES, self.firmware), AxiBridge(self.params)
        vdla = Peripheral(self.params, self.technology)
        serial, flash = UartTransmitter(self.divisor), Flash()
        share, memory = MemoryShare(self.params), self.memory
        m.submodules.cpu, m.submodules.bus, m.submodules.ram = reset(cpu), reset(bus), reset(ram)
        m.submodules.bridge, m.submodules.vdla = reset(bridge), vdla
        m.submodules.serial, m.submodules.flash = reset(serial), reset(flash)
        m.submodules.share, m.submodules.memory = reset(share), reset(memory)
        connect(m, cpu.data, bus.masters[0])
        connect(m, cpu.instructions, bus.masters[1])
        connect(m, bus.slaves[0], ram.bus)
        connect(m, bus.slaves[1], bridge.bus)
        connect(m, vdla.axi, share.core)
        connect(m, bridge.axi, share.host)
        connect(m, share.memory, memory.axi)
        connect(m, flash.pins, flipped(self.flash))
        io = bus.slaves[2]
        to_board = io.adr[(BOARD_BASE - IO_BASE).bit_length() - 3]
        request, clock = io.cyc & io.stb, Signal(WORD_BITS)
        m.d.sync += clock.eq(clock + 1)
        at_flash, at_leds = (io.adr[:2] == offset >> 2 for offset in (FLASH, LEDS))
        board = request & to_board
        done, shown = Signal(init=1), Signal(WORD_BITS)
        with m.If(at_flash):
            m.d.comb += [done.eq(flash.valid | io.we), shown.eq(flash.word)]
        with m.Elif(at_leds), m.If(board & io.we):
            m.d.sync += self.leds.eq(io.dat_w)
        with m.Else():
            m.d.comb += [done.eq(serial.i.ready | ~io.we), shown.eq(clock)]
            m.d.comb += serial.i.valid.eq(board & io.we)
        for name in ("we", "adr", "dat_w", "sel"):
            m.d.comb += getattr(vdla.bus, name).eq(getattr(io, name))
        m.d.comb += [
            vdla.bus.cyc.eq(request & ~to_board), vdla.bus.stb.eq(request & ~to_board),
            serial.i.payload.eq(io.dat_w), self.tx.eq(serial.tx),
            flash.address.eq(io.dat_w), flash.start.eq(board & at_flash & io.we),
            flash.take.eq(board & at_flash & ~io.we),
            io.ack.eq(Mux(to_board, board & done, vdla.bus.ack)),
            io.dat_r.eq(Mux(to_board, shown, vdla.bus.dat_r)), vdla.reset.eq(self.reset),
            cpu.interrupts.eq(vdla.irq << INTERRUPT_LINE | cpu.fault << FAULT_LINE),
            bridge.forget.eq(vdla.running),
        ]  # fmt: skip
        # As in front of a host's link (``boards/system.py``).
        receiving = Signal(init=1)
        m.d.sync += [share.running.eq(vdla.running), receiving.eq(vdla.running)]
        m.d.comb += share.receiving.eq(receiving)
        m.d.comb += memory.restart.eq(vdla.running & ~share.running)
        return m


class SocWithSdram(wiring.Component):
    """The system with the controller of a part of SDRAM; its pins and the flash's are ports, as
    are ``leds`` and ``button``, which resets."""

    def __init__(self, params: HwParams, part: str, divisor: int):
        memory = Sdram(params, PARTS[part])
        self.soc = Soc(params, memory, divisor)
        pins = memory.signature.members["pins"]
        super().__init__(
            {"button": In(1), "tx": Out(1, init=1), "leds": Out(LED_COUNT), "pins": pins,
             "flash": Out(flash_signature())}
        )  # fmt: skip

    def elaborate(self, platform) -> Module:
        m = Module()
        m.submodules.soc = self.soc
        m.d.sync += self.soc.reset.eq(self.button)
        m.d.comb += [self.tx.eq(self.soc.tx), self.leds.eq(self.soc.leds)]
        connect(m, self.soc.memory.pins, flipped(self.pins))
        connect(m, self.soc.flash, flipped(self.flash))
        return m


def cpu_verilog() -> Path:
    """The processor's Verilog. Raises VdlaError unless its package is installed."""
    spec = find_spec("pythondata_cpu_vexriscv")
    if spec is None or spec.origin is None:
        raise VdlaError(
            "pythondata-cpu-vexriscv is not installed; install the soc extra: "
            "pip install 'vdla[soc]'"
        )
    return Path(spec.origin).parent / "verilog" / "VexRiscv.v"


def soc_verilog(params: HwParams, part: str, divisor: int) -> str:
    """The system in front of a part of SDRAM as Verilog text, without the processor's; ports of the
    pins are flat: ``pins_command_0``, ..."""
    text = to_verilog(SocWithSdram(params, part, divisor), TOP)
    return _PORT.sub(lambda port: "_".join(filter(None, port.groups())), text)
