"""Explorations as files: what is read, and one line for each thing that is wrong."""

from __future__ import annotations

from pathlib import Path

import pytest
from vdla.explore.spec import Spec
from vdla.isa.errors import VdlaError

DIGITS = Path(__file__).resolve().parents[2] / "examples" / "models" / "digits_int8.onnx"
GOOD = f"""
objectives = ["cycles", "bram"]
seed = 3
[networks]
"{DIGITS}" = 2.5
[limits]
bram = 100
[knobs]
block = [8, 4]
acc_depth = {{ from = 100, to = 900 }}
bus_bits = [64, 128]
"""


def load(tmp_path: Path, text: str) -> Spec:
    path = tmp_path / "spec.toml"
    path.write_text(text)
    return Spec.load(path)


def test_a_file_is_read(tmp_path: Path) -> None:
    spec = load(tmp_path, GOOD)
    assert spec.networks == {str(DIGITS): 2.5} and spec.objectives == ("cycles", "bram")
    assert spec.knobs == {
        "block": (4, 8), "acc_depth": (100, 200, 400, 800), "bus_bits": (64, 128),
    }  # fmt: skip
    assert spec.size == 16 and spec.seed == 3 and spec.trials == 100
    params, memory = spec.machine({"block": 4, "acc_depth": 200, "bus_bits": 128})
    assert (params.block_in, params.block_out, params.acc_depth) == (4, 4, 200)
    assert params.bus_bits == memory.bus_bits == 128 and params.wgt_depth == 2048


def test_models_beside_the_file_are_found(tmp_path: Path) -> None:
    (tmp_path / "mine.onnx").write_bytes(DIGITS.read_bytes())
    spec = load(tmp_path, GOOD.replace(str(DIGITS), "mine.onnx"))
    assert list(spec.networks) == [str(tmp_path / "mine.onnx")]


BAD = [
    ('"cycles", "bram"', '"cycles", "speed"', "objectives: expected one of cycles,.*'speed'"),
    ('"cycles", "bram"', '"cycles", "cycles"', "objectives: expected cycles once"),
    ('["cycles", "bram"]', '"cycles"', "objectives: expected a list"),
    ('["cycles", "bram"]', "[]", "objectives: expected at least one"),
    ("seed = 3", "seed = -1", "seed: expected an integer 0..4294967295, got -1"),
    ("seed = 3", "seed = true", "seed: expected an integer"),
    ("seed = 3", "trials = 0", "trials: expected an integer 1..1000000, got 0"),
    ("seed = 3", 'search = "xgb"', "search: expected one of surrogate, nsga2, .*, got xgb"),
    ("seed = 3", "wings = 2", "expected networks, objectives,.*, got 'wings'"),
    ("seed = 3", 'hw = "9x9"', "hardware configuration: expected a TOML file or one of"),
    ("seed = 3", "hw = 8", "hw: expected text, got 8"),
    ("seed = 3", 'memory = "fast"', "memory: expected a TOML file or one of"),
    ("seed = 3", "seed = ", "expected TOML"),
    ("= 2.5", "= 0", "networks.*: expected a number above 0, got 0"),
    ("= 2.5", '= "often"', "networks.*: expected a number above 0, got 'often'"),
    (str(DIGITS), "none.onnx", "model: expected a file, one of"),
    ("bram = 100", "bram = -1", "limits.bram: expected a number above 0, got -1"),
    ("bram = 100", "wings = 1", "limits: expected one of .* got 'wings'"),
    ("block = [8, 4]", "wings = [8, 4]", "knobs: expected one of block, .* got 'wings'"),
    ("block = [8, 4]", "block_in = [8, 4]", "knobs: expected one of block, .* got 'block_in'"),
    ("block = [8, 4]", "block = [8, 5]", "knobs.block: expected one of 4, 8, 16, 32, got 5"),
    ("block = [8, 4]", "block = [8, 8]", "knobs.block: expected each value once"),
    ("block = [8, 4]", "block = []", "knobs.block: expected 1 to 1000 values, got 0"),
    ("block = [8, 4]", "block = 8", "knobs.block: expected a list of values or {from, to}, got 8"),
    ("from = 100", "from = 1000", "knobs.acc_depth: expected 0 < from <= to, got from 1000 to 900"),
    ("from = 100", "from = 0", "knobs.acc_depth: expected 0 < from <= to"),
    ("from = 100", "from = 4", r"knobs.acc_depth: expected 8\.\.65536, got 4"),
    ("from = 100", "step = 1", "knobs.acc_depth: expected a list"),
]  # fmt: skip


@pytest.mark.parametrize(("old", "new", "message"), BAD, ids=[new for _, new, _ in BAD])
def test_bad_files_are_one_line(tmp_path: Path, old: str, new: str, message: str) -> None:
    assert old in GOOD
    with pytest.raises(VdlaError, match=message) as caught:
        load(tmp_path, GOOD.replace(old, new))
    assert "spec.toml: " in str(caught.value) and "\n" not in str(caught.value)


def test_a_file_without_knobs_is_refused(tmp_path: Path) -> None:
    with pytest.raises(VdlaError, match="knobs: expected at least one"):
        load(tmp_path, GOOD.partition("[knobs]")[0])
