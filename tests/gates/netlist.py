"""The netlist of a core for the ECP5 as a simulator, with LUTs that err."""

from __future__ import annotations

import random
import re

from vdla.hw.core.verilog import TOP
from vdla.hw.fpga.netlist import CELLS, netlist
from vdla.isa.params import HwParams
from vdla.sim.rtl import toolchain
from vdla.sim.rtl.driver import RtlSimulator

#: An address without a register, at which the netlist takes the number of the error to make.
ERROR_ADDRESS = 0x3F8
LUT = re.compile(r"  LUT4 #\(\s*\.INIT\(16'h([0-9a-f]{4})\)\s*\) (\\\S+|\w+)")
_WRONG_LUT = f"""
module WRONG_LUT4 #(parameter [15:0] INIT = 0, parameter NUMBER = 0)
  (input A, B, C, D, output Z);
  assign Z = INIT[{{D, C, B, A}}] ^ ({TOP}.wrong == NUMBER);
endmodule
"""
_REGISTER = f"""
  reg [7:0] wrong = 0;
  always @(posedge clk) if (regs_write && regs_addr == {ERROR_ADDRESS}) wrong <= regs_wdata;
endmodule
"""


class Netlist(RtlSimulator):
    """The netlist of a configuration in Verilator, with LUTs that err when they are told to.

    Attributes
    ----------
    errors : names of the LUTs that can err
    error : 0: none does; else the one with this number (from 1) gives the inverse
    """

    def __init__(self, params: HwParams, seed: int, errors: int, prefix: str):
        toolchain.setup_yosys()
        text = netlist(params)
        luts = [found for found in LUT.finditer(text) if found[2].startswith(f"\\{prefix}")]
        chosen = random.Random(seed).sample(luts, errors)
        self.error, self.errors = 0, [found[2] for found in chosen]
        for number, found in enumerate(chosen, 1):
            wrong = f"WRONG_LUT4 #(.INIT(16'h{found[1]}), .NUMBER({number})) {found[2]}"
            text = text.replace(found[0], f"  {wrong}")
        text = text.replace("endmodule", _REGISTER) + CELLS + _WRONG_LUT
        super().__init__(params, text, netlist=True)

    def _run(self, library, sim, *rest):
        library.vdla_write(sim, ERROR_ADDRESS, self.error)
        return super()._run(library, sim, *rest)
