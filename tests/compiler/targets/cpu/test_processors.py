"""Whole networks for every processor of ``tests/processors.py``; and code for a named processor,
which has nothing of the machine that compiles it."""

from __future__ import annotations

import hashlib
from pathlib import Path

import numpy as np
import onnx
import pytest
import vdla
from vdla.bench.net import Net
from vdla.compiler.frontends.load import load_graph
from vdla.compiler.graph.interpret import interpret
from vdla.compiler.graph.passes import run_passes
from vdla.compiler.targets.cpu.graph_code import compile_graph
from vdla.compiler.targets.cpu.processor import CROSS_PROCESSORS, Processor
from vdla.runtime.processor import host

from ....processors import on_processor

ROOT = Path(__file__).parents[4]
#: Processors that code is compiled for by name, here for its text alone.
NAMED = {
    **CROSS_PROCESSORS,
    "skylake-avx512": Processor("x86_64-unknown-linux-gnu", "skylake-avx512",
                                ("+avx2", "+fma", "+avx512f", "+avx512bw")),
}  # fmt: skip


def network(quantized: bool) -> onnx.ModelProto:
    """Convolutions of each kind, a sum, a product of matrices."""
    net = Net("mixed", quantized)
    image = net.conv(net.input(1, 16, 15, 15), 32, 3)
    image = net.add(net.conv(image, 32, 3), net.conv(image, 32, 3, groups=32))
    net.output(net.dense(net.global_average(net.conv(image, 64, 3)), 10))
    return net.model()


@pytest.mark.slow
@pytest.mark.each_processor
@pytest.mark.parametrize("quantized", [False, True])
def test_a_network_equals_the_interpreter(quantized: bool) -> None:
    model = network(quantized)
    graph = run_passes(load_graph(model))
    x = np.random.default_rng(1).normal(0, 2, graph["x"].shape).astype(np.float32)
    [expected] = interpret(graph, x)
    [found] = vdla.compile(model, "cpu").run(x=x)
    np.testing.assert_allclose(found, expected, *((0, 0) if quantized else (1e-4, 1e-4)))
    assert np.unique(found).size > 5


@pytest.mark.slow
@pytest.mark.each_processor
def test_digits(tmp_path: Path) -> None:
    """Of the examples: classes, and a saved module, which knows what it needs."""
    digits = np.load(ROOT / "examples" / "models" / "digits_test.npz")
    module = vdla.compile(ROOT / "examples" / "models" / "digits_int8.onnx", "cpu")
    (logits,) = module.run(image=digits["x"][:50])
    assert (logits.argmax(1) == digits["y"][:50]).mean() > 0.9
    module.save(tmp_path / "digits")
    (again,) = vdla.load(tmp_path / "digits").run(image=digits["x"][:50])
    np.testing.assert_array_equal(again, logits)
    assert ("amx-int8" in module.settings.code_for.features) == host().features["amx-int8"]


@pytest.mark.slow
@pytest.mark.parametrize("name", NAMED)
def test_code_for_a_named_processor_is_the_same_everywhere(
    name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Whatever the machine that compiles it has."""
    graph, found = run_passes(load_graph(network(quantized=True))), {}
    for here in ("avx2", "amx"):
        monkeypatch.setenv("VDLA_CACHE", str(tmp_path / here))
        with on_processor(here):
            code = compile_graph(graph, NAMED[name]).object_file
        found[here] = hashlib.sha256(code).hexdigest()
    assert found["avx2"] == found["amx"]
