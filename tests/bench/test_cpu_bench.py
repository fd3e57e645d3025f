"""The comparison with ONNX Runtime: what it measures, what it says, what it refuses."""

from __future__ import annotations

import json
import re
from collections.abc import Sequence
from functools import partial
from pathlib import Path

import numpy as np
import pytest
from vdla.bench import cpu, peak, peers
from vdla.bench.cpu import Rival, alternate, cpu_rows
from vdla.bench.modern import MODERN
from vdla.bench.peak import CHAINS, peak_code, peak_kernel, peak_ops
from vdla.bench.peers import in_uint8
from vdla.bench.workloads import TABLE_2
from vdla.cli import run_app
from vdla.compiler.frontends.onnx.importer import import_onnx
from vdla.compiler.frontends.sizes import Sizes
from vdla.compiler.graph.interpret import interpret
from vdla.compiler.targets.cpu.micro_kernel_code import native_intrinsics
from vdla.compiler.targets.cpu.micro_kernels import DOT, TILE_STORE
from vdla.compiler.targets.cpu.processor import host_processor
from vdla.isa.errors import VdlaError
from vdla.report.compare import compare

from ..processors import count_instructions, on_processor

#: Networks that take more than five seconds to compile; `make figures` runs them.
LARGE = {"swin_tiny", "densenet121", "regnety_002", "resnet50", "vit_tiny", "mixer_s32",
         "convnext_atto", "efficientnet_b0"}  # fmt: skip


#: Seconds of each rival: of the layer by itself, 30 calls.
SECONDS = {"vdla": 0.004, "onnxruntime": 0.005, "again": 0.003, "peak": 0.001, "kernel": 0.06}


@pytest.fixture
def known_times(monkeypatch: pytest.MonkeyPatch) -> None:
    """Rivals run once, and the clock is not asked."""

    def alternate(rivals: Sequence[Rival], rounds: int, clock: object) -> dict[str, list[float]]:
        for rival in rivals:
            rival.run()
        return {rival.name: [SECONDS[rival.name]] * rounds for rival in rivals}

    monkeypatch.setattr(cpu, "alternate", alternate)


@pytest.mark.slow
@pytest.mark.usefixtures("known_times")
def test_a_layer_against_onnx_runtime(tmp_path: Path) -> None:
    path = tmp_path / "report.json"
    command = ["bench", "cpu", "--models", "none", "--ops", "C8", "--rounds", "3"]
    assert run_app([*command, "--json", str(path)]) == 0
    report = json.loads(path.read_text())
    [row] = report["rows"]
    assert (report["threads"], row["name"], row["macs"]) == (1, "C8", 14 * 14 * 256 * 128)
    assert (row["ratio"], row["control"], row["kernel_ms"]) == pytest.approx((0.8, 0.75, 2))
    assert row["instruction"] == "FMA"
    assert row["peak_gflops"] == pytest.approx(peak_ops("FMA") / 1e6)
    assert row["peak_fraction"] == pytest.approx(row["gflops"] / row["peak_gflops"])
    assert row["gflops"] == pytest.approx(2 * row["macs"] / 2e6)
    assert report["peak"] == {"fp32_gflops": row["peak_gflops"], "int8_gops": None}
    faster = report | {"rows": [row | {"ours_ms": row["ours_ms"] / 2}]}
    [moved] = compare(report, faster)["layers_moved"]
    assert (moved["layer"], moved["ratio"]) == ("C8", 0.5)


