"""Designs with the controller of an SDRAM for a simulator: all but the chip, whose pins are
ports.
"""

from __future__ import annotations

import re

from amaranth.hdl import Module, Signal
from amaranth.lib import wiring
from amaranth.lib.wiring import Out, connect, flipped

from ...isa.errors import VdlaError
from ...isa.hostlink import WORD_BYTES
from ...isa.params import HwParams
from ...isa.sdram import PARTS
from ..core.core import Core
from ..core.verilog import TOP as CORE_TOP
from ..core.verilog import to_verilog
from ..fpga.devices import ECP5_85F
from .sdram import Sdram
from .system import System
from .ulx3s import OSCILLATOR_MHZ, Ulx3s

TOP = "vdla_board"
_PORT = re.compile(r"\b(pins|regs)__(\w+?)(?:__(\d))?\b")
#: Clock cycles of a bit on the serial line: the fewest that the receiver takes.
BIT_CYCLES = 4


class Board(Ulx3s):
    """The design of the ULX3S at the oscillator's frequency, for which it needs no PLL; what goes
    to the pins of the chip and comes from them are ports, as of ``pins_signature``."""

    def __init__(self, params: HwParams):
        memory = Sdram(params)
        super().__init__(
            System(params, memory, BIT_CYCLES, ECP5_85F.technology(params)), OSCILLATOR_MHZ,
            pins=memory.signature.members["pins"],
        )  # fmt: skip

    def elaborate(self, platform) -> Module:
        m = super().elaborate(platform)
        connect(m, self.system.memory.pins, flipped(self.pins))
        return m


def board_verilog(params: HwParams) -> str:
    """The design as Verilog text; ports of the pins are flat: ``pins_command_0``, ...

    Raises VdlaError where the host link does not fit to the configuration.
    """
    if params.bus_bytes != WORD_BYTES:
        raise VdlaError(
            f"board: expected a bus of {8 * WORD_BYTES} bits, which the host link has, got "
            f"{params.bus_bits}"
        )
    return _flat(to_verilog(Board(params), TOP))


class CoreWithSdram(wiring.Component):
    """The core, and the controller of its memory in the place of its AXI4 port.

    Attributes
    ----------
    pins, ready : as of :class:`~vdla.hw.boards.sdram.Sdram`
    """

    def __init__(self, params: HwParams, part: str):
        self.core, self.memory = Core(params), Sdram(params, PARTS[part])
        members = dict(self.core.signature.members)
        del members["axi"]
        pins = self.memory.signature.members["pins"]
        super().__init__({**members, "pins": pins, "ready": Out(1)})

    def elaborate(self, platform) -> Module:
        m = Module()
        m.submodules.core, m.submodules.memory = core, memory = self.core, self.memory
        connect(m, core.axi, memory.axi)
        connect(m, flipped(self.regs), core.regs)
        connect(m, memory.pins, flipped(self.pins))
        ran = Signal()
        m.d.sync += ran.eq(core.running)
        m.d.comb += [
            memory.restart.eq(core.running & ~ran), self.ready.eq(memory.ready),
            self.started.eq(core.started), self.ended.eq(core.ended),
            self.running.eq(core.running),
        ]  # fmt: skip
        return m


def core_with_sdram_verilog(params: HwParams, part: str) -> str:
    """The core with the controller of a part as Verilog text. The module is called as the core is,
    and its ports are flat: ``regs_addr``, ``pins_command_0``, ..."""
    return _flat(to_verilog(CoreWithSdram(params, part), CORE_TOP))


def _flat(verilog: str) -> str:
    """With names of ports that simulators take as they are."""
    return _PORT.sub(lambda port: "_".join(filter(None, port.groups())), verilog)
