"""Assembly text: exact round trips, readable output, and errors that name line and field."""

from __future__ import annotations

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from vdla.isa.asm import assemble, disassemble, format_insn, parse_insn
from vdla.isa.errors import VdlaError
from vdla.isa.insn import Gemm, Load, Param, Store, Uop, Vector, encode_uop
from vdla.isa.opcodes import Units
from vdla.isa.params import PRESETS, HwParams
from vdla.isa.program import Program

CONFIG = (
    '{"block_in": 8, "block_out": 8, "wgt_depth": 2048, "acc_depth": 1024,'
    ' "vector_table": 2, "vector_window": 3}'
)
LISTING = """\
; configuration {hash}, 5 instructions
.config {config}
.program 0x1000
.meta {{"dram_bytes": 16384, "layers": [{{"name": "c;1", "op": "QConv2d", "runs": [[2, 4]]}}]}}
.data 0x0
.uop acc=1 inp=2 wgt=3 first=1
.uop acc=4 inp=5 wgt=6
.hex ffff
.data 0x2000
.hex 000102030405060708090a0b0c0d0e0f101112131415161718191a1b1c1d1e1f
.hex 2021
load memory=uop base=0 dram_addr=0x0 x_size=2
load memory=inp base=3 dram_addr=0x2000 x_size=4 pad_value=-7 push=gemm
; 2: c;1 (QConv2d)
gemm uop_begin=0 uop_count=2 outer=4 inner=8 init=1 acc_outer=8 pop=load push=vector,store
vector op=add src0=acc src1=imm dst=out post=even imm=-5 extents=1,2,3,4 pop=gemm
store base=0 dram_addr=0x3000 x_size=1
"""


def _program() -> Program:
    params = PRESETS["8x8"]
    uops = b"".join(
        encode_uop(uop, params)
        for uop in (Uop(acc=1, inp=2, wgt=3, first=1), Uop(acc=4, inp=5, wgt=6))
    )
    insns = (
        Load(memory="uop", base=0, dram_addr=0, x_size=2),
        Load(memory="inp", base=3, dram_addr=0x2000, x_size=4, pad_value=-7, push=Units.GEMM),
        Gemm(uop_begin=0, uop_count=2, outer=4, inner=8, init=1, acc_outer=8, pop=Units.LOAD,
             push=Units.VECTOR | Units.STORE),
        Vector(op="add", src0="acc", src1="imm", dst="out", post="even", imm=-5,
               extents=(1, 2, 3, 4), pop=Units.GEMM),
        Store(base=0, dram_addr=0x3000, x_size=1),
    )  # fmt: skip
    meta = {
        "dram_bytes": 16384,
        "layers": [{"name": "c;1", "op": "QConv2d", "runs": [[2, 4]]}],
    }
    return Program(params, insns, {0: uops + b"\xff\xff", 0x2000: bytes(range(34))}, meta, 0x1000)


def test_a_listing_reads_as_expected_and_returns_the_program() -> None:
    program = _program()
    text = disassemble(program)
    assert text == LISTING.format(hash=program.params.hash, config=CONFIG)
    assert assemble(text) == program
    assert assemble(text, PRESETS["8x8"]) == program


@settings(max_examples=200, deadline=None)
@given(data=st.data(), preset=st.sampled_from(sorted(PRESETS)))
def test_lines_round_trip(legal_insns, data: st.DataObject, preset: str) -> None:
    insn = data.draw(legal_insns(PRESETS[preset]))
    assert parse_insn(format_insn(insn)) == insn


@pytest.mark.slow
@settings(max_examples=40, deadline=None)
@given(data=st.data(), preset=st.sampled_from(sorted(PRESETS)))
def test_programs_round_trip(legal_insns, data: st.DataObject, preset: str) -> None:
    """Segments of any bytes, partly read as micro-ops, at any address."""
    params = PRESETS[preset]
    insns = data.draw(st.lists(legal_insns(params), max_size=5))
    at = data.draw(st.integers(0, 63)) * 8
    insns.append(Load(memory="uop", base=0, dram_addr=at, x_size=3))
    first = data.draw(st.binary(min_size=1, max_size=300))
    image = {0: first, len(first) + 7: data.draw(st.binary(min_size=1, max_size=99))}
    notes = data.draw(st.dictionaries(st.text(), st.integers() | st.text()))
    program = Program(params, tuple(insns), image, {"notes": notes}, 0x1000)
    assert assemble(disassemble(program)) == program


