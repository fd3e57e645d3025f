"""The tuner measures kernels of OpenCL, and what it finds is applied."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest
import vdla
from vdla.api import tuning
from vdla.bench.net import Net
from vdla.cli.arrays import model_inputs
from vdla.compiler.choose.space import Knobs
from vdla.compiler.targets.base import Options
from vdla.compiler.targets.gpu.layer import GpuLayer
from vdla.compiler.targets.registry import find_target
from vdla.compiler.tune.task import find_tasks
from vdla.isa.memory import MemoryParams
from vdla.isa.params import HwParams


@pytest.mark.more
@pytest.mark.slow
def test_layers_are_tuned_on_the_device(tmp_path: Path) -> None:
    pytest.importorskip("pyopencl")
    net = Net("small", False)
    net.output(net.dense(net.input(4, 64), 8))
    model = net.model().SerializeToString()
    records = tmp_path / "records.jsonl"
    report = vdla.tune(model, "opencl", records, trials=2, tuner="random")
    [row] = report["tasks"]
    assert (report["target"], row["template"], row["failed"]) == ("opencl", "gemm", 0)
    assert row["trials"] >= 2 and row["best"] > 0
    module = vdla.compile(model, "opencl", records=records)
    [layer] = [layer for layer in module.compiled.layers if layer.chosen_by == "record"]
    assert layer.knobs == row["best_knobs"]
    arrays = model_inputs(module, None, 0)
    wanted = vdla.compile(model, "cpu").run(*arrays)
    np.testing.assert_allclose(module.run(*arrays)[0], wanted[0], rtol=1e-5, atol=1e-6)


def test_cuda_needs_a_driver(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("vdla.runtime.gpu.cuda.LIBRARY", "libcuda.so.of.nobody")
    net = Net("small", False)
    net.output(net.dense(net.input(4, 64), 8))
    with pytest.raises(vdla.VdlaError, match="expected the driver of an NVIDIA GPU"):
        vdla.tune(net.model().SerializeToString(), "cuda", tmp_path / "records.jsonl")
    with pytest.raises(vdla.VdlaError, match="precision: expected target 'cuda'"):
        vdla.tune(net.model().SerializeToString(), "opencl", tmp_path / "r", precision="float16")


def test_trials_of_a_layer_are_divided_by_their_runs(monkeypatch: pytest.MonkeyPatch) -> None:
    """Of CUDA's trials, too, which have a clock of their own."""
    net = Net("small", False)
    net.output(net.dense(net.input(4, 64), 8))
    target = find_target("cuda", Options(HwParams(), MemoryParams(), emulate=True))
    [task] = find_tasks(net.model().SerializeToString(), target)
    runs = list[int]()

    def trial(self: GpuLayer, knobs: Knobs) -> Callable[[int], float]:
        def run(count: int) -> float:
            runs.append(count)
            return 2e-6 * count

        return run

    monkeypatch.setattr(GpuLayer, "trial", trial)
    assert tuning.kernels_ms(task.layer, [{}], 3) == pytest.approx([2e-3])
    assert runs == [1, 1, 1000, 1000, 1000]
