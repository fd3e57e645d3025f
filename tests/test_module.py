"""compile, run, report, save, load; the simulators are played by the reference interpreter."""

from __future__ import annotations

import json
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import vdla
from vdla.cli import run_app
from vdla.compiler.targets.cpu.llvm_parallel import has_threads
from vdla.isa.insn import Gemm
from vdla.isa.memory import MEMORY_PRESETS, MemoryParams, load_platform
from vdla.isa.params import HwParams
from vdla.isa.program import Program
from vdla.isa.reference import run as run_reference
from vdla.runtime.result import NO_CAUSES
from vdla.sim.runner import Runner

MODELS = Path(__file__).resolve().parent.parent / "examples" / "models"
DIGITS = MODELS / "digits_int8.onnx"

LAYER_FIELDS = {
    "name", "op", "target", "reason", "cycles", "macs", "utilisation", "roofline_fraction",
    "stalls", "knobs", "chosen_by", "predicted_cycles", "active_cycles", "bound_by",
    "busiest_unit", "main_stall", "channel_bytes", "dram", "kernels", "vector_macs",
}  # fmt: skip


@dataclass
class FakeTiming:
    """Every instruction takes a hundred cycles, one after the other."""

    cycles: int
    starts: list[int]
    ends: list[int]
    counters: dict[str, dict[str, int]]
    causes: np.ndarray = field(default_factory=lambda: NO_CAUSES)


@pytest.fixture
def simulations(monkeypatch: pytest.MonkeyPatch) -> list[int]:
    """Replaces the simulator; collects the cycles that each call gave."""
    calls: list[int] = []

    def simulate(_self: Runner, program: Program, dram: np.ndarray) -> FakeTiming:
        run_reference(program, dram)
        count = len(program.insns)
        calls.append(100 * count + 2)
        ends = [100 * (index + 1) for index in range(count)]
        starts = [end - 99 for end in ends]
        return FakeTiming(calls[-1], starts, ends, {"gemm": {"busy": 2, "empty": calls[-1] - 2}})

    monkeypatch.setattr(Runner, "run", simulate)
    return calls


@pytest.fixture
def images() -> tuple[np.ndarray, np.ndarray]:
    """Eight test images and their labels."""
    data = np.load(MODELS / "digits_test.npz")
    return data["x"][:8], data["y"][:8]


def test_run_and_report(simulations: list[int], images: tuple[np.ndarray, np.ndarray]) -> None:
    module = vdla.compile(DIGITS)
    x, labels = images
    (logits,) = module.run(x)
    assert logits.shape == (8, 10)
    assert (logits.argmax(1) == labels).mean() >= 7 / 8
    report = module.report
    assert len(simulations) == 1, "only the first batch is simulated in time"
    assert report["cycles"] == simulations[0]
    assert report["batches"] == 8
    rows = report["layers"]
    assert all(set(row) == LAYER_FIELDS for row in rows)
    assert sum(row["cycles"] or 0 for row in rows) == report["cycles"]
    assert sum(row["macs"] for row in rows) == report["macs"] == 226_112
    assert report["coverage"] == {
        "macs_on_accelerator": 226_112, "macs_total": 226_112,
        "operators_on_host": 2, "operators_total": 11,  # packed windows and a reshape are none
    }  # fmt: skip
    assert report["programs"] == 1 and 0 < report["host_s"] < report["wall_s"]
    use = report["utilisation"]
    assert use["end_to_end"] == pytest.approx(226_112 / (256 * report["cycles"]))
    assert use["spatial"] * use["temporal"] == pytest.approx(use["end_to_end"])
    issued = sum(i.iterations for i in module.program.insns if isinstance(i, Gemm))
    assert use["temporal"] == pytest.approx(issued / report["cycles"])
    hosts = {row["op"] for row in rows if row["target"] == "cpu"}
    assert hosts == {"Quantize", "Dequantize", "PackWindows"}
    assert all(row["reason"] for row in rows)
    places = [plan["where"] for plan in report["memory_plan"]]
    assert places == ["step 0, host", "step 1, DRAM", "step 2, host"]
    for plan in report["memory_plan"]:
        assert plan["bound_bytes"] <= plan["planned_bytes"] <= plan["sum_bytes"]
    assert report["memory_plan"][1]["planned_bytes"] > 0
    output = report["outputs"]["logits"]
    assert (output["shape"], output["dtype"]) == ([8, 10], "float32")


def test_cycles_of_the_run_before(
    simulations: list[int], images: tuple[np.ndarray, np.ndarray]
) -> None:
    """Only values are computed again, and they are right."""
    module, x = vdla.compile(DIGITS), images[0]
    module.run(x[:1], keep_timing=True)  # there is none before
    again = module.run(x[1:2], keep_timing=True)
    assert len(simulations) == 1 and module.report["cycles"] == simulations[0]
    np.testing.assert_array_equal(module.run(x[1:2]), again)
    assert len(simulations) == 2


