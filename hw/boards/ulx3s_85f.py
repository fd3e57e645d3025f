"""ULX3S 85F: 32 MiB of SDRAM as memory."""

from __future__ import annotations

from amaranth.hdl import Cat, ClockSignal, Instance, IOPort, Module, Signal, Value
from amaranth.lib.wiring import Out

from ...isa.errors import VdlaError
from ...isa.params import PRESETS, HwParams
from ...isa.sdram import PARTS, ULX3S
from ..fpga.devices import ECP5_85F, Board
from .sdram import Sdram
from .ulx3s import BUS_BITS, PINS, Ulx3s, constraints, system

#: Ports of the SDRAM: width, and the name in the board's pin map.
SDRAM_PORTS = {
    "sdram_clk": (1, "clk"), "sdram_cke": (1, "clk_en"), "sdram_cs_n": (1, "cs"),
    "sdram_ras_n": (1, "ras"), "sdram_cas_n": (1, "cas"), "sdram_we_n": (1, "we"),
    "sdram_ba": (2, "ba"), "sdram_a": (13, "a"), "sdram_dqm": (2, "dqm"),
}  # fmt: skip


#: Its pins and the data's in the board's pin map.
SDRAM_PINS = {name: ("sdram", 0, part) for name, (_, part) in SDRAM_PORTS.items()}
SDRAM_PINS |= {"sdram_dq": ("sdram", 0, "dq")}


class Ulx3sWithSdram(Ulx3s):
    """The top level; ``io_ports`` are the data pins, which go both ways."""

    def __init__(self, system, freq_mhz: float, **ports):
        its = {name: Out(width) for name, (width, _) in SDRAM_PORTS.items()}
        super().__init__(system, freq_mhz, **its, **ports)
        self.dq = IOPort(PARTS[ULX3S].word_bits, name="sdram_dq")
        self.io_ports = (self.dq,)
        self.double = Signal(name="double")

    def elaborate(self, platform) -> Module:
        m = super().elaborate(platform)
        pins = self.system.memory.pins
        commands = [Cat(self.sdram_we_n, self.sdram_cas_n, self.sdram_ras_n), self.sdram_ba,
                    self.sdram_a, self.sdram_dqm]  # fmt: skip
        for port, (first, second) in zip(
            commands, (pins.command, pins.bank, pins.address, pins.mask), strict=True
        ):
            for bit in range(len(port)):
                m.submodules += _output(port[bit], first[bit], second[bit])
        # The chip samples in the middle of each of its clocks.
        m.d.comb += [self.sdram_clk.eq(self.double), self.sdram_cke.eq(1), self.sdram_cs_n.eq(0)]
        driven = Signal()
        m.d.sync += driven.eq(pins.data_oe)  # as late as the data
        for bit in range(len(self.dq)):
            goes, comes = Signal(name=f"goes_{bit}"), Signal(name=f"comes_{bit}")
            m.submodules += _output(goes, pins.data_o[0][bit], pins.data_o[1][bit])
            m.submodules += Instance(
                "IDDRX1F", i_D=comes, i_SCLK=ClockSignal(), i_RST=0,
                o_Q0=pins.data_i[0][bit], o_Q1=pins.data_i[1][bit],
            )  # fmt: skip
            m.submodules += Instance("BB", i_I=goes, i_T=~driven, o_O=comes, io_B=self.dq[bit])
        return m


def _output(pin: Value, first: Value, second: Value) -> Instance:
    """A pin that shows one value in each half of a cycle."""
    return Instance("ODDRX1F", i_D0=first, i_D1=second, i_SCLK=ClockSignal(), i_RST=0, o_Q=pin)


def check_clock(freq_mhz: float) -> None:
    """Raise VdlaError for a clock of the core for which the numbers of the chip do not hold."""
    part = PARTS[ULX3S]
    if not part.lowest_mhz <= freq_mhz <= part.highest_mhz:
        raise VdlaError(
            f"clock: expected {part.lowest_mhz:g} to {part.highest_mhz:g} MHz, between which the "
            f"SDRAM runs as its timing says, got {freq_mhz:g}"
        )


def design(params: HwParams, freq_mhz: float) -> Ulx3sWithSdram:
    """The top level; VdlaError as of :func:`check_clock`."""
    check_clock(freq_mhz)
    memory = Sdram(params, PARTS[ULX3S])
    return Ulx3sWithSdram(system(params, memory, freq_mhz), freq_mhz)


BOARD = Board(
    name="ulx3s-85f",
    doc="ULX3S with an ECP5-85F and its 32 MiB of SDRAM",
    device=ECP5_85F,
    hw=PRESETS["8x8"],
    freq_mhz=60.0,
    design=design,
    constraints=constraints(PINS | SDRAM_PINS),
    bus_bits=BUS_BITS,
)
