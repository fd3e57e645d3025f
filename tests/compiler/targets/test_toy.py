"""A target of one file, and one line that gives it a name."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pytest
import vdla
from vdla.compiler.targets import registry
from vdla.isa.additions import noting

from .toy import SUMS, Toy

MODEL = Path(__file__).parents[3] / "examples" / "models" / "digits_int8.onnx"


@pytest.fixture
def toy() -> Iterator[None]:
    with noting() as additions:
        registry.register_target("toy", Toy)
        yield
        additions.take_back()


def image() -> np.ndarray:
    return np.random.default_rng(0).uniform(0, 16, (1, 1, 8, 8)).astype(np.float32)


@pytest.mark.more
@pytest.mark.slow
@pytest.mark.usefixtures("toy")
def test_the_digits_network_runs_on_it() -> None:
    module = vdla.compile(MODEL, "toy")
    [found] = module.run(image())
    [expected] = vdla.compile(MODEL, "sim").run(image())
    np.testing.assert_array_equal(found, expected)
    layers = {row["name"]: row for row in module.report["layers"]}
    assert {row["target"] for row in layers.values()} == {"toy", "cpu"}
    mine = [row for row in layers.values() if row["target"] == "toy"]
    assert [row["op"] for row in mine] == ["QConv2d"] * 5 + ["QDense"]
    assert {row["chosen_by"] for row in mine} == {"default"}
    assert layers["left"]["knobs"] == {"channels": 24}  # all
    assert layers["sum"]["reason"] == "the toy has no operator QAdd"


@pytest.mark.usefixtures("toy")
def test_its_choices_are_open() -> None:
    module = vdla.compile(MODEL, "toy", knobs={"left": {"channels": 8}, "dense": {"channels": 5}})
    layers = {layer.name: layer for layer in module.compiled.layers}
    assert (layers["left"].knobs, layers["left"].chosen_by) == ({"channels": 8}, "user")
    assert (layers["down"].knobs, layers["down"].chosen_by) == ({"channels": 24}, "default")
    with pytest.raises(vdla.VdlaError, match="layer 'left': knob channels: expected one of 24, 12"):
        vdla.compile(MODEL, "toy", knobs={"left": {"channels": 5}})
    with pytest.raises(vdla.VdlaError, match=f"layer 'stem': needs 512 sums of {SUMS}"):
        vdla.compile(MODEL, "toy", knobs={"stem": {"channels": 8}})


@pytest.mark.usefixtures("toy")
def test_it_says_what_it_cannot_do(tmp_path: Path) -> None:
    with pytest.raises(vdla.VdlaError, match="save: expected steps that are programs or native"):
        vdla.compile(MODEL, "toy").save(tmp_path / "module")
    with pytest.raises(
        vdla.VdlaError, match="target: expected one of sim, rtl, fpga, cpu, cuda, opencl, "
    ):
        vdla.compile(MODEL, "gpu")