def test_dram_traffic_covers_the_weights(
    simulations: list[int], images: tuple[np.ndarray, np.ndarray]
) -> None:
    module = vdla.compile(DIGITS)
    module.run(images[0][:1])
    program = module.program
    dram = module.report["dram"]
    constants = sum(len(data) for data in program.image.values())
    assert dram["read_bytes"] >= constants + len(program.insns) * program.params.insn_bytes
    assert dram["written_bytes"] >= 10


def test_rtl_runs_every_batch_and_refuses_other_cycles(
    simulations: list[int],
    images: tuple[np.ndarray, np.ndarray],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    module = vdla.compile(DIGITS, target="rtl")
    module.run(images[0][:3])
    assert len(simulations) == 3
    original, slower = Runner.run, iter(range(10))

    def drifting(self: Runner, program: Program, dram: np.ndarray) -> FakeTiming:
        timing = original(self, program, dram)
        timing.cycles += next(slower)
        return timing  # type: ignore[return-value]

    monkeypatch.setattr(Runner, "run", drifting)
    with pytest.raises(vdla.VdlaError, match="timing must not depend on data"):
        module.run(images[0][:2])


def test_named_inputs(simulations: list[int], images: tuple[np.ndarray, np.ndarray]) -> None:
    module = vdla.compile(DIGITS)
    with pytest.raises(vdla.VdlaError, match="expected a value for 'image'"):
        module.run()
    with pytest.raises(vdla.VdlaError, match="expected one of image, got 'x'"):
        module.set_input("x", images[0])
    module.set_input("image", images[0][:1])
    assert np.array_equal(module.run()[0], module.get_output(0))
    with pytest.raises(vdla.VdlaError, match=r"get_output: expected 0\.\.0, got 1"):
        module.get_output(1)


def test_inputs_by_name(simulations: list[int], images: tuple[np.ndarray, np.ndarray]) -> None:
    """By keyword, as a mapping, in order: the same. NumPy's float64 is taken, too."""
    module, x = vdla.compile(DIGITS), images[0][:1]
    (tensor,), (result,) = module.inputs, module.outputs
    assert (tensor.name, tensor.shape, tensor.dtype) == ("image", (1, 1, 8, 8), "float32")
    assert (result.name, result.shape) == ("logits", (1, 10))
    (expected,) = module.run(x)
    for (found,) in (
        module.run(image=x), module.run({"image": x}), module.run(x.astype(np.float64)),
        module.run(image=x.astype(np.float64)),
    ):  # fmt: skip
        assert np.array_equal(found, expected)
    module.set_input("image", x.astype(np.float64))
    assert np.array_equal(module.run()[0], expected)
    for call in (lambda: module.run(x=x), lambda: module.run({"image": x, "x": x})):
        with pytest.raises(vdla.VdlaError, match="expected inputs named image, got 'x'"):
            call()
    with pytest.raises(vdla.VdlaError, match=r"expected 1 arrays \(image\), got 1 and image"):
        module.run(x, image=x)


def test_the_package_lists_what_there_is() -> None:
    assert {"compile", "load", "quantize", "te", "HwParams"} <= {*dir(vdla)} == {*vdla.__all__}
    assert all(getattr(vdla, name) is not None for name in dir(vdla))


@pytest.mark.fast(1)
@pytest.mark.parametrize(
    ("array", "words"),
    [
        (
            np.zeros((1, 1, 8, 8), np.int32),
            "expected float32 of shape .N, 1, 8, 8., got int32",
        ),
        (np.zeros((1, 8, 8), np.float32), r"got float32 of \(1, 8, 8\)"),
        (np.zeros((1, 1, 8, 9), np.float32), r"got float32 of \(1, 1, 8, 9\)"),
        (np.zeros((0, 1, 8, 8), np.float32), r"got float32 of \(0, 1, 8, 8\)"),
    ],
)
def test_arrays_that_do_not_fit(simulations: list[int], array: np.ndarray, words: str) -> None:
    with pytest.raises(vdla.VdlaError, match=words):
        vdla.compile(DIGITS).run(array)


@pytest.mark.parametrize("dtype", ["float16", "bfloat16", "float64"])
def test_other_floats_are_taken(dtype: str) -> None:
    x = np.round(np.random.default_rng(1).uniform(0, 16, (1, 1, 8, 8)))
    module = vdla.compile(DIGITS, target="cpu")
    np.testing.assert_array_equal(module.run(x.astype(dtype)), module.run(x.astype(np.float32)))


def test_save_load(
    simulations: list[int], images: tuple[np.ndarray, np.ndarray], tmp_path: Path
) -> None:
    module = vdla.compile(DIGITS, hw="8x8", memory="slow", vthreads=1)
    module.save(tmp_path / "m")
    again = vdla.load(tmp_path / "m")
    assert again.program == module.program
    assert (again.memory, again.vthreads, again.target) == (module.memory, 1, "sim")
    assert np.array_equal(again.run(images[0])[0], module.run(images[0])[0])


@pytest.mark.slow
@pytest.mark.skipif(not has_threads(), reason="needs GCC's OpenMP library")
def test_threads_give_the_same_bits(
    images: tuple[np.ndarray, np.ndarray], tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    one, two = (vdla.compile(DIGITS, target="cpu", threads=n) for n in (1, 2))
    two.save(tmp_path / "m")
    again = vdla.load(tmp_path / "m")
    expected = one.run(images[0])[0]
    for module in (two, again):
        assert b"GOMP_parallel" in module.compiled.steps[0].file()
        np.testing.assert_array_equal(module.run(images[0])[0], expected)
        assert module.report["threads"] == 2
    assert b"GOMP_parallel" not in one.compiled.steps[0].file()
    command = ["compile", str(DIGITS), "--target", "cpu", "--threads", "2", "-o"]
    assert run_app([*command, str(tmp_path / "n")]) == 0
    assert vdla.load(tmp_path / "n").settings.threads == 2
    hashes = []
    for threads in ("1", "2"):
        arguments = ["run", str(DIGITS), "--target", "cpu", "--threads", threads, "--json", "-"]
        capsys.readouterr()
        assert run_app(arguments) == 0
        report = json.loads(capsys.readouterr().out)
        assert report["threads"] == int(threads)
        hashes.append(report["outputs"])
    assert hashes[0] == hashes[1]


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        ({"target": "cpu", "threads": 0}, "threads: expected an integer of at least 1, got 0"),
        ({"target": "cpu", "threads": True}, "threads: expected an integer .*, got True"),
        ({"target": "rtl", "threads": 2}, "threads: expected 1 with the accelerator, got 2"),
    ],
)
def test_impossible_threads(arguments: dict[str, Any], words: str) -> None:
    with pytest.raises(vdla.VdlaError, match=words):
        vdla.compile(DIGITS, **arguments)