@pytest.mark.slow
@pytest.mark.each_processor
@pytest.mark.usefixtures("known_times")
def test_an_integer_layer_against_onnx_runtime(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """Its fraction is of the peak of the instruction that its code uses, which is named."""
    monkeypatch.setitem(peak.STEPS, "AMX", 10)  # they may be emulated
    peak_code.cache_clear()
    assert run_app(["bench", "cpu", "--models", "none", "--ops", "C11-int8", "--json", "-"]) == 0
    [row] = json.loads(capsys.readouterr().out)["rows"]
    assert (row["name"], row["dtype"], row["macs"]) == ("C11-int8", "int8", 7 * 7 * 512 * 256)
    known = host_processor()
    kinds = {"AMX": known.has("amx-int8"), "VNNI": known.has("avx512vnni"), "FMA": True}
    expected = next(name for name, has in kinds.items() if has)
    assert row["instruction"] == expected
    products = {"AMX": 4 * 16 * 16 * 64 * 10, "VNNI": 24 * 64 * 120_000, "FMA": 24 * 8 * 120_000}
    assert peak_ops(expected) == 2 * products[expected]
    assert row["peak_fraction"] == pytest.approx(row["gflops"] / peak_ops(expected) * 1e6)
    peak_code.cache_clear()
    assert run_app(["bench", "cpu", "--models", "none", "--ops", "C11-int8"]) == 0
    assert f"({expected})" in capsys.readouterr().out
    peak_code.cache_clear()  # of a loop of ten steps


@pytest.mark.this_machine
def test_the_peak_of_this_machine() -> None:
    """Speeds of no processor that there is: one test's own instruction in a loop."""
    known = native_intrinsics(host_processor())
    kinds = ["FMA", *(["VNNI"] if DOT in known else []), *(["AMX"] if TILE_STORE in known else [])]
    for name in kinds:
        times = alternate([Rival("peak", partial(peak_kernel, name))], rounds=3)["peak"]
        assert 1e8 < peak_ops(name) / min(times) < 1e14


@pytest.mark.this_machine
@pytest.mark.parametrize("name", ["C8", "C12-int8"])
def test_a_layer_does_not_exceed_the_peak_of_its_instruction(name: str) -> None:
    """By the clock of this machine: direct products, so that no algorithm saves any. Other work on
    the same core may slow down the loop of the peak alone, but not each time."""
    fractions = (cpu_rows([], [name], rounds=3)[0]["peak_fraction"] for _ in range(5))
    assert any(0.1 < fraction < 1.2 for fraction in fractions)


@pytest.mark.more
@pytest.mark.slow
def test_networks_of_every_kind_of_input_and_operator() -> None:
    """Networks that read word numbers or images, or have transposed convolutions; the work that is
    reported is the graph's."""
    language, generator = cpu_rows(["lstm_lm", "dcgan"], [], rounds=1)
    assert language["macs"] > 10_000_000
    assert generator["macs"] > 200_000_000
    assert generator["peak_fraction"] > 0.1


@pytest.mark.more
@pytest.mark.slow
def test_a_network_that_the_quantiser_makes() -> None:
    """Its results are ONNX Runtime's, and it does the work of the network in float."""
    [row] = cpu_rows(["gpt2-int8"], [], rounds=1)
    assert (row["dtype"], row["macs"]) == ("int8", 226_099_200)


@pytest.mark.short(1)
@pytest.mark.slow
@pytest.mark.parametrize(
    "name",
    [pytest.param(name, marks=pytest.mark.sweep if name in LARGE else ()) for name in MODERN],
)
def test_networks_of_today_are_what_they_are_called(name: str) -> None:
    """Our results are ONNX Runtime's, and the work is what is published, where it is (in millions:
    of timm, but for convolutions' borders and small parts that are left out there)."""
    [row] = cpu_rows([name], [], rounds=1)
    known = {
        "vit_tiny": 1260, "mixer_s32": 1000, "swin_tiny": 4500, "convnext_atto": 550,
        "efficientnet_b0": 390, "mobilenet_v3": 220, "regnety_002": 200, "resnet50": 4090,
        "densenet121": 2870,
    }  # fmt: skip
    assert row["macs"] / 1e6 == pytest.approx(known.get(name, row["macs"] / 1e6), rel=0.02)


def test_the_form_for_onnx_runtime_has_no_relu() -> None:
    """Behind a ReLU the zero point is the smallest value, and nothing else has changed."""
    layer = next(layer for layer in TABLE_2 if layer.name == "C11")
    model, x = layer.model(1), np.random.default_rng(0).uniform(-1, 1, (1, 256, 14, 14))
    form = in_uint8(model)
    kinds = [[node.op_type for node in m.graph.node] for m in (model, form)]
    assert kinds[1] == [kind for kind in kinds[0] if kind != "Relu"]
    [a], [b] = (interpret(import_onnx(m, Sizes(1)), x.astype(np.float32)) for m in (model, form))
    np.testing.assert_array_equal(a, b)
    assert b.min() == 0 < b.max()


def test_a_peer_that_is_not_installed(monkeypatch: pytest.MonkeyPatch) -> None:
    """A peer that is not installed is left out; without the one that ratios are to, there is no
    comparison."""
    monkeypatch.setattr(peers, "find_spec", lambda name: name if name == "onnxruntime" else None)
    assert peers.installed_peers() == ["onnxruntime"]
    monkeypatch.setattr(peers, "find_spec", lambda _name: None)
    with pytest.raises(VdlaError, match=r"package onnxruntime .* pip install onnxruntime"):
        peers.installed_peers()


@pytest.mark.parametrize("peer", peers.PEERS)
def test_every_peer_computes_the_layer(peer: str) -> None:
    pytest.importorskip(peer, reason=f"{peer} is not installed")
    layer = next(layer for layer in TABLE_2 if layer.name == "C11")
    model, x = layer.model(1, quantized=False), np.ones((1, 256, 14, 14), np.float32)
    (expected,) = interpret(import_onnx(model, Sizes(1)), x)
    (got,) = peers.PEERS[peer](model, 1)({model.graph.input[0].name: x})
    np.testing.assert_allclose(got, expected, rtol=1e-3, atol=1e-3)


@pytest.mark.slow
def test_results_that_differ_are_no_comparison(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(cpu, "TOLERANCE", {"float32": -1.0})
    with pytest.raises(VdlaError, match="C8: results differ from onnxruntime's by"):
        cpu_rows([], ["C8"], rounds=1)


def test_unknown_names_are_refused(capsys: pytest.CaptureFixture[str]) -> None:
    assert run_app(["bench", "cpu", "--models", "alexnet"]) == 2
    assert "models: expected names from resnet18, " in capsys.readouterr().err


def test_rivals_run_in_turns() -> None:
    calls: list[str] = []
    rivals = [Rival(name, lambda name=name: calls.append(name)) for name in "ab"]
    times = alternate(rivals, rounds=3)
    assert {name: len(each) for name, each in times.items()} == {"a": 3, "b": 3}
    assert calls == list("aabb") * (3 + cpu.WARM_ROUNDS)


@pytest.mark.parametrize(
    ("name", "instruction"),
    [("FMA", "fmuladd.v16f32"), ("VNNI", "avx512.vpdpbusd.512"), ("AMX", "tdpbusd")],
)
def test_the_peak_is_of_products_and_sums(name: str, instruction: str) -> None:
    """The loop that is timed has exactly the instructions that are counted."""
    peak_code.cache_clear()
    with on_processor("amx"):
        llvm_ir = peak_code(name).llvm_ir
    peak_code.cache_clear()
    body = llvm_ir.split("body:")[1].split("end:")[0]
    (steps,) = re.findall(r"add .*i64 %[^,]+, (\d+)", body)  # that LLVM made one
    found = body.count(f"@llvm.{instruction}(") or count_instructions(body, instruction)
    assert found == CHAINS[name] * int(steps)


def test_the_float_model_is_what_the_integers_mean() -> None:
    layer = next(layer for layer in TABLE_2 if layer.name == "C11")
    x = np.random.default_rng(0).uniform(-1, 1, (1, 256, 14, 14)).astype(np.float32)
    (quantised,) = interpret(import_onnx(layer.model(1), Sizes(1)), x)
    real = layer.model(1, quantized=False)
    assert {node.op_type for node in real.graph.node} == {"Conv", "Relu"}
    (exact,) = interpret(import_onnx(real, Sizes(1)), x)
    assert np.abs(exact - quantised).max() < 0.2  # a few steps of 0.05
    assert np.abs(exact).max() > 1
