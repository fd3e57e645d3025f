"""Many instructions at once are encoded as one by one, and an illegal one among them is seen."""

from __future__ import annotations

from dataclasses import replace

import pytest
from vdla.isa.batch import batches
from vdla.isa.encoding import layout, pack, unpack
from vdla.isa.errors import VdlaError
from vdla.isa.insn import Gemm, Insn, Load, Store, Vector, decode, encode
from vdla.isa.insn_table import decode_all, encode_all
from vdla.isa.opcodes import Units
from vdla.isa.params import PRESETS, HwParams
from vdla.sim.verify.random_programs import random_program

PARAMS = HwParams(block_in=4, block_out=4, inp_depth=64, wgt_depth=16, acc_depth=32, uop_depth=32)


@pytest.mark.parametrize("seed", range(4))
def test_encoded_as_one_by_one(seed: int) -> None:
    insns = random_program(PARAMS, seed, length=80).insns
    assert encode_all(insns, PARAMS) == b"".join(encode(insn, PARAMS) for insn in insns)
    assert sorted(i for batch in batches(insns) for i in batch.rows.tolist()) == [
        *range(len(insns))
    ]


@pytest.mark.parametrize("params", [PARAMS, *PRESETS.values()], ids=["small", *PRESETS])
def test_decoded_as_one_by_one(params: HwParams) -> None:
    insns = random_program(params, 5, length=80).insns
    encoded = b"".join(encode(insn, params) for insn in insns)
    found = decode_all(encoded, params)
    assert found == list(insns)
    for insn, mine in zip(insns, found, strict=True):
        assert repr(mine) == repr(insn) and hash(mine) == hash(insn)


def test_an_undecodable_instruction_among_many_is_seen() -> None:
    insns = random_program(PARAMS, 1, length=80).insns
    encoded = bytearray(b"".join(encode(insn, PARAMS) for insn in insns))
    size = PARAMS.insn_bytes
    for insn in {type(insn): insn for insn in insns}.values():
        at = insns.index(insn) * size
        word = int.from_bytes(encoded[at : at + size], "little")
        spec = layout(insn.opcode, PARAMS)
        wrong = [word & ~7, word | 7, word | 1 << 8 * size - 1]
        if isinstance(insn, Vector):
            wrong.append(pack(spec, unpack(spec, word) | {"op": 15}))
        for other in wrong:
            changed = encoded.copy()
            changed[at : at + size] = other.to_bytes(size, "little")
            with pytest.raises(VdlaError, match="undecodable"):
                decode(changed[at : at + size], PARAMS)
            assert decode_all(bytes(changed), PARAMS) is None, hex(other)


def _wrong(insn: Insn) -> list[Insn]:
    match insn:
        case Load():
            wrong: list[dict] = [
                {"x_size": 0}, {"base": 1 << 40}, {"memory": "acc"}, {"dram_addr": 1},
                {"y_stride": 1 << 70}, {"push": Units.LOAD}, {"memory": "inp", "widen": 1},
            ]  # fmt: skip
        case Gemm():
            wrong = [{"uop_count": 0}, {"uop_begin": 32}, {"acc_outer": -1}, {"pop": Units.GEMM}]
        case Vector():
            wrong = [{"extents": (0, 1, 1, 1)}, {"dst_base": 1 << 20}, {"op": "pow"},
                     {"extents": (1, 1)}, {"reduce": 5}]  # fmt: skip
        case Store():
            wrong = [{"z_size": 0}, {"dram_addr": 2}, {"base": 1 << 30}]
        case _:
            wrong = [{"lo": 5, "hi": 4}, {"par_base": 1 << 20}, {"zero_point": 200}]
    return [replace(insn, **fields) for fields in wrong]


def test_an_illegal_instruction_among_many_is_seen() -> None:
    insns = random_program(PARAMS, 1, length=80).insns
    kinds = {type(insn): index for index, insn in enumerate(insns)}
    assert len(kinds) == 5
    for index in kinds.values():
        for wrong in _wrong(insns[index]):
            assert encode_all([*insns[:index], wrong, *insns[index + 1 :]], PARAMS) is None, wrong
