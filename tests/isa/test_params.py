"""Configurations: what is refused and why, derived sizes, files, and the hash."""

from __future__ import annotations

import pickle
from dataclasses import fields, replace
from itertools import product
from pathlib import Path

import pytest
from vdla.isa import encoding, params, vector_ops
from vdla.isa.errors import VdlaError
from vdla.isa.memory import MEMORY_PRESETS, MemoryParams
from vdla.isa.opcodes import Opcode
from vdla.isa.params import MEMORIES, PRESETS, HwParams

REFUSED: list[tuple[dict[str, object], str]] = [
    ({"batch": 3}, "HwParams.batch: expected one of 1, 2, 4, got 3"),
    ({"block_in": 12}, "HwParams.block_in: expected one of 4, 8, 16, 32, got 12"),
    ({"block_in": 8}, "HwParams.block_out: expected block_in"),
    ({"wgt_depth": 7}, "HwParams.wgt_depth: expected 8..16384, got 7"),
    ({"bus_bits": 32}, "HwParams.bus_bits: expected one of 64, 128, 256, got 32"),
    ({"bus_bits": 256, "max_burst_beats": 256}, "expected at most 128 beats of 32 bytes"),
    ({"fetch_depth": 32, "max_burst_beats": 4}, "must fit one burst of 4 beats"),
    ({"acc_depth": 65536}, "HwParams: scratchpads take"),
    ({"queue_depth": "8"}, "HwParams.queue_depth: expected an integer, got '8'"),
    ({"token_bits": True}, "HwParams.token_bits: expected an integer, got True"),
]


@pytest.mark.parametrize(("knobs", "message"), REFUSED, ids=[m for _, m in REFUSED])
def test_illegal_configurations_are_refused(knobs: dict[str, int], message: str) -> None:
    with pytest.raises(VdlaError, match=message):
        HwParams(**knobs)


def test_default_memories_are_at_most_448_kib() -> None:
    assert HwParams().scratchpad_bytes <= 448 << 10
    sizes = {m: HwParams().depth(m) * HwParams().entry_bytes(m) for m in MEMORIES}
    assert sizes["inp"] == 32 << 10
    assert sizes["wgt"] == 256 << 10
    assert sizes["acc"] == 128 << 10
    assert sizes["uop"] <= 32 << 10


def test_the_ecp5_variant_has_half_the_weights() -> None:
    params = PRESETS["ecp5-85f"]
    assert params.depth("wgt") * params.entry_bytes("wgt") == 128 << 10


def test_index_bits_of_depths_that_are_no_power_of_two() -> None:
    params = HwParams(tmp_depth=129, par_depth=4, uop_depth=8)
    assert [params.index_bits(m) for m in ("tmp", "par", "uop")] == [8, 2, 3]


def test_derived_sizes_of_the_default() -> None:
    params = HwParams()
    assert params.peak_macs_per_cycle == 256
    assert params.lanes == 16
    assert params.bus_bytes == 8
    assert params.uop_bits == 11 + 11 + 10 + 1
    assert params.entry_bytes("uop") == 8
    assert params.insn_bytes == 32
    assert params.fetch_chunk == 4
    with pytest.raises(VdlaError, match="memory: expected one of inp, wgt"):
        params.entry_bytes("l2")


