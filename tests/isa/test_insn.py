"""Legality of instructions: every refusal, and the sizes that instructions derive."""

from __future__ import annotations

from dataclasses import replace

import pytest
from vdla.isa.errors import VdlaError
from vdla.isa.insn import Gemm, Insn, Load, Param, Store, Vector, validate
from vdla.isa.opcodes import Unit, Units
from vdla.isa.params import HwParams

PARAMS = HwParams()
PACKED = HwParams(packed_weights=1)
LOAD = Load(memory="inp", base=0, dram_addr=0, x_size=4)
GEMM = Gemm(uop_begin=0, uop_count=1)
VECTOR = Vector(op="add", src0="acc", src1="imm", dst="out")
PARAM = Param(par_base=0)
STORE = Store(base=0, dram_addr=0, x_size=4)


@pytest.mark.parametrize("insn", [LOAD, GEMM, VECTOR, PARAM, STORE], ids=lambda i: i.opcode.name)
def test_plain_instructions_are_legal(insn: Insn) -> None:
    validate(insn, PARAMS)


ILLEGAL: list[tuple[Insn, str]] = [
    (replace(LOAD, memory="acc"), "LOAD memory: expected one of inp, wgt, uop, par, got 'acc'"),
    (replace(LOAD, x_size=0), "LOAD x_size: expected at least 1, got 0"),
    (replace(LOAD, y_size=0), "LOAD rows: expected at least 1, got 0"),
    (replace(LOAD, z_size=0), "LOAD z_size: expected at least 1"),
    (replace(LOAD, base=2045), "last inp entry is 2048, depth 2048"),
    (replace(LOAD, pad_left=32), r"LOAD pad_left: expected 0..31 \(5 bits\), got 32"),
    (replace(LOAD, pad_value=128), r"LOAD pad_value: expected -128..127"),
    (replace(LOAD, widen=1), "LOAD widen: expected memory par, got 'inp'"),
    (
        replace(LOAD, memory="wgt", widen=1),
        "LOAD widen: expected memory par, got 'wgt'; set packed_weights = 1",
    ),
    (replace(LOAD, dram_addr=4), "LOAD dram_addr: expected a multiple of 8 bytes, got 4"),
    (replace(LOAD, y_stride=9), "LOAD y_stride: expected a multiple of 8 bytes, got 9"),
    (replace(LOAD, pop=Units.LOAD), "LOAD pop/push: a unit has no token queue to itself"),
    (replace(GEMM, push=Units.GEMM), "GEMM pop/push: a unit has no token queue to itself"),
    (replace(GEMM, uop_count=0), "GEMM uop_count: expected at least 1"),
    (replace(GEMM, inner=0), "GEMM inner: expected at least 1"),
    (replace(GEMM, uop_begin=1000, uop_count=25), "last uop entry is 1024, depth 1024"),
    (replace(VECTOR, op="div"), "VECTOR op: expected one of min, max"),
    (replace(VECTOR, src1="acc"), "VECTOR src1: expected one of imm, par, tmp, got 'acc'"),
    (replace(VECTOR, extents=(1, 0, 1, 1)), "VECTOR extents: expected at least 1 each"),
    (replace(VECTOR, extents=(1, 1, 1)), r"VECTOR extents: expected 4 values, got \(1, 1, 1\)"),
    (replace(VECTOR, reduce=5), "VECTOR reduce: expected 0..4 loops, got 5"),
    (replace(VECTOR, op="sub", reduce=1), "VECTOR reduce: operator 'sub' does not reduce"),
    (
        replace(VECTOR, reduce=1, extents=(1, 1, 1, 2), dst_strides=(0, 0, 0, 1)),
        "VECTOR dst_strides: expected 0 in the 1 reduced loops",
    ),
    (
        replace(VECTOR, extents=(3, 1, 1, 2), dst_base=500, dst_strides=(6, 0, 0, 1)),
        "last out entry is 513, depth 512",
    ),
    (replace(PARAM, par_base=126), "last par entry is 128, depth 128"),
    (replace(PARAM, lo=5, hi=4), r"PARAM lo: expected at most hi \(4\), got 5"),
    (replace(STORE, base=509), "last out entry is 512, depth 512"),
    (replace(STORE, y_size=0), "STORE y_size: expected at least 1"),
    (replace(STORE, z_stride=12), "STORE z_stride: expected a multiple of 8 bytes, got 12"),
]


@pytest.mark.parametrize(("insn", "message"), ILLEGAL, ids=[m[:44] for _, m in ILLEGAL])
def test_illegal_instructions_are_refused(insn: Insn, message: str) -> None:
    with pytest.raises(VdlaError, match=message):
        validate(insn, PARAMS)


def test_what_is_widened_with_packed_weights() -> None:
    for memory in ("par", "wgt"):
        validate(replace(LOAD, memory=memory, widen=1), PACKED)
    for memory in ("inp", "uop"):
        with pytest.raises(VdlaError, match=f"expected memory par or wgt, got '{memory}'$"):
            validate(replace(LOAD, memory=memory, widen=1), PACKED)
    with pytest.raises(VdlaError, match="LOAD y_stride: expected a multiple of 8 bytes, got 132"):
        validate(replace(LOAD, memory="wgt", widen=1, y_stride=132), PACKED)


def test_limits_are_legal() -> None:
    """The last entry of each memory may be touched."""
    validate(replace(LOAD, base=2044), PARAMS)
    validate(replace(GEMM, uop_begin=1000, uop_count=24), PARAMS)
    validate(replace(PARAM, par_base=125), PARAMS)
    validate(replace(STORE, base=508), PARAMS)
    validate(replace(VECTOR, extents=(3, 1, 1, 2), dst_base=498, dst_strides=(6, 0, 0, 1)), PARAMS)


def test_units_and_sizes() -> None:
    assert [i.unit for i in (LOAD, GEMM, VECTOR, PARAM, STORE)] == [
        Unit.LOAD,
        Unit.GEMM,
        Unit.VECTOR,
        Unit.VECTOR,
        Unit.STORE,
    ]
    padded = replace(LOAD, y_size=2, z_size=3, pad_top=1, pad_left=2, pad_right=1)
    assert (padded.row_entries, padded.rows, padded.entries) == (7, 3, 63)
    assert replace(GEMM, uop_count=9, outer=2, inner=4).iterations == 72
    assert replace(VECTOR, extents=(2, 3, 4, 5)).iterations == 120
    assert replace(STORE, y_size=2, z_size=3).entries == 24
    assert replace(LOAD, memory="par", widen=1).dram_entry_bytes(PARAMS) == 16
    assert replace(LOAD, memory="wgt", widen=1).dram_entry_bytes(PACKED) == 8 + 128
    assert replace(LOAD, memory="wgt").dram_entry_bytes(PACKED) == 256
    assert replace(LOAD, memory="par").dram_entry_bytes(PARAMS) == 64
