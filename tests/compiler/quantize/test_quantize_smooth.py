"""Smoothing between layers: the same float model, and less noise of integers."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import pytest
import vdla
from onnx import TensorProto, helper, numpy_helper
from vdla import VdlaError
from vdla.bench.modern import FloatNet
from vdla.cli import run_app
from vdla.compiler.quantize.draft import Draft, label
from vdla.compiler.quantize.prepare import prepare
from vdla.compiler.quantize.smooth import find_pairs, smooth

from .peers import peer

MAKE = helper.make_node


def model_of(
    nodes: list[Any],
    shape: list[Any],
    sizes: dict[str, tuple[int, ...]],
    factors: dict[str, np.ndarray] | None = None,
) -> onnx.ModelProto:
    """A model from ``x`` to ``y`` with random constants of these sizes, some times ``factors``."""
    rng = np.random.default_rng(8)
    stored = []
    for name, size in sizes.items():
        value = rng.standard_normal(size) * (factors or {}).get(name, 1)
        stored.append(numpy_helper.from_array(value.astype(np.float32), name))
    x = helper.make_tensor_value_info("x", TensorProto.FLOAT, shape)
    y = helper.make_tensor_value_info("y", TensorProto.FLOAT, None)
    graph = helper.make_graph(nodes, "test", [x], [y], stored)
    return helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=8)


IMAGE, TOKENS = ["N", 4, 6, 6], ["N", 5, 4]
#: Nodes, shape of the input, sizes of constants, and the nodes whose results are smoothed.
CASES: dict[str, tuple[list[Any], list[Any], dict[str, tuple[int, ...]], list[str]]] = {
    "groups, pool and leaky relu": (
        [
            MAKE("Conv", ["x", "v", "b"], ["a"], "a"),
            MAKE("LeakyRelu", ["a"], ["r"], "r"),
            MAKE("MaxPool", ["r"], ["p"], "p", kernel_shape=[2, 2]),
            MAKE("Conv", ["p", "w"], ["y"], "y", group=2),
        ],
        IMAGE,
        {"v": (6, 4, 3, 3), "b": (6,), "w": (8, 3, 3, 3)},
        ["a"],
    ),
    "depthwise in between": (
        [
            MAKE("Conv", ["x", "v"], ["a"], "a"),
            MAKE("Relu", ["a"], ["r"], "r"),
            MAKE("Conv", ["r", "w"], ["d"], "d", group=6),
            MAKE("Relu", ["d"], ["q"], "q"),
            MAKE("Conv", ["q", "u", "b"], ["y"], "y"),
        ],
        IMAGE,
        {"v": (6, 4, 1, 1), "w": (6, 1, 3, 3), "u": (3, 6, 1, 1), "b": (3,)},
        ["a", "d"],
    ),
    "two readers, flattened": (
        [
            MAKE("Conv", ["x", "v"], ["a"], "a"),
            MAKE("GlobalAveragePool", ["a"], ["g"], "g"),
            MAKE("Flatten", ["g"], ["f"], "f"),
            MAKE("Gemm", ["f", "w", "b"], ["h"], "h", transB=1),
            MAKE("Gemm", ["f", "u"], ["k"], "k"),
            MAKE("Add", ["h", "k"], ["y"], "y"),
        ],
        IMAGE,
        {"v": (6, 4, 3, 3), "w": (7, 6), "b": (7,), "u": (6, 7)},
        ["a"],
    ),
    "normalised tokens with a residual": (
        [
            MAKE("LayerNormalization", ["x", "g", "s"], ["n"], "n"),
            MAKE("MatMul", ["n", "w"], ["h"], "h"),
            MAKE("Relu", ["h"], ["r"], "r"),
            MAKE("MatMul", ["r", "u"], ["k"], "k"),
            MAKE("Add", ["n", "k"], ["y"], "y"),
        ],
        TOKENS,
        {"g": (4,), "s": (4,), "w": (4, 8), "u": (8, 4)},
        ["n", "h"],
    ),
    "transposed tokens": (
        [
            MAKE("LayerNormalization", ["x", "g"], ["n"], "n"),
            MAKE("Transpose", ["n"], ["t"], "t", perm=[1, 0, 2]),
            MAKE("MatMul", ["t", "w"], ["y"], "y"),
        ],
        TOKENS,
        {"g": (4,), "w": (4, 8)},
        ["n"],
    ),
    "channels become places": (
        [
            MAKE("LayerNormalization", ["x", "g"], ["n"], "n"),
            MAKE("Transpose", ["n"], ["t"], "t", perm=[0, 2, 1]),
            MAKE("MatMul", ["t", "w"], ["y"], "y"),
        ],
        TOKENS,
        {"g": (4,), "w": (5, 8)},
        [],
    ),
    "bounds and an output in between": (
        [
            MAKE("Conv", ["x", "v"], ["a"], "a"),
            MAKE("HardSwish", ["a"], ["r"], "r"),
            MAKE("Conv", ["r", "w"], ["y"], "y"),
            MAKE("Conv", ["y", "u"], ["z"], "z"),
        ],
        IMAGE,
        {"v": (6, 4, 1, 1), "w": (6, 6, 1, 1), "u": (2, 6, 1, 1)},
        [],
    ),
}


@pytest.mark.fast(1)
@pytest.mark.parametrize("name", CASES)
@pytest.mark.parametrize("strength", [0.0, 0.5, 1.0])
def test_the_float_model_stays_the_same(name: str, strength: float) -> None:
    nodes, shape, sizes, expected = CASES[name]
    model = model_of(nodes, shape, sizes)
    x = np.random.default_rng(9).standard_normal((4, *shape[1:])).astype(np.float32)
    draft = Draft.load(model)
    prepare(draft)
    pairs = find_pairs(draft)
    assert [label(pair.producer) for pair in pairs] == expected
    before = {node.input[1] for pair in pairs for node in pair.consumers}
    if pairs:
        smooth(draft, pairs, {"x": x}, strength, lambda: None)
    assert not before & {node.input[1] for pair in pairs for node in pair.consumers}
    real = peer(model, x=x)
    np.testing.assert_allclose(
        peer(draft.finish(), x=x), real, rtol=1e-4, atol=1e-5 * np.abs(real).max()
    )


@pytest.mark.slow
def test_channels_of_a_depthwise_network_become_alike() -> None:
    """What its integers lose is what those of even channels lose."""
    nodes, shape, sizes, _ = CASES["depthwise in between"]
    factors = 4.0 ** np.arange(-3, 3).astype(np.float32)
    model = model_of(nodes, shape, sizes, {"v": factors[:, None, None, None],
                                           "u": 1 / factors[None, :, None, None]})  # fmt: skip
    x = np.random.default_rng(9).standard_normal((64, *shape[1:])).astype(np.float32)
    plain, made = (vdla.quantize(model, x, smoothing=s) for s in (None, 0.5))
    assert made.report["smoothed"] == ["a", "d"] and plain.report["smoothed"] == []
    rows = [{row["name"]: row["sqnr_db"] for row in m.report["layers"]} for m in (plain, made)]
    assert rows[1]["y"] > rows[0]["y"] + 10
    draft = Draft.load(model)
    pairs = find_pairs(draft)
    smooth(draft, pairs, {"x": x}, 0.5, lambda: None)
    first = peer(draft.finish(["a"]), x=x)
    assert np.ptp(np.log2(np.maximum(first, 0).max(axis=(0, 2, 3)))) < 1e-3


@pytest.mark.slow
def test_weights_of_idle_channels_take_no_levels() -> None:
    """Two channels are zero on all samples, and their weights are a thousand times as large."""
    nodes, shape, sizes, _ = CASES["depthwise in between"]
    large = np.array([1, 1000, 1, 1, 1000, 1], np.float32)
    model = model_of(nodes, shape, sizes, {"v": (large == 1)[:, None, None, None],
                                           "u": large[None, :, None, None]})  # fmt: skip
    x = np.random.default_rng(9).standard_normal((64, *shape[1:])).astype(np.float32)
    plain, made = (vdla.quantize(model, x, smoothing=s) for s in (None, 0.5))
    rows = [{row["name"]: row["sqnr_db"] for row in m.report["layers"]} for m in (plain, made)]
    assert rows[1]["y"] > rows[0]["y"] + 15


def outliers() -> onnx.ModelProto:
    """A layer of an encoder in which normalisations make three of 32 channels large, as trained
    transformers have it, and weights that make up for it."""
    net = FloatNet("outliers")
    x = net.input(1, 8, 32)
    x = net.binary("Add", x, net.attention(net.layer_norm(x), 2))
    net.output(net.binary("Add", x, net.mlp(net.layer_norm(x), 64)))
    model = net.model()
    constants = {c.name: c for c in model.graph.initializer}
    for node in model.graph.node:
        if node.op_type == "LayerNormalization":
            for name in node.input[1:]:
                value = numpy_helper.to_array(constants[name]).copy()
                value[[3, 11, 20]] *= 60
                constants[name].CopyFrom(numpy_helper.from_array(value, name))
            for reader in model.graph.node:
                if node.output[0] in reader.input:
                    name = reader.input[1]
                    value = numpy_helper.to_array(constants[name]).copy()
                    value[[3, 11, 20]] /= 60
                    constants[name].CopyFrom(numpy_helper.from_array(value, name))
    return model


@pytest.mark.more
def test_outliers_of_a_transformer() -> None:
    model = outliers()
    x = np.random.default_rng(10).standard_normal((16, 8, 32)).astype(np.float32)
    plain, made = (vdla.quantize(model, x, smoothing=s) for s in (None, 0.5))
    noise = [next(iter(m.report["outputs"].values()))["sqnr_db"] for m in (plain, made)]
    assert noise[1] > noise[0] + 8
    real, ours = peer(model, x=x[:1]), peer(made.model, x=x[:1])
    assert 10 * np.log10(np.square(real).sum() / np.square(real - ours).sum()) > noise[1] - 3


@pytest.mark.slow
def test_the_command_smooths(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    nodes, shape, sizes, _ = CASES["depthwise in between"]
    onnx.save(model_of(nodes, shape, sizes), tmp_path / "model.onnx")
    np.savez(tmp_path / "x.npz", x=np.ones((4, *shape[1:]), np.float32))
    command = ["quantize", str(tmp_path / "model.onnx"), "--samples", str(tmp_path / "x.npz")]
    assert run_app([*command, "--smoothing", "0.5", "--json", str(tmp_path / "r.json")]) == 0
    assert "2 activations smoothed" in capsys.readouterr().out
    report = json.loads((tmp_path / "r.json").read_text())
    assert report["smoothing"] == 0.5 and report["smoothed"] == ["a", "d"]


def test_too_much_smoothing_is_refused() -> None:
    nodes, shape, sizes, _ = CASES["depthwise in between"]
    for value in (-0.1, 1.5, float("nan")):
        with pytest.raises(VdlaError, match="smoothing: expected 0 to 1"):
            vdla.quantize(model_of(nodes, shape, sizes), np.ones((1, 4, 6, 6)), smoothing=value)
