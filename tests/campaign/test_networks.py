"""The digits network on every configuration: the same bits from all targets, the same cycles from
both simulators, and every cycle accounted for. And what no configuration may be.
"""

from __future__ import annotations

from dataclasses import fields, replace
from pathlib import Path

import numpy as np
import pytest
import vdla
from vdla.cli import run_app
from vdla.isa.errors import VdlaError
from vdla.isa.memory import MEMORY_LEGAL, MEMORY_PRESETS
from vdla.isa.params import HwParams

from . import networks
from .configurations import ROOMY, SMALLEST, Platform
from .networks import DIGITS, IMAGES, differences, run

#: Those whose RTL builds in seconds; ``make verify`` does all.
QUICK = [platform for platform in ROOMY if platform.params.block == 4][:1]


@pytest.mark.short(5)
@pytest.mark.slow
@pytest.mark.parametrize("vthreads", [1, 2])
@pytest.mark.parametrize("platform", ROOMY, ids=lambda platform: platform.name)
def test_the_simulator_gives_the_hosts_bits(platform: Platform, vthreads: int) -> None:
    _, wrong = run(platform, "sim", vthreads)
    assert not wrong


@pytest.mark.sweep
@pytest.mark.parametrize("platform", QUICK, ids=lambda platform: platform.name)
def test_both_simulators_count_the_same(platform: Platform) -> None:
    cycles, wrong = differences(platform)
    assert cycles > 1000 and not wrong


def test_differences_are_told(monkeypatch: pytest.MonkeyPatch) -> None:
    """One cycle more in one counter, and one logit that is another."""

    def other(platform: Platform, target: str, vthreads: int) -> tuple[dict, list[str]]:
        late = int(target == "rtl")
        stalls = {"gemm": {"busy": 5, "empty": 2 + late}}
        report = {"cycles": 7, "stalls": stalls, "layers": [{"name": "conv", "cycles": 6 + late,
                  "macs": 1, "target": "accel"}]}  # fmt: skip
        got = networks.logits() + late
        return report, list(networks._faults(target, got, report))

    monkeypatch.setattr(networks, "run", other)
    _, wrong = differences(ROOMY[0])
    assert len(wrong) == 4 and wrong[0].startswith("rtl: 40 of 40 logits are not")
    assert wrong[1].startswith("rtl: cycles of gemm are") and wrong[2].startswith("stalls: sim")
    assert wrong[3] == "cycles of conv: sim 6, rtl 7"


@pytest.mark.slow
@pytest.mark.parametrize("vthreads", [1, 2])
def test_what_does_not_fit_runs_on_the_host(vthreads: int) -> None:
    """Even with one virtual thread; the reason says what is too small."""
    module = vdla.compile(DIGITS, "sim", SMALLEST, "vta", vthreads)
    assert np.array_equal(module.run(IMAGES)[0], networks.logits())
    layers = {layer.name: layer for layer in module.compiled.layers}
    assert layers["down"].target == "cpu"
    assert layers["down"].reason == (
        "convolution 3x3: no tile fits with 1 virtual thread, wgt needs 9 entries of 8"
    )
    assert layers["stem"].target == layers["dense"].target == "accel"


@pytest.mark.slow
def test_what_does_not_fit_twice_has_one_virtual_thread() -> None:
    """Parameters of one tile fill ``par``, and the dense layer has more tiles than one."""
    module = vdla.compile(DIGITS, "sim", SMALLEST, "vta", 2)
    assert np.array_equal(module.run(IMAGES)[0], networks.logits())
    knobs = {layer.name: layer.knobs for layer in module.compiled.layers}
    assert (knobs["dense"]["vthreads"], knobs["mean"]["vthreads"]) == (1, 2)


def test_knobs_that_do_not_fit_are_refused() -> None:
    """Whoever gives knobs gets these, and no other target."""
    with pytest.raises(VdlaError, match=r"layer 'dense': .*no tile fits with 2 virtual threads"):
        vdla.compile(DIGITS, "sim", SMALLEST, "vta", 2, knobs={"dense": {"vthreads": 2}})


# ---- configurations that are none ----------------------------------------------------------------

