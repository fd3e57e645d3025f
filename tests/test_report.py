"""Reports: cycles that sum to the whole, bounds that nothing beats, what stalled."""

from __future__ import annotations

import json
import random
from dataclasses import dataclass, replace
from itertools import count
from pathlib import Path

import numpy as np
import onnx
import pytest
import vdla
from vdla.bench.measure import measure, random_inputs
from vdla.bench.net import Net
from vdla.bench.workloads import ConvLayer
from vdla.cli import run_app
from vdla.hw.built import find_built
from vdla.isa.memory import MEMORY_PRESETS, MemoryParams, load_platform
from vdla.isa.params import PRESETS, HwParams
from vdla.report.bounds import Bound, active_cycles
from vdla.report.report import (
    accelerator_report,
    config_name,
    host_text,
    join_programs,
    main_stall,
    memory_name,
)

DIGITS = Path(__file__).resolve().parents[1] / "examples" / "models" / "digits_int8.onnx"
TRANSFORMER = DIGITS.with_name("digits_transformer_int8.onnx")
#: Memories on which reads, writes or neither decide.
MEMORIES = {
    "vta": MEMORY_PRESETS["vta"],
    "a quarter of the bandwidth": MemoryParams(cycles_per_beat=4),
    "a tenth of the bandwidth": MemoryParams(cycles_per_beat=10),
}


@dataclass
class Moments:
    """Starts and ends of instructions."""

    starts: list[int]
    ends: list[int]


def test_active_cycles_are_those_with_an_instruction() -> None:
    rng = random.Random(1)
    for _ in range(300):
        starts = [rng.randrange(1, 40) for _ in range(rng.randrange(1, 9))]
        timing = Moments(starts, [start + rng.randrange(12) for start in starts])
        chosen = sorted(rng.sample(range(len(starts)), rng.randrange(1, len(starts) + 1)))
        active = {c for i in chosen for c in range(timing.starts[i], timing.ends[i] + 1)}
        assert active_cycles(timing, chosen) == len(active)  # type: ignore[arg-type]
    assert active_cycles(Moments([], []), []) == 0  # type: ignore[arg-type]


@pytest.mark.fast(1)
@pytest.mark.parametrize("memory", MEMORIES)
@pytest.mark.parametrize("stride", [1, 2])
def test_no_layer_is_faster_than_its_bound(memory: str, stride: int) -> None:
    """A convolution of 1x1 with stride 2 leaves out three quarters of its input."""
    layer = ConvLayer("small C5", 28, 64, 128, 1, stride)
    found = measure(layer.model(1), HwParams(), MEMORIES[memory], ("sim",))
    timing = found.results["sim"]
    program = join_programs(found.compiled.programs)
    report = accelerator_report(found.compiled.layers, program, MEMORIES[memory], timing)
    rows = [row for row in report["layers"] if row["target"] == "accel"]
    assert rows and all(0 < row["roofline_fraction"] <= 1 for row in rows), rows
    assert 0 < report["roofline_fraction"] <= 1
    assert sum(row["cycles"] for row in rows) == report["cycles"]
    if memory != "vta":
        assert report["bound_by"] in ("reads", "writes")
        assert report["roofline_fraction"] >= 0.5, "the bus is what decides, and it is used"


def test_layers_that_overlap_sum_to_the_whole() -> None:
    module = vdla.compile(DIGITS)
    module.run(*random_inputs(module.inputs))
    report = module.report
    rows = [row for row in report["layers"] if row["active_cycles"]]
    assert sum(row["cycles"] for row in rows) == report["cycles"]
    assert sum(row["active_cycles"] for row in rows) > report["cycles"], "layers overlap"
    assert all(row["active_cycles"] <= report["cycles"] for row in rows)
    for row in rows:
        use = row["utilisation"]
        assert all(value is None or 0 <= value <= 1 for value in use.values())
        assert 0 <= row["roofline_fraction"] <= 1
        assert row["busiest_unit"] in row["stalls"]
        busy = {unit: causes["busy"] for unit, causes in row["stalls"].items()}
        assert busy[row["busiest_unit"]] == max(busy.values())


def test_main_stall() -> None:
    causes = {"busy": 90, "dma": 3, "token_load": 5, "token_gemm": 0, "empty": 80}
    assert main_stall(causes) == "token_load"
    assert main_stall({"busy": 9, "dma": 0, "empty": 1}) is None


def test_the_bound_names_what_it_comes_from() -> None:
    assert Bound(3.0, 2.5, 2.0, 1.0, 8).by == "compute"
    assert Bound(1.0, 0.0, 2.0, 2.5, 8).by == "writes"
    assert Bound(1.0, 3.0, 2.0, 2.5, 8).by == "vector"
    assert Bound(1.0, 0.0, 2.0, 1.5, 8).cycles == 2.0
    assert Bound(0.0, 0.0, 0.0, 0.0, 0).by == ""


#: Machines on which the vector unit does depthwise convolutions: one product a lane, in two passes,
#: and in windows, where a convolution before it is part of the same operator.
VECTOR_UNITS = {
    "plain": HwParams(),
    "two passes": HwParams(vector_passes=2),
    "windows": HwParams(vector_window=3, vector_table=2),
}