def test_derived_sizes_are_computed_once_and_no_part_of_a_configuration(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    used, fresh = HwParams(queue_depth=7), HwParams(queue_depth=7)
    sizes = used.insn_bytes, used.lanes, used.scratchpad_bytes
    monkeypatch.setattr(params, "widest_layout_bits", None)
    assert sizes == (used.insn_bytes, used.lanes, used.scratchpad_bytes)
    assert (used, hash(used), repr(used)) == (fresh, hash(fresh), repr(fresh))
    monkeypatch.undo()
    wider = replace(used, block_in=32, block_out=32, wgt_depth=512)
    assert wider.lanes == 32 and wider.hash != used.hash
    assert pickle.loads(pickle.dumps(used)) == used


def test_every_knob_changes_the_hash() -> None:
    """No two of these configurations may run each other's programs."""
    legal = {"batch": 2, "bus_bits": 128, "max_burst_beats": 64, "fetch_depth": 4,
             "vector_passes": 2, "vector_table": 1, "vector_window": 3,
             "packed_weights": 1}  # fmt: skip
    variants = [HwParams(), HwParams(block_in=8, block_out=8)]
    for field in fields(HwParams):
        if not field.name.startswith("block_"):
            value = legal.get(field.name, field.default - 1)
            variants.append(replace(HwParams(), **{field.name: value}))
    assert len({params.hash for params in variants}) == len(variants)
    assert HwParams().hash == HwParams().hash


def test_the_instruction_set_changes_the_hash(monkeypatch: pytest.MonkeyPatch) -> None:
    before = HwParams().hash
    with monkeypatch.context() as patch:
        patch.setattr(encoding, "PAD_BITS", 6)
        encoding.layout.cache_clear()
        assert HwParams().hash != before
    encoding.layout.cache_clear()
    with monkeypatch.context() as patch:
        patch.setattr(encoding, "operators", lambda params: vector_ops.operators(params)[:-1])
        assert HwParams().hash != before
    assert HwParams().hash == before


def test_a_feature_that_is_off_is_as_if_it_did_not_exist() -> None:
    """Programs and hashes from before there was a table stay what they were."""
    assert HwParams().hash == "de45ae47" and "vector_table" not in HwParams().to_dict()
    assert HwParams(vector_table=1).hash == "ec827be0"
    on, wide = HwParams(vector_table=1), HwParams(vector_table=2)
    assert HwParams.from_dict(on.to_dict()) == on and len({on.hash, wide.hash}) == 2
    assert "vector_window" not in on.to_dict()
    windows = [HwParams(vector_window=products) for products in (0, 2, 3, 4)]
    assert len({params.hash for params in windows}) == 4
    assert HwParams.from_dict(windows[2].to_dict()) == windows[2]


def test_packed_weights_are_for_tiles_that_gain() -> None:
    """Beats of the scales and the weights, by block and bus; the others take as long packed."""
    beats = {
        (8, 64): 1 + 4, (16, 64): 1 + 16, (32, 64): 2 + 64, (8, 128): 1 + 2, (16, 128): 1 + 8,
        (32, 128): 1 + 32, (16, 256): 1 + 4, (32, 256): 1 + 16,
    }  # fmt: skip
    for block, bits in product((4, 8, 16, 32), (64, 128, 256)):
        plain = HwParams(block_in=block, block_out=block, bus_bits=bits, wgt_depth=64)
        assert "packed_weights" not in plain.to_dict()
        if (block, bits) not in beats:
            size = block * block
            with pytest.raises(
                VdlaError, match=rf"4 beats \({bits // 2} bytes\).* got {size} bytes"
            ):
                replace(plain, packed_weights=1)
            continue
        packed = replace(plain, packed_weights=1)
        assert packed.dram_entry_bytes("wgt", 1) == beats[block, bits] * bits // 8
        assert packed.dram_entry_bytes("wgt", 0) == block * block
        assert packed.dram_entry_bytes("par", 1) == block and packed.hash != plain.hash
        assert HwParams.from_dict(packed.to_dict()) == packed
        # The layouts are the same: a feature of the load unit, not of the encoding.
        assert encoding.layout(Opcode.LOAD, packed) == encoding.layout(Opcode.LOAD, plain)


def test_a_table_needs_room_in_par() -> None:
    sizes = {"block_in": 4, "block_out": 4, "vector_table": 1}
    assert HwParams(par_depth=19, **sizes).table_entries == 16
    with pytest.raises(VdlaError, match=r"par_depth: expected at least 19 entries, for a table"):
        HwParams(par_depth=18, **sizes)
    sizes["vector_table"] = 2
    assert HwParams(par_depth=35, **sizes).table_entries == 32
    with pytest.raises(VdlaError, match=r"par_depth: expected at least 35 entries, for a table"):
        HwParams(par_depth=34, **sizes)


def test_configuration_files(tmp_path: Path) -> None:
    path = tmp_path / "hw.toml"
    path.write_text("block_in = 8\nblock_out = 8\n")
    assert HwParams.load(path) == replace(PRESETS["16x16"], block_in=8, block_out=8)
    assert HwParams.load("8x8") is PRESETS["8x8"]
    path.write_text("blocks = 8\n")
    with pytest.raises(VdlaError, match=r"hw.toml: unknown knob 'blocks'; known knobs: acc_depth"):
        HwParams.load(path)
    path.write_text("block_in = 12\n")
    with pytest.raises(VdlaError, match=r"hw.toml: HwParams.block_in: expected one of"):
        HwParams.load(path)
    path.write_text("block_in =\n")
    with pytest.raises(VdlaError, match=r"hw.toml: expected TOML"):
        HwParams.load(path)
    with pytest.raises(VdlaError, match="expected a TOML file or one of 16x16"):
        HwParams.load("17x17")


def test_memory_files(tmp_path: Path) -> None:
    path = tmp_path / "memory.toml"
    path.write_text("read_latency_cycles = 99\n")
    memory = MemoryParams.load(path)
    assert memory == MemoryParams(read_latency_cycles=99)
    assert memory.label == memory.to_dict()
    assert MemoryParams.load("slow").label == "slow"
    path.write_text("latency = 99\n")
    with pytest.raises(VdlaError, match="unknown field 'latency'"):
        MemoryParams.load(path)
    with pytest.raises(VdlaError, match="expected a TOML file or one of vta, wide, slow, ulx3s"):
        MemoryParams.load("fast")
    with pytest.raises(VdlaError, match=r"MemoryParams.outstanding: expected an integer 1..256"):
        MemoryParams(outstanding=0)


def test_presets_of_memory() -> None:
    found = {n: (m.bus_bits, m.read_latency_cycles) for n, m in MEMORY_PRESETS.items()}
    assert found == {"vta": (64, 16), "wide": (128, 64), "slow": (64, 200), "ulx3s": (64, 12)}