#: Knobs and the reason why not; every knob is here.
ILLEGAL = (
    ("batch = 3", "HwParams.batch: expected one of 1, 2, 4, got 3"),
    ("batch = 8", "HwParams.batch: expected one of 1, 2, 4, got 8"),
    ("block_in = 64\nblock_out = 64", "HwParams.block_in: expected one of 4, 8, 16, 32, got 64"),
    ("block_out = 12", "HwParams.block_out: expected one of 4, 8, 16, 32, got 12"),
    ("block_in = 8", "HwParams.block_out: expected block_in (8), got 16; the output layout"),
    ("inp_depth = 15", "HwParams.inp_depth: expected 16..65536, got 15"),
    ("wgt_depth = 7", "HwParams.wgt_depth: expected 8..16384, got 7"),
    ("acc_depth = 65537", "HwParams.acc_depth: expected 8..65536, got 65537"),
    ("uop_depth = 0", "HwParams.uop_depth: expected 8..16384, got 0"),
    ("par_depth = 3", "HwParams.par_depth: expected 4..4096, got 3"),
    ("tmp_depth = -1", "HwParams.tmp_depth: expected 8..16384, got -1"),
    ("out_depth = 7", "HwParams.out_depth: expected 8..65536, got 7"),
    ("bus_bits = 96", "HwParams.bus_bits: expected one of 64, 128, 256, got 96"),
    ("max_burst_beats = 24", "HwParams.max_burst_beats: expected one of 4, 8, 16, 32, 64, "),
    ("bus_bits = 256\nmax_burst_beats = 256", "expected at most 128 beats of 32 bytes (AXI4 "),
    ("queue_depth = 1", "HwParams.queue_depth: expected 2..256, got 1"),
    ("fetch_depth = 3", "HwParams.fetch_depth: expected one of 2, 4, 8, 16, 32, got 3"),
    ("fetch_depth = 32\nmax_burst_beats = 4", "must fit one burst of 4 beats of 8 bytes; reduce"),
    ("loads_in_flight = 0", "HwParams.loads_in_flight: expected 1..16, got 0"),
    ("stores_in_flight = 17", "HwParams.stores_in_flight: expected 1..16, got 17"),
    ("token_bits = 3", "HwParams.token_bits: expected 4..16, got 3"),
    ("vector_passes = 3", "HwParams.vector_passes: expected one of 1, 2, 4, got 3"),
    ("vector_table = 3", "HwParams.vector_table: expected one of 0, 1, 2, got 3"),
    ("vector_window = 1", "HwParams.vector_window: expected one of 0, 2, 3, 4, got 1"),
    ("packed_weights = 2", "HwParams.packed_weights: expected one of 0, 1, got 2"),
    ("wgt_depth = 16384", "HwParams: scratchpads take 4"),
    ("queue_depth = 8.0", "HwParams.queue_depth: expected an integer, got 8.0"),
    ("block = 8", "unknown knob 'block'; known knobs: acc_depth, batch"),
    ("bus_bits = 128", "memory: expected a data bus of 128 bits as in the hardware configuration"),
)  # fmt: skip


def test_every_knob_has_an_illegal_value() -> None:
    assert {f.name for f in fields(HwParams)} <= {
        line.partition(" ")[0] for knobs, _ in ILLEGAL for line in knobs.splitlines()
    }


@pytest.mark.slow
@pytest.mark.parametrize(("knobs", "reason"), ILLEGAL, ids=[knobs for knobs, _ in ILLEGAL])
def test_illegal_configurations_are_refused(
    knobs: str, reason: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    path = tmp_path / "hw.toml"
    path.write_text(knobs + "\n")
    assert run_app(["run", str(DIGITS), "--hw", str(path)]) == 2
    said = capsys.readouterr()
    assert said.out == "" and said.err.count("\n") == 1
    assert said.err.startswith("vdla: ") and reason in said.err


@pytest.mark.parametrize("field", MEMORY_LEGAL)
@pytest.mark.parametrize("value", [0, 1 << 20, 1.5])
def test_illegal_memories_are_refused(field: str, value: float) -> None:
    with pytest.raises(VdlaError, match=rf"MemoryParams.{field}: expected an integer \d+\.\.\d+"):
        replace(MEMORY_PRESETS["vta"], **{field: value})
