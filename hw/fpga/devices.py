"""FPGAs: what they have, and what yosys' cells take of it."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from amaranth.lib.wiring import Component

from ...isa.errors import VdlaError
from ...isa.params import HwParams
from ..core.technology import COPY, Technology
from . import ecp5
from .adder import Adder, add
from .floorplan import Sites
from .multiplier import fpga_multiplier

#: The resources of a device that are counted.
RESOURCES = {
    "lut": "lookup tables", "ff": "flip-flops", "dsp": "multipliers", "bram": "block RAMs",
}  # fmt: skip


@dataclass(frozen=True)
class Family:
    """Devices that are made of the same elements.

    Attributes
    ----------
    synthesis : yosys' command that makes cells of a design
    prepared : the first step of that command after libraries are read and the hierarchy is known
    cells : the :data:`RESOURCES` that each kind of cell takes; other cells take nothing
    adder : how two summands are added beside the multipliers
    """

    synthesis: str
    prepared: str
    cells: dict[str, dict[str, int]]
    adder: Adder = add

    def script(self, top: str) -> str:
        """yosys' commands that make cells of a design. yosys merges equal registers; those that
        ``core.technology`` calls copies stay.
        """
        keep = f"proc; setattr -set keep 1 a:{COPY} %ci:+$dff[Q]"
        command = f"{self.synthesis} -top {top} -run"
        return f"{command} begin:{self.prepared}; {keep}; {command} {self.prepared}:"


@dataclass(frozen=True)
class Nextpnr:
    """What nextpnr-ecp5 needs to know of a device.

    Attributes
    ----------
    options : options of the command line that name the device
    multipliers, memories : where its 18x18 multipliers and 18 kbit block RAMs are
    """

    options: tuple[str, ...]
    multipliers: Sites
    memories: Sites


@dataclass(frozen=True)
class Device:
    """An FPGA.

    Attributes
    ----------
    name : as its maker says
    family : its family
    capacity : of :data:`RESOURCES`; block RAMs of 18 kbit
    nextpnr : None where only its maker's tools place and route
    """

    name: str
    family: Family
    capacity: dict[str, int]
    nextpnr: Nextpnr | None = None

    def technology(self, params: HwParams) -> Technology:
        """What a core is built from on this device."""
        multiplier = fpga_multiplier(params, self.capacity["dsp"], self.family.adder)
        return Technology(multiplier, enables=False, copies=True)


#: Lookup tables have four inputs; carry and RAM cells sit in them.
ECP5 = Family(
    "synth_ecp5 -nowidelut",
    "coarse",
    {
        "LUT4": {"lut": 1},
        "CCU2C": {"lut": 2},
        "TRELLIS_DPR16X4": {"lut": 4},
        "TRELLIS_FF": {"ff": 1},
        "MULT18X18D": {"dsp": 1},
        "DP16KD": {"bram": 1},
    },
    ecp5.add,
)
#: Lookup tables have six inputs; carries and wide multiplexers are beside them.
XC7 = Family(
    "synth_xilinx -family xc7",
    "prepare",
    {
        **{f"LUT{inputs}": {"lut": 1} for inputs in range(1, 7)},
        **{"INV": {"lut": 1}, "SRL16E": {"lut": 1}, "SRLC32E": {"lut": 1}},
        **{"RAM32X1D": {"lut": 2}, "RAM64X1D": {"lut": 2}, "RAM128X1D": {"lut": 4}},
        **{"RAM32M": {"lut": 4}, "RAM64M": {"lut": 4}},
        **{f"FD{kind}E": {"ff": 1} for kind in "RSCP"},
        "DSP48E1": {"dsp": 1},
        **{"RAMB18E1": {"bram": 1}, "RAMB36E1": {"bram": 2}},
    },
)

#: Four multipliers, or block RAMs, every nine columns; the clock's two are in the middle.
_BLOCKS = tuple(4 + 9 * n + 2 * (n >= 7) for n in range(13))
_MULTIPLIERS = Sites(
    (10, 34, 58), _BLOCKS, ((0, "MULT18_0"), (1, "MULT18_1"), (4, "MULT18_4"), (5, "MULT18_5"))
)
_MEMORIES = Sites((22, 46, 70, 82), _BLOCKS, ((0, "EBR0"), (2, "EBR1"), (4, "EBR2"), (6, "EBR3")))
ECP5_85F = Device(
    "LFE5U-85F",
    ECP5,
    {"lut": 83640, "ff": 83640, "dsp": _MULTIPLIERS.count, "bram": _MEMORIES.count},
    Nextpnr(("--85k", "--package", "CABGA381", "--speed", "6"), _MULTIPLIERS, _MEMORIES),
)
XC7Z020 = Device("XC7Z020", XC7, {"lut": 53200, "ff": 106400, "dsp": 220, "bram": 280})


@dataclass(frozen=True)
class Board:
    """A board and the design for it.

    Attributes
    ----------
    name : for ``--board``
    doc : one line
    device : its FPGA
    hw : the configuration that is built unless another is given
    freq_mhz : the core's clock unless another is given
    design : makes the top level for a configuration and a clock in MHz; pins that go both ways are
        in its ``io_ports``
    constraints : the text of the LPF file, or for Xilinx the XDC file
    bus_bits : the only width that the memory's bus may have; None where any will do
    verilog : modules of which the design has instances
    """

    name: str
    doc: str
    device: Device
    hw: HwParams
    freq_mhz: float
    design: Callable[[HwParams, float], Component]
    constraints: str
    bus_bits: int | None = None
    verilog: str = ""

    def check(self, params: HwParams) -> None:
        """Raise VdlaError for a configuration that the board has no design for."""
        if self.bus_bits not in (None, params.bus_bits):
            raise VdlaError(
                f"bus_bits: expected {self.bus_bits}, which the board {self.name} has, got"
                f" {params.bus_bits}"
            )
