"""Programs: placement in DRAM, the file format, and every way in which a file is refused."""

from __future__ import annotations

import json
import struct
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
from vdla.isa.errors import VdlaError
from vdla.isa.insn import Load, Store, encode
from vdla.isa.params import PRESETS, HwParams
from vdla.isa.program import Program

PARAMS = PRESETS["8x8"]
INSNS = (
    Load(memory="inp", base=0, dram_addr=0x100, x_size=4),
    Store(base=0, dram_addr=0, x_size=1),
)
META = {
    "dram_bytes": 0x4000,
    "inputs": [{"name": "x", "address": 0x2000, "bytes": 64, "shape": (1, 8, 8)}],
    "layers": [{"name": "conv", "op": "QConv2d", "runs": [[0, 1]], "macs": 5, "bytes": 9}],
}


@pytest.fixture
def program() -> Program:
    """Two instructions, two segments, an input."""
    return Program(PARAMS, INSNS, {0x100: b"abcd", 0x40: b"\xff"}, META, 0x1000)


def test_dram_image(program: Program) -> None:
    dram = program.dram_image()
    assert dram.dtype == np.uint8
    assert dram.shape == (0x4000,)
    assert bytes(dram[0x100:0x104]) == b"abcd"
    assert dram[0x40] == 255
    encoded = b"".join(encode(insn, PARAMS) for insn in INSNS)
    assert program.encoded() == encoded
    assert bytes(dram[0x1000 : 0x1000 + len(encoded)]) == encoded
    assert np.count_nonzero(dram) == 5 + sum(b != 0 for b in encoded)


def test_dram_size_without_declaration() -> None:
    assert Program(PARAMS, INSNS).dram_bytes == 4096
    assert Program(PARAMS, INSNS, {0x2001: b"x"}).dram_bytes == 0x3000
    assert Program(PARAMS, ()).dram_bytes == 4096


def test_files_give_the_same_program(program: Program, tmp_path: Path) -> None:
    program.save(tmp_path / "a.vdla")
    loaded = Program.load(tmp_path / "a.vdla")
    assert loaded == program
    loaded.save(tmp_path / "b.vdla")
    assert (tmp_path / "a.vdla").read_bytes() == (tmp_path / "b.vdla").read_bytes()


@pytest.mark.slow
def test_every_truncation_and_every_flipped_byte_is_refused(
    program: Program, tmp_path: Path
) -> None:
    path = tmp_path / "p.vdla"
    program.save(path)
    data = path.read_bytes()
    for length in range(len(data)):
        path.write_bytes(data[:length])
        with pytest.raises(VdlaError, match=r"not a VDLA program|truncated"):
            Program.load(path)
    for index in range(len(data)):
        changed = bytearray(data)
        changed[index] ^= 0x10
        path.write_bytes(changed)
        with pytest.raises(VdlaError):
            Program.load(path)
    path.write_bytes(data + b"\0")
    with pytest.raises(VdlaError, match="bytes behind the end"):
        Program.load(path)
    path.write_bytes(b"\x89PNG\r\n\x1a\n" + bytes(100))
    with pytest.raises(VdlaError, match="not a VDLA program"):
        Program.load(path)


def _rewrite(path: Path, change: dict) -> None:
    """Change the JSON part and make size and checksum fit again."""
    import hashlib

    data = path.read_bytes()
    magic, version, text_bytes, raw_bytes, _ = struct.unpack_from("<8sIIQ32s", data)
    head = json.loads(data[56 : 56 + text_bytes]) | change
    text = json.dumps(head).encode()
    body = text + data[56 + text_bytes :]
    digest = hashlib.sha256(body).digest()
    path.write_bytes(struct.pack("<8sIIQ32s", magic, version, len(text), raw_bytes, digest) + body)


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"hash": "00000000"}, f"claims configuration 00000000, its knobs give {PARAMS.hash}"),
        ({"params": PARAMS.to_dict() | {"queue_depth": 3}}, f"claims configuration {PARAMS.hash}"),
        ({"params": {"block_in": 5}}, "params: HwParams.block_in: expected one of"),
        ({"params": 7}, "malformed program file"),
        ({"insns": 1}, "expected 37 bytes of content, got 69"),
        ({"insns": "x"}, "malformed program file"),
        ({"segments": [[0, 8]]}, "expected 72 bytes of content, got 69"),
        ({"program_addr": 5}, "program_addr: expected a multiple of 4096, got 5"),
        ({"insns": 2, "segments": [[0, 3], [4, 2]]}, ""),
    ],
    ids=lambda value: str(value)[:40],
)
def test_inconsistent_files_are_refused(
    program: Program, tmp_path: Path, change: dict, message: str
) -> None:
    path = tmp_path / "p.vdla"
    program.save(path)
    _rewrite(path, change)
    if message:
        with pytest.raises(VdlaError, match=message):
            Program.load(path)
    else:
        assert Program.load(path).image == {0: b"\xffab", 4: b"cd"}


def test_undecodable_instructions_are_refused(program: Program, tmp_path: Path) -> None:
    path = tmp_path / "p.vdla"
    program.save(path)
    _rewrite(path, {"insns": 0, "segments": [[0, 69]]})
    assert Program.load(path).insns == ()
    _rewrite(path, {"insns": 1, "segments": [[0x100, 37]]})
    data = path.read_bytes()
    path.write_bytes(data.replace(encode(INSNS[0], PARAMS), bytes(PARAMS.insn_bytes)))
    _rewrite(path, {})
    with pytest.raises(VdlaError, match="instruction 0: instruction: undecodable, opcode 0"):
        Program.load(path)


def test_other_configurations_are_refused(program: Program) -> None:
    program.check_params(PRESETS["8x8"])
    with pytest.raises(
        VdlaError, match=f"configuration {PARAMS.hash}, this core is {HwParams().hash}"
    ):
        program.check_params(HwParams())


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"program_addr": 64}, "program_addr: expected a multiple of 4096, got 64"),
        ({"image": {0x1000: b"x"}}, "overlaps"),
        ({"image": {0x10: bytes(17), 0x20: b"x"}}, "image segment at 0x10..0x21 overlaps"),
        ({"image": {0x3FFF: b"xy"}}, r"at 0x3fff..0x4001 lies outside DRAM of 0x4000 bytes"),
        ({"program_addr": 0x4000}, "instructions at 0x4000.* lies outside DRAM"),
        (
            {"meta": {"dram_bytes": 0x2000, "inputs": META["inputs"]}},
            "region 'x' at 0x2000..0x2040 lies outside DRAM",
        ),
        ({"meta": {"dram_bytes": -1}}, r"dram_bytes: expected 1..4294967296, got -1"),
        ({"meta": {"inputs": 5}}, "program meta inputs: expected a list of objects, got 5"),
        (
            {"meta": {"inputs": [{"name": "x"}]}},
            r"meta inputs\[0\].address: expected int, got None",
        ),
        ({"meta": {"layers": [{"name": 1}]}}, r"meta layers\[0\].name: expected str, got 1"),
        ({"meta": {"x": b"bytes"}}, "program meta: expected JSON-ready values"),
    ],
    ids=lambda value: str(value)[:40],
)
def test_impossible_programs_are_refused(program: Program, change: dict, message: str) -> None:
    with pytest.raises(VdlaError, match=message):
        replace(program, **change)


def test_illegal_instructions_are_named_when_encoding() -> None:
    bad = Store(base=0, dram_addr=0, x_size=0)
    with pytest.raises(VdlaError, match="instruction 2: STORE x_size: expected at least 1, got 0"):
        Program(PARAMS, (*INSNS, bad)).encoded()
