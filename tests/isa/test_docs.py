"""The generated page and C header: fresh, complete, and true to the encoder."""

from __future__ import annotations

import shutil
import subprocess
from dataclasses import replace
from pathlib import Path

import pytest
from vdla.isa import docs
from vdla.isa.encoding import layout
from vdla.isa.insn import Gemm, Vector, encode
from vdla.isa.opcodes import Opcode, Units
from vdla.isa.params import PRESETS, HwParams
from vdla.isa.status import Status
from vdla.isa.vector_ops import VECTOR_OPS

C_PROGRAM = """
#include <stdio.h>
#include "vdla_isa.h"

int main(void) {
    uint8_t gemm[VDLA_INSN_BYTES] = {0}, vector[VDLA_INSN_BYTES] = {0};
    VDLA_PUT(gemm, GEMM_OPCODE, VDLA_OPCODE_GEMM);
    VDLA_PUT(gemm, GEMM_PUSH, VDLA_UNIT_VECTOR | VDLA_UNIT_STORE);
    VDLA_PUT(gemm, GEMM_UOP_COUNT, 9);
    VDLA_PUT(gemm, GEMM_OUTER, 4);
    VDLA_PUT(gemm, GEMM_INNER, 8);
    VDLA_PUT(gemm, GEMM_WGT_INNER, 3);
    VDLA_PUT(vector, VECTOR_OPCODE, VDLA_OPCODE_VECTOR);
    VDLA_PUT(vector, VECTOR_OP, VDLA_OP_MAX);
    VDLA_PUT(vector, VECTOR_POST, VDLA_POST_EVEN);
    VDLA_PUT(vector, VECTOR_SRC0, VDLA_SRC0_TMP);
    VDLA_PUT(vector, VECTOR_SRC1, VDLA_SRC1_IMM);
    VDLA_PUT(vector, VECTOR_DST, VDLA_DST_OUT);
    VDLA_PUT(vector, VECTOR_IMM, -77);
    VDLA_PUT(vector, VECTOR_N0, 5);
    VDLA_PUT(vector, VECTOR_N1, 1);
    VDLA_PUT(vector, VECTOR_N2, 1);
    VDLA_PUT(vector, VECTOR_N3, 1);
    VDLA_PUT(vector, VECTOR_DST_S0, 2);
    fwrite(gemm, 1, sizeof gemm, stdout);
    fwrite(vector, 1, sizeof vector, stdout);
    return 0;
}
"""


def test_committed_files_are_fresh() -> None:
    assert docs.main(["--check"]) == 0


def test_stale_files_are_found(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert docs.main(["--check", "--out", str(tmp_path)]) == 1
    assert docs.main(["--out", str(tmp_path)]) == 0
    assert docs.main(["--check", "--out", str(tmp_path)]) == 0
    page = tmp_path / "isa.md"
    page.write_text(page.read_text().replace("block_in", "block", 1) + "x")
    capsys.readouterr()
    assert docs.main(["--check", "--out", str(tmp_path)]) == 1
    assert f"{page}: stale, run python -m vdla.isa.docs" in capsys.readouterr().err


def test_the_page_names_everything() -> None:
    page = docs.isa_page()
    for opcode in Opcode:
        assert f"### {opcode.name}\n" in page
        for field in layout(opcode, HwParams()):
            assert f"`{field.name}` |" in page
    for op in VECTOR_OPS:
        assert f"| {op.code} | `{op.name}` | {op.doc.replace('|', chr(92) + '|')} |" in page
    for status in Status:
        assert f"| {status.value} | `{status.name}` | {status.doc} |" in page


def test_an_operator_row_reaches_page_and_header(monkeypatch: pytest.MonkeyPatch) -> None:
    row = replace(VECTOR_OPS[0], name="absdiff", code=9, doc="|a - b|")
    monkeypatch.setattr(docs, "VECTOR_OPS", (*VECTOR_OPS, row))
    assert r"| 9 | `absdiff` | \|a - b\| |" in docs.isa_page()
    assert "#define VDLA_OP_ABSDIFF 9\n" in docs.c_header()


@pytest.mark.parametrize("preset", ["16x16", "4x4"])
def test_the_c_header_packs_as_the_encoder(preset: str, tmp_path: Path) -> None:
    compiler = shutil.which("cc") or shutil.which("gcc")
    if compiler is None:
        pytest.skip("no C compiler on this machine")
    params = PRESETS[preset]
    (tmp_path / "vdla_isa.h").write_text(docs.c_header(params))
    (tmp_path / "main.c").write_text(C_PROGRAM)
    subprocess.run(
        [compiler, "-Wall", "-Wextra", "-Werror", "-o", "main", "main.c"], cwd=tmp_path, check=True
    )
    packed = subprocess.run([tmp_path / "main"], capture_output=True, check=True).stdout
    gemm = Gemm(
        uop_begin=0, uop_count=9, outer=4, inner=8, wgt_inner=3, push=Units.VECTOR | Units.STORE
    )
    vector = Vector(
        op="max",
        src0="tmp",
        src1="imm",
        dst="out",
        post="even",
        imm=-77,
        extents=(5, 1, 1, 1),
        dst_strides=(2, 0, 0, 0),
    )
    assert packed == encode(gemm, params) + encode(vector, params)
