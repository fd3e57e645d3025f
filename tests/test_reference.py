"""The reference pages of the documentation name everything that there is."""

from __future__ import annotations

import json
import re
import sys
from dataclasses import fields
from pathlib import Path

import pytest
from vdla.cli import run_app
from vdla.isa.memory import MemoryParams
from vdla.isa.params import HwParams

from .bad_options import commands

ROOT = Path(__file__).resolve().parents[1]
DOCS = ROOT / "docs"
DIGITS = ROOT / "examples" / "models" / "digits_int8.onnx"


@pytest.fixture
def generated(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Path:
    """The folder of the generated pages."""
    monkeypatch.syspath_prepend(str(DOCS))
    from generate import write_pages  # type: ignore[import-not-found]

    sys.modules.pop("generate")
    write_pages(tmp_path)
    return tmp_path


def test_every_command_and_option_is_in_the_reference(generated: Path) -> None:
    page = (generated / "cli.md").read_text()
    sections = dict(re.findall(r"^## vdla (.*)\n((?:(?!^## ).*\n?)*)", page, re.MULTILINE))
    assert set(sections) == set(commands())
    for words, command in commands().items():
        for parameter in command.params:
            for name in parameter.opts:
                assert name == "--help" or f"`{name}`" in sections[words], (words, name)
            assert parameter.name == "help" or parameter.help in sections[words].replace("\\", "")


def test_every_knob_has_unit_range_and_effect(generated: Path) -> None:
    page = (generated / "configuration.md").read_text()
    rows = {line.split("|")[1].strip(" `"): line.split("|")[2:-1] for line in page.splitlines()
            if line.startswith("| `")}  # fmt: skip
    for kind in (HwParams, MemoryParams):
        for field in fields(kind):
            if field.name == "part":  # a name, which only presets have
                continue
            default, *cells = (cell.strip() for cell in rows[field.name])
            assert default.isdigit() and len(cells) == 4 and all(cells), field.name
    assert rows["acc_depth"][1:3] == [" entries ", " 8..65536 "]


def described(page: str) -> dict[str, set[str]]:
    """Names in the first column of the tables of a page, by the heading above."""
    found: dict[str, set[str]] = {}
    heading = ""
    for line in (DOCS / "reference" / page).read_text().splitlines():
        if line.startswith("#"):
            heading = line.lstrip("# ")
        elif line.startswith("| `"):
            found.setdefault(heading, set()).update(re.findall(r"`(\w+)`", line.split("|")[1]))
    return found


@pytest.mark.slow
def test_every_field_of_a_report_is_described(tmp_path: Path) -> None:
    path = tmp_path / "report.json"
    command = ["run", str(DIGITS), "--clock", "50", "--against", "onnxruntime", "--explain"]
    command += ["--repeat", "2"]
    assert run_app([*command, "--json", str(path)]) == 0
    report, tables = json.loads(path.read_text()), described("reports.md")
    # A clock that is given is no board's.
    assert set(report) == (tables["Reports"] | tables["Of a run"]) - {"clock_of"}
    for layer in report["layers"]:
        assert set(layer) == tables["Of a layer"]
    causes = {cause for unit in report["stalls"].values() for cause in unit}
    stalls = (DOCS / "tutorials" / "stalls.md").read_text()
    assert all(f"`{cause}`" in stalls for cause in causes)


def test_every_environment_variable_is_described() -> None:
    sources = [
        path for room in ("isa", "runtime", "hw", "sim", "compiler", "cosim", "cli")
        for path in (ROOT / room).rglob("*.py")
    ] + list(ROOT.glob("*.py"))  # fmt: skip
    read = re.compile(r'environ(?:\.get|\.setdefault)?[(\[]\s*"(\w+)"|envvar=|VARIABLE = "(\w+)"')
    found = {a or b for path in sources for a, b in read.findall(path.read_text())} - {""}
    assert found == described("files.md")["Environment variables"]