def test_parsing_ignores_comments_blanks_and_order() -> None:
    expected = Param(par_base=3, zero_point=-1, pop=Units.LOAD | Units.STORE)
    assert parse_insn("  param   zero_point=-0x1 pop=store,load par_base=3 ; text = x") == expected
    program = assemble("\n ; nothing\nparam par_base=3 zero_point=-1 pop=load,store\n\n")
    assert program == Program(PRESETS["16x16"], (expected,))


def test_bytes_that_are_no_micro_op_stay_bytes() -> None:
    """Bits above the layout would be lost in the fields."""
    load = Load(memory="uop", base=0, dram_addr=0, x_size=2)
    program = Program(HwParams(), (load,), {0: bytes(8) + b"\xff" * 8}, {}, 0x1000)
    text = disassemble(program)
    assert ".data 0x0\n.uop acc=0 inp=0 wgt=0\n.hex ffffffffffffffff\nload" in text
    assert assemble(text) == program


def test_bytes_of_overlapping_micro_ops_appear_once() -> None:
    """Loads that no core accepts can still be read as text."""
    loads = (
        Load(memory="uop", base=0, dram_addr=0, x_size=1),
        Load(memory="uop", base=0, dram_addr=4, x_size=1),
    )
    text = disassemble(Program(HwParams(), loads, {0: bytes(12)}, {}, 0x1000))
    assert ".data 0x0\n.uop acc=0 inp=0 wgt=0\n.hex 00000000\nload" in text


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("\nmul x=1", "line 2: expected one of load, gemm, vector, param, store, table, got 'mul'"),
        ("gemm uop_begin=0", "line 1: gemm: field 'uop_count' is missing"),
        ("gemm uop_begin=0 uop_begin=1", "line 1: gemm uop_begin: given twice"),
        ("gemm 5", "line 1: gemm: expected field=value, got '5'"),
        ("gemm uops=5", "line 1: gemm: expected one of pop, push, uop_begin.* got field 'uops'"),
        ("gemm uop_begin=1.5 uop_count=1", "uop_begin: expected an integer, got '1.5'"),
        ("param par_base=0 pop=fetch", "pop: expected load, gemm, vector, store, got 'fetch'"),
        ("param par_base=0 pop=vector", "line 1: PARAM pop/push: a unit has no token queue"),
        ("param par_base=999", r"line 1: PARAM par_base: expected 0..127 \(7 bits\), got 999"),
        ("param par_base=127", "line 1: PARAM: address out of range, last par entry is 129"),
        ("vector op=div src0=acc src1=imm dst=out", "VECTOR op: expected one of min, .*got 'div'"),
        (
            "vector op=min src0=acc src1=imm dst=out extents=1,2",
            "extents: expected 4 numbers separated by commas, got '1,2'",
        ),
        (".hex 00", "line 1: .hex: expected .data ADDRESS before it"),
        (".data 0\n.hex 0g", "line 2: .hex: expected pairs of hexadecimal digits, got '0g'"),
        (".data 0\n.data 0x0", "line 2: .data: a segment at 0x0 exists already"),
        (".data 0\n.uop acc=5000 inp=0 wgt=0", "line 2: uop acc: expected 0..2047"),
        (".data here", "line 1: .data: expected an integer, got 'here'"),
        (".meta {", "line 1: .meta: expected a JSON object"),
        (".meta [1]", "line 1: .meta: expected one JSON object"),
        (".config {} {}", "line 1: .config: expected one JSON object"),
        ('.config {"block_in": 5}', "line 1: .config: HwParams.block_in: expected one of"),
        (
            'param par_base=0\n.config {"queue_depth": 9}',
            f"line 2: .config: expected configuration {PRESETS['16x16'].hash}, got",
        ),
        (".words 1", r"line 1: expected one of load, .* got '\.words'"),
        (".program 0x10", "program_addr: expected a multiple of 4096, got 16"),
    ],
    ids=lambda value: str(value)[:32],
)
def test_errors_name_line_and_field(text: str, message: str) -> None:
    with pytest.raises(VdlaError, match=message):
        assemble(text)


def test_another_configuration_is_refused() -> None:
    text = disassemble(_program())
    with pytest.raises(VdlaError, match=f"expected configuration {HwParams().hash}, got"):
        assemble(text, HwParams())


def test_every_opcode_has_a_mnemonic() -> None:
    for insn in _program().insns:
        assert parse_insn(format_insn(insn)) == insn
    assert format_insn(Param(par_base=0)) == "param par_base=0"