@pytest.mark.parametrize("hw", VECTOR_UNITS)
def test_each_units_macs_stand_against_its_own_peak(hw: str) -> None:
    """An expansion, which fills the tensor core, and a depthwise convolution of its result."""
    params, net = VECTOR_UNITS[hw], Net("block")
    x = net.conv(net.input(1, 64, 28, 28), 96, 1)
    net.output(net.conv(net.conv(x, 96, 3, groups=96), 64, 1))
    model = net.model()
    module = vdla.compile(model, hw=params)
    if hw == "windows":
        name = [layer.name for layer in module.compiled.layers if layer.op == "QConv2d"][1]
        module = vdla.compile(model, hw=params, knobs={name: {"expansion": "joined"}})
    module.run(*random_inputs(module.inputs))
    report = module.report
    depthwise = 28 * 28 * 96 * 9
    assert (report["macs"], report["vector_macs"]) == (28 * 28 * 96 * 128 + depthwise, depthwise)
    rows = [row for row in report["layers"] if row["macs"]]
    joined = [row for row in rows if 0 < row["vector_macs"] < row["macs"]]
    assert [row["op"] for row in joined] == ["QConvWindow"] * (hw == "windows")
    for row in [report, *rows]:
        use, cycles = row["utilisation"], row.get("active_cycles", row["cycles"])
        assert all(value is None or 0 <= value <= 1 for value in use.values()), use
        assert row["roofline_fraction"] <= 1
        core = row["macs"] - row["vector_macs"]
        assert use["end_to_end"] == pytest.approx(core / (256 * cycles))
        peak = 16 * max(params.vector_window, 1) / params.vector_passes
        least = row["vector_macs"] / (peak * cycles)
        assert use["vector"] == (pytest.approx(least) if row["vector_macs"] else None)
        assert least <= row["roofline_fraction"]
    (window,) = (row for row in rows if row["vector_macs"])
    assert window["bound_by"] == "vector"
    assert window["roofline_fraction"] > 0.6


