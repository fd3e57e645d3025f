"""ULX3S 85F: 32 MiB of SDRAM as memory."""

from __future__ import annotations

from amaranth.hdl import Cat, ClockSignal, Instance, IOPort, Module, Signal
from amaranth.lib.wiring import Out

from ...isa.params import PRESETS, HwParams
from ..fpga.devices import ECP5_85F, Board
from .sdram import DATA_BITS, Sdram
from .system import System
from .ulx3s import BUS_BITS, PINS, Ulx3s, constraints, system

#: Ports of the SDRAM: width, and the name in the board's pin map.
SDRAM_PORTS = {
    "sdram_clk": (1, "clk"), "sdram_cke": (1, "clk_en"), "sdram_cs_n": (1, "cs"),
    "sdram_ras_n": (1, "ras"), "sdram_cas_n": (1, "cas"), "sdram_we_n": (1, "we"),
    "sdram_ba": (2, "ba"), "sdram_a": (13, "a"), "sdram_dqm": (2, "dqm"),
}  # fmt: skip


class Ulx3sWithSdram(Ulx3s):
    """The top level; ``io_ports`` are the data pins, which go both ways."""

    def __init__(self, system: System, freq_mhz: float):
        super().__init__(system, freq_mhz, **{n: Out(w) for n, (w, _) in SDRAM_PORTS.items()})
        self.dq = IOPort(DATA_BITS, name="sdram_dq")
        self.io_ports = (self.dq,)

    def elaborate(self, platform) -> Module:
        m = super().elaborate(platform)
        memory = self.system.memory
        inputs = Signal(DATA_BITS)
        m.d.comb += [
            # The chip's clock is half a cycle late, so that it samples signals in the middle of a
            # cycle.
            self.sdram_clk.eq(~ClockSignal()),
            self.sdram_cke.eq(1), self.sdram_cs_n.eq(0),
            Cat(self.sdram_we_n, self.sdram_cas_n, self.sdram_ras_n).eq(memory.command),
            self.sdram_ba.eq(memory.bank), self.sdram_a.eq(memory.address),
            self.sdram_dqm.eq(memory.mask), memory.data_i.eq(inputs),
        ]  # fmt: skip
        for bit in range(DATA_BITS):
            m.submodules += Instance(
                "BB", i_I=memory.data_o[bit], i_T=~memory.data_oe, o_O=inputs[bit],
                io_B=self.dq[bit],
            )  # fmt: skip
        return m


def design(params: HwParams, freq_mhz: float) -> Ulx3sWithSdram:
    """The top level."""
    memory = Sdram(params, freq_mhz)
    return Ulx3sWithSdram(system(params, memory, freq_mhz), freq_mhz)


BOARD = Board(
    name="ulx3s-85f",
    doc="ULX3S with an ECP5-85F and its 32 MiB of SDRAM",
    device=ECP5_85F,
    hw=PRESETS["8x8"],
    freq_mhz=60.0,
    design=design,
    constraints=constraints(
        PINS
        | {name: ("sdram", 0, part) for name, (_, part) in SDRAM_PORTS.items()}
        | {"sdram_dq": ("sdram", 0, "dq")}
    ),
    bus_bits=BUS_BITS,
)
