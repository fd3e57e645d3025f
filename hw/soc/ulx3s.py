"""The system on the ULX3S 85F: a network runs from power-on."""

from __future__ import annotations

from amaranth.hdl import Instance, Module
from amaranth.lib.wiring import In, Out

from ...isa.errors import VdlaError
from ...isa.params import PRESETS, HwParams
from ...isa.sdram import PARTS, ULX3S
from ..boards.sdram import Sdram
from ..boards.ulx3s import BUS_BITS, PINS, constraints
from ..boards.ulx3s_85f import SDRAM_PINS, Ulx3sWithSdram, check_clock
from ..fpga.devices import ECP5_85F, Board
from .soc import Soc, cpu_verilog

BOARD = "ulx3s-85f"
#: Bits a second of the serial line, which terminals know.
BAUD = 115_200
#: Port of the design: resource of the board's pin map, its number, part of it. The clock has no
#: pin of its own: it is that of the configuration.
FLASH_PINS = {
    f"flash_{port}": ("spi_flash", 0, part)
    for port, part in (("select_n", "cs"), ("command", "copi"), ("data", "cipo"),
                       ("hold_n", "hold"), ("protect_n", "wp"))
}  # fmt: skip


class Ulx3sWithSoc(Ulx3sWithSdram):
    """The top level: that of a board with SDRAM, and the pins of the flash."""

    def __init__(self, system: Soc, freq_mhz: float):
        outputs = dict.fromkeys(("flash_select_n", "flash_command", "flash_hold_n",
                                 "flash_protect_n"), Out(1))  # fmt: skip
        super().__init__(system, freq_mhz, **outputs, flash_data=In(1))

    def elaborate(self, platform) -> Module:
        m = super().elaborate(platform)
        pins = self.system.flash
        m.submodules.flash_clock = Instance("USRMCLK", i_USRMCLKI=pins.clock, i_USRMCLKTS=0)
        m.d.comb += [
            self.flash_select_n.eq(pins.select_n), self.flash_command.eq(pins.command),
            pins.data.eq(self.flash_data), self.flash_hold_n.eq(1), self.flash_protect_n.eq(1),
        ]  # fmt: skip
        return m


def check_board(name: str) -> None:
    """Raise VdlaError for a board that has no design of the system."""
    if name != BOARD:
        raise VdlaError(
            f"board: expected {BOARD}, the one with a design of the system, got {name!r}"
        )


def soc_board(firmware: bytes) -> Board:
    """The board with a system whose processor has this firmware.

    Raises VdlaError where the processor's package is missing.
    """

    def design(params: HwParams, freq_mhz: float) -> Ulx3sWithSoc:
        check_clock(freq_mhz)
        memory, technology = Sdram(params, PARTS[ULX3S]), ECP5_85F.technology(params)
        system = Soc(params, memory, round(freq_mhz * 1e6 / BAUD), technology, firmware)
        return Ulx3sWithSoc(system, freq_mhz)

    return Board(
        name=BOARD,
        doc="ULX3S with an ECP5-85F: a processor beside the core",
        device=ECP5_85F,
        hw=PRESETS["4x4"],
        freq_mhz=50.0,
        design=design,
        constraints=constraints(PINS | SDRAM_PINS | FLASH_PINS),
        bus_bits=BUS_BITS,
        verilog=cpu_verilog().read_text("utf-8"),
    )