@pytest.mark.fast(1)
@pytest.mark.parametrize(
    ("model", "target"),
    [
        ("digits_int8", "sim"),
        ("digits_int8", "cpu"),
        ("digits_float", "sim"),
        ("digits_int8", "cuda"),
    ],
)
def test_a_compilation_tells_how_far_it_is(model: str, target: str) -> None:
    seen: list[tuple[int, int]] = []
    module = vdla.compile(
        MODELS / f"{model}.onnx", target, emulate=target == "cuda",
        progress=lambda done, total: seen.append((done, total)),
    )  # fmt: skip
    nodes = len(module.compiled.layers)
    assert seen[-1] == (2 * nodes, 2 * nodes) and len(seen) >= nodes
    assert seen == sorted(seen) and {total for _, total in seen} == {2 * nodes}


def test_bus_widths_agree() -> None:
    params, memory = load_platform("16x16", "wide")
    assert params.bus_bits == memory.bus_bits == 128
    assert load_platform(HwParams(), MemoryParams())[0] == HwParams()
    with pytest.raises(vdla.VdlaError, match=r"expected a data bus of 64 bits.*got 128"):
        load_platform(HwParams(), MEMORY_PRESETS["wide"])


def test_report_before_run_and_program_of_the_cpu() -> None:
    with pytest.raises(vdla.VdlaError, match="nothing was run yet"):
        _ = vdla.compile(DIGITS).report
    with pytest.raises(vdla.VdlaError, match="target 'cpu' has none"):
        _ = vdla.compile(DIGITS, target="cpu").program


@pytest.mark.slow
def test_the_command(
    simulations: list[int], tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    outputs, report_file, program = (tmp_path / n for n in ("y.npz", "r.json", "p.vdla"))
    command = ["run", str(DIGITS), "--input", str(MODELS / "digits_test.npz")]
    files = ["--output", str(outputs), "--json", str(report_file), "--program", str(program)]
    assert run_app([*command, *files, "--dump-ir", str(tmp_path / "ir")]) == 0
    report = json.loads(report_file.read_text())
    assert {"vdla", "config_hash", "memory", "seed", "target", "layers", "wall_s"} <= set(report)
    logits = np.load(outputs)["logits"]
    labels = np.load(MODELS / "digits_test.npz")["y"]
    assert (logits.argmax(1) == labels).mean() >= 0.96
    assert list((tmp_path / "ir").iterdir())
    assert run_app(["check", str(program)]) == 0
    capsys.readouterr()
    assert run_app(["run", str(DIGITS)]) == 0
    shown = capsys.readouterr().out
    assert "QConv2d" in shown
    assert "226,112" in shown


@pytest.mark.slow
def test_inputs_that_are_no_arrays(
    simulations: list[int], tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    path = tmp_path / "x.npz"
    np.savez(path, a=np.zeros(1), b=np.zeros(1))
    assert run_app(["run", str(DIGITS), "--input", str(path)]) == 2
    assert "expected an array 'image', got a, b" in capsys.readouterr().err
    path.write_bytes(b"garbage")
    assert run_app(["run", str(DIGITS), "--input", str(path)]) == 2
    error = capsys.readouterr().err
    assert "expected arrays in an .npz file" in error
    assert error.count("\n") == 1