def test_the_table_has_both_units(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    net = Net("depthwise")
    net.output(net.conv(net.input(1, 16, 28, 28), 16, 3, groups=16))
    path, page, picture = (tmp_path / f"m.{end}" for end in ("onnx", "html", "png"))
    onnx.save_model(net.model(), str(path))
    command = ["run", str(path), "--html", str(page), "--roofline", str(picture), "--explain"]
    assert run_app(command) == 0
    out = capsys.readouterr().out
    (heads,) = [line for line in out.splitlines() if "end to end " in line and "┃" in line]
    assert " vector " in heads and "vector: those of the vector unit of its own" in out
    assert "the vector unit is the limit" in page.read_text()
    assert run_app(["run", str(DIGITS)]) == 0
    (heads,) = [line for line in capsys.readouterr().out.splitlines() if "end to end ┃" in line]
    assert " vector " not in heads


def test_names_instead_of_hashes() -> None:
    assert config_name(replace(PRESETS["8x8"], bus_bits=128)) == "8x8"
    odd = HwParams(acc_depth=1000)
    assert config_name(odd) == odd.hash
    assert memory_name(MEMORY_PRESETS["slow"]) == "slow"
    assert memory_name(MemoryParams(outstanding=3)) == "outstanding 3"


def test_the_table_says_where_the_cycles_went(capsys: pytest.CaptureFixture[str]) -> None:
    assert run_app(["run", str(DIGITS), "--clock", "100"]) == 0
    out = capsys.readouterr().out
    assert "6,248 cycles (0.062 ms, 16,005 images a second at 100 MHz)" in out
    (row,) = [line for line in out.splitlines() if line.startswith("│ left ")]
    assert "reads" in row and "load" in row
    (row,) = [line for line in out.splitlines() if line.startswith("│ total, programs: 1 ")]
    assert "host 2 of 11" in row, "the share of the host beside the utilisation"
    assert "1 program; 2 of 11 operators (18.2 %) run on the host, with 0.0 % of the MACs" in out


def test_time_on_the_board_whose_design_was_routed(capsys: pytest.CaptureFixture[str]) -> None:
    """Its own clock, with its own memory; no time where such a machine cannot be built."""
    built = find_built(*load_platform("8x8", "ulx3s"))
    assert built is not None
    run = ["run", str(DIGITS), "--hw", "8x8", "--json", "-"]
    for memory, clock, expected in (
        ("ulx3s", (), built.mhz), ("vta", (), None), ("ulx3s", ("--clock", "50"), 50)
    ):  # fmt: skip
        assert run_app([*run, "--memory", memory, *clock]) == 0
        report = json.loads(capsys.readouterr().out)
        assert report.get("clock_mhz") == expected
        assert report.get("clock_of") == ("ulx3s-85f" if not clock and expected else None)
        if expected is not None:
            assert report["time_ms"] == pytest.approx(report["cycles"] / (1000 * expected))
            assert report["images_per_s"] == pytest.approx(1000 / report["time_ms"])
    assert run_app(["run", str(DIGITS), "--hw", "8x8", "--memory", "ulx3s"]) == 0
    assert f"at {built.mhz:g} MHz, as routed for ulx3s-85f" in capsys.readouterr().out


def test_what_the_host_does_is_counted(monkeypatch: pytest.MonkeyPatch) -> None:
    """The steps of the host alone, and their seconds of a batch, not of all batches."""
    ticks = count()
    monkeypatch.setattr("vdla.runtime.executable.time.perf_counter", lambda: float(next(ticks)))
    module = vdla.compile(TRANSFORMER, hw=HwParams())  # several programs
    (x,) = random_inputs(module.inputs)
    for batches in (1, 3):
        module.run(np.concatenate([x] * batches))
        report = module.report
        steps = len(module.compiled.steps) - len(module.compiled.programs)
        assert report["host_s"] == steps > report["programs"] == 10
    covered = report["coverage"]
    moved = {"Reshape", "Transpose", "TransposeGroups", "PackWindows", "Identity"}
    rows = [row for row in report["layers"] if row["op"] not in moved]
    assert covered["operators_total"] == len(rows) < len(report["layers"])
    assert covered["operators_on_host"] == sum(row["target"] == "cpu" for row in rows)
    assert covered["macs_on_accelerator"] == covered["macs_total"]
    assert host_text(report | {"host_s": 0.005}) == (
        "10 programs; 13 of 31 operators (41.9 %) run on the host, with 0.0 % of the MACs, in"
        " 5.000 ms on this processor"
    )


def test_a_float_network_names_the_commands_that_change_it(
    capsys: pytest.CaptureFixture[str],
) -> None:
    float_model = DIGITS.with_name("digits_float.onnx")
    assert run_app(["run", str(float_model)]) == 0
    last = " ".join(capsys.readouterr().out.split("batch in ")[1].split()[2:])
    assert last.endswith(
        "MACs ran on the accelerator because the network is float: vdla quantize digits_float.onnx"
        " --samples SAMPLES.npz -o digits_float_int8.onnx; vdla run digits_float_int8.onnx"
    )
    for command in (["run", str(DIGITS)], ["run", str(float_model), "--target", "cpu"]):
        assert run_app(command) == 0
        assert "is float" not in capsys.readouterr().out


def test_on_the_processor_everything_is_on_the_host(capsys: pytest.CaptureFixture[str]) -> None:
    module = vdla.compile(DIGITS, "cpu")
    module.run(*random_inputs(module.inputs))
    covered, seconds = module.report["coverage"], module.report["host_s"]
    assert covered["operators_on_host"] == covered["operators_total"] > 0
    assert covered["macs_on_accelerator"] == module.report["programs"] == 0
    assert 0 < seconds <= module.report["wall_s"]
    assert run_app(["run", str(DIGITS), "--target", "cpu"]) == 0
    assert "program" not in capsys.readouterr().out


@pytest.mark.slow
def test_networks_and_sweeps_say_what_the_host_does(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert run_app(["bench", "networks", "--models", "dqn"]) == 0
    out = capsys.readouterr().out
    assert all(name in out for name in ("programs", "on host", "MACs on the accelerator"))
    assert "2 of 7" in out and "coverage" not in out
    results = str(tmp_path / "results.jsonl")
    page, table = tmp_path / "page.html", tmp_path / "table.csv"
    plain = tmp_path / "plain.toml"
    plain.write_text("tmp_depth = 128\nvector_table = 0\nvector_window = 0\n")
    command = [
        "sweep", str(TRANSFORMER), "--hw", str(plain), "--results", results, "--html", str(page),
    ]  # fmt: skip
    assert run_app([*command, "--set", "vector_table=0,2"]) == 0
    out = " ".join(capsys.readouterr().out.replace("│", " ").split())
    assert out.count("not the same") == 1 and "4 of 34" in out
    assert run_app([*command, "--csv", str(table)]) == 0
    out = capsys.readouterr().out
    assert "programs" in out and "on host" in out and "13 of 31" in out
    assert "13 of 31" in page.read_text()
    names, values = (line.split(",") for line in table.read_text().splitlines())
    row = dict(zip(names, values, strict=True))
    assert (row["programs"], row["operators_on_host"], row["operators_total"]) == ("10", "13", "31")


@pytest.mark.slow
def test_one_hash_of_a_memory(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """``vdla config`` and ``vdla run`` mean the same machine by the same options."""
    hashes = []
    for command in (["config", "16x16"], ["run", str(DIGITS), "--hw", "16x16"]):
        assert run_app([*command, "--memory", "wide", "--json", "-"]) == 0
        hashes.append(json.loads(capsys.readouterr().out)["config_hash"])
    assert hashes[0] == hashes[1]
    bus = tmp_path / "bus.toml"
    bus.write_text("bus_bits = 128\n")
    assert run_app(["config", str(bus)]) == 2
    assert "expected a data bus of 128 bits" in capsys.readouterr().err
    assert run_app(["config", str(bus), "--memory", "wide"]) == 0
