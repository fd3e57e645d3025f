"""The design of the ULX3S with its SDRAM for a simulator: all of it but the chip, whose pins are
ports in both directions apart.
"""

from __future__ import annotations

from ...isa.errors import VdlaError
from ...isa.hostlink import WORD_BYTES
from ...isa.params import HwParams
from ..core.verilog import to_verilog
from ..fpga.devices import ECP5_85F
from .sdram import DATA_BITS, Chip, Sdram
from .system import System
from .ulx3s import OSCILLATOR_MHZ
from .ulx3s_85f import SDRAM_PORTS, Ulx3sWithSdram

TOP = "vdla_board"
#: At the oscillator's frequency the design needs no PLL, whose cell no simulator knows.
FREQ_MHZ = OSCILLATOR_MHZ
#: Clock cycles of a bit on the serial line: the fewest that the receiver takes.
BIT_CYCLES = 4
CHIP = Chip()
_DESIGN = "ulx3s"
_OUTPUTS = {"tx": 1, "led": 8, **{name: width for name, (width, _) in SDRAM_PORTS.items()}}

_WRAPPER = """
module BB (input I, T, output O, inout B);
  assign B = T ? 1'bz : I;
  assign O = B;
endmodule

module {top} (
  input clk25, button, rx, chip_drives, input [{data}:0] chip_data,
  {outputs},
  output [{data}:0] pins
);
  wire [{data}:0] dq;
  assign dq = chip_drives ? chip_data : {bits}'bz;
  assign pins = dq;
  {design} board (.clk25(clk25), .button(button), .rx(rx), .sdram_dq(dq),
    {connected});
endmodule
"""


def board_verilog(params: HwParams) -> str:
    """The design, the model of a pin, and a module around them: the chip's data go in at
    ``chip_data`` while ``chip_drives`` is 1, and ``pins`` shows the data pins.

    Raises VdlaError where the host link does not fit to the configuration.
    """
    if params.bus_bytes != WORD_BYTES:
        raise VdlaError(
            f"board: expected a bus of {8 * WORD_BYTES} bits, which the host link has, got "
            f"{params.bus_bits}"
        )
    memory = Sdram(params, FREQ_MHZ, CHIP)
    system = System(params, memory, BIT_CYCLES, ECP5_85F.technology(params))
    wrapper = _WRAPPER.format(
        top=TOP, design=_DESIGN, data=DATA_BITS - 1, bits=DATA_BITS,
        outputs=", ".join(f"output [{width - 1}:0] {name}" for name, width in _OUTPUTS.items()),
        connected=", ".join(f".{name}({name})" for name in _OUTPUTS),
    )  # fmt: skip
    return to_verilog(Ulx3sWithSdram(system, FREQ_MHZ), _DESIGN) + wrapper
