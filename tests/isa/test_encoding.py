"""Bit layouts: packing, field ranges, and the encoding of instructions as bytes."""

from __future__ import annotations

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from vdla.isa.encoding import Field, layout, layout_bits, pack, unpack, uop_layout
from vdla.isa.errors import VdlaError
from vdla.isa.insn import Gemm, Load, Uop, Vector, decode, decode_uop, encode, encode_uop
from vdla.isa.opcodes import Opcode, Units
from vdla.isa.params import PRESETS, HwParams

SIGNED = Field("s", 5, "signed", signed=True)
SPEC = (Field("a", 3, "first"), SIGNED, Field("b", 12, "last"))


def test_fields_lie_least_significant_first() -> None:
    """Checked against a word written by hand."""
    assert pack(SPEC, {"a": 5, "s": -2, "b": 0xABC}) == (0xABC << 8) | (0b11110 << 3) | 5
    assert unpack(SPEC, (0xABC << 8) | (0b11110 << 3) | 5) == {"a": 5, "s": -2, "b": 0xABC}


def test_field_ranges() -> None:
    assert (SIGNED.minimum, SIGNED.maximum) == (-16, 15)
    assert (SPEC[0].minimum, SPEC[0].maximum) == (0, 7)


def test_a_gemm_word_by_hand() -> None:
    """The first fields of the default configuration, without the packing code."""
    params = HwParams()
    insn = Gemm(uop_begin=5, uop_count=9, outer=4, inner=8, init=1, push=Units.VECTOR)
    word = int.from_bytes(encode(insn, params), "little")
    assert word & 7 == Opcode.GEMM
    assert word >> 3 & 15 == 0
    assert word >> 7 & 15 == Units.VECTOR
    assert word >> 11 & 1 == 1
    assert word >> 12 & 1023 == 5
    assert word >> 22 & 2047 == 9
    assert word >> 33 & 4095 == 4
    assert word >> 45 & 4095 == 8
    assert word >> 57 == 0


@pytest.mark.parametrize("params", PRESETS.values(), ids=PRESETS.keys())
def test_layouts_fit_and_names_are_unique(params: HwParams) -> None:
    for opcode in Opcode:
        spec = layout(opcode, params)
        assert len({field.name for field in spec}) == len(spec)
        assert layout_bits(spec) <= 8 * params.insn_bytes
    assert layout_bits(uop_layout(params)) == params.uop_bits <= 8 * params.entry_bytes("uop")


@pytest.mark.slow
@settings(max_examples=150, deadline=None)
@given(data=st.data(), preset=st.sampled_from(sorted(PRESETS)))
def test_instructions_survive_encoding(legal_insns, data: st.DataObject, preset: str) -> None:
    params = PRESETS[preset]
    insn = data.draw(legal_insns(params))
    encoded = encode(insn, params)
    assert len(encoded) == params.insn_bytes
    assert decode(encoded, params) == insn


@given(data=st.data(), preset=st.sampled_from(sorted(PRESETS)))
def test_micro_ops_survive_encoding(data: st.DataObject, preset: str) -> None:
    params = PRESETS[preset]
    uop = Uop(**{f.name: data.draw(st.integers(f.minimum, f.maximum)) for f in uop_layout(params)})
    assert decode_uop(encode_uop(uop, params), params) == uop


@pytest.mark.parametrize("opcode", [0, 6, 7])
def test_unknown_opcodes_do_not_decode(opcode: int) -> None:
    params = HwParams()
    with pytest.raises(VdlaError, match=f"undecodable, opcode {opcode} is none of 1 LOAD"):
        decode(opcode.to_bytes(params.insn_bytes, "little"), params)


def test_bits_above_the_layout_do_not_decode(small_load: Load) -> None:
    params = HwParams()
    data = bytearray(encode(small_load, params))
    data[-1] |= 0x80
    with pytest.raises(VdlaError, match="LOAD: undecodable, bits above"):
        decode(bytes(data), params)


def test_codes_that_name_nothing_do_not_decode() -> None:
    params = HwParams()
    insn = Vector(op="min", src0="acc", src1="imm", dst="out")
    spec = layout(Opcode.VECTOR, params)
    values = unpack(spec, int.from_bytes(encode(insn, params), "little")) | {"op": 15}
    word = pack(spec, values).to_bytes(params.insn_bytes, "little")
    with pytest.raises(VdlaError, match="VECTOR op: undecodable, code 15 names nothing"):
        decode(word, params)


def test_a_word_of_another_size_does_not_decode() -> None:
    with pytest.raises(VdlaError, match="instruction: expected 32 bytes, got 3"):
        decode(b"abc", HwParams())


def test_values_out_of_range_do_not_encode() -> None:
    with pytest.raises(VdlaError, match=r"uop inp: expected 0..2047 \(11 bits\), got 2048"):
        encode_uop(Uop(acc=0, inp=2048, wgt=0), HwParams())
    with pytest.raises(VdlaError, match=r"GEMM outer: expected 0..4095 \(12 bits\), got 4096"):
        encode(Gemm(uop_begin=0, uop_count=1, outer=4096), HwParams())
