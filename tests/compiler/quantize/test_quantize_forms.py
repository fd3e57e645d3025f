"""Forms of float models that the quantiser takes: convolutions of one and three dimensions, fused
operators, float16, constants that onnx's own evaluator does not compute; and how much memory."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import pytest
import vdla
from onnx import TensorProto, helper, numpy_helper
from vdla.cli import run_app

from .peers import peer

RNG = np.random.default_rng(0)
MICROSOFT = "com.microsoft"
make = helper.make_node


def floats(*shape: int) -> np.ndarray:
    return RNG.normal(0, 0.3, shape).astype(np.float32)


def build(
    nodes: list[onnx.NodeProto], constants: dict[str, Any], shape: list[int | str],
    kind: int = TensorProto.FLOAT,
) -> onnx.ModelProto:  # fmt: skip
    """A model from x to y."""
    stored = [numpy_helper.from_array(np.asarray(v), n) for n, v in constants.items()]
    x, y = (helper.make_tensor_value_info(n, kind, s) for n, s in (("x", shape), ("y", None)))
    graph = helper.make_graph(nodes, "test", [x], [y], stored)
    imports = [helper.make_opsetid("", 17), helper.make_opsetid(MICROSOFT, 1)]
    return helper.make_model(graph, opset_imports=imports, ir_version=8)


def check(model: onnx.ModelProto, x: np.ndarray, tolerance: float = 0.05) -> dict[str, Any]:
    """Quantise, and compare with ONNX Runtime, which runs both; all MACs on the accelerator.
    Returns the report's rows by name."""
    made = vdla.quantize(model, x)
    one = x[:1]
    real, stored = peer(model, x=one), peer(made.model, x=one)
    assert np.abs(real - stored).max() <= tolerance * np.abs(real).max()
    module = vdla.compile(made.model)
    ours = module.run(one)[0]
    np.testing.assert_array_equal(ours, vdla.compile(made.model, "cpu").run(one)[0])
    assert np.abs(ours - stored).max() <= tolerance / 4 * np.abs(real).max()
    covered = module.report["coverage"]
    assert covered["macs_on_accelerator"] == covered["macs_total"] > 0
    return {row["name"]: row for row in made.report["layers"]}


@pytest.mark.parametrize("groups", [1, 16])
def test_one_dimension(groups: int) -> None:
    nodes = [
        make("Conv", ["x", "w"], ["c"], "c", pads=[2, 2], dilations=[2], group=groups),
        make("Relu", ["c"], ["r"], "r"),
        make("MaxPool", ["r"], ["p"], "p", kernel_shape=[2], strides=[2]),
        make("Conv", ["p", "w2", "b"], ["y"], "y", strides=[2]),
    ]
    constants = {"w": floats(16, 16 // groups, 3), "w2": floats(8, 16, 3), "b": floats(8)}
    rows = check(build(nodes, constants, ["N", 16, 24]), floats(4, 16, 24))
    assert {row["type"] for row in rows.values()} == {"int8"}


@pytest.mark.slow
@pytest.mark.parametrize("groups", [1, 2])
@pytest.mark.parametrize("stride", [1, 2, 3])
def test_three_dimensions(groups: int, stride: int) -> None:
    """Padded on some sides, strided and dilated in depth and rows; then a kernel of one row."""
    nodes = [
        make(
            "Conv", ["x", "w", "b"], ["c"], "c", pads=[1, 1, 0, 1, 2, 1], group=groups,
            strides=[stride, stride, 1], dilations=[2, 2, 1],
        ),
        make("Relu", ["c"], ["r"], "r"),
        make("Conv", ["r", "w2"], ["y"], "y"),
    ]  # fmt: skip
    weights = {"w": floats(8, 4 // groups, 3, 3, 3), "b": floats(8), "w2": floats(4, 8, 2, 1, 1)}
    rows = check(build(nodes, weights, ["N", 4, 8, 9, 8]), floats(4, 4, 8, 9, 8))
    assert {row["type"] for row in rows.values()} == {"int8"}
    assert rows["c"]["op"] == "Conv+Relu"


def test_three_dimensions_of_several_images() -> None:
    nodes = [make("Conv", ["x", "w"], ["y"], "y", pads=[1] * 6)]
    model = build(nodes, {"w": floats(8, 4, 3, 3, 3)}, ["N", 4, 4, 5, 6])
    x = floats(3, 4, 4, 5, 6)
    made = vdla.quantize(model, x).model
    single = [peer(made, x=x[i : i + 1]) for i in range(3)]
    np.testing.assert_array_equal(peer(made, x=x), np.concatenate(single))


@pytest.mark.slow
def test_fused_convolutions_and_functions() -> None:
    def fused(kind: str, *names: str, **attributes: Any) -> onnx.NodeProto:
        *inputs, result = names
        return make(kind, inputs, [result], result, domain=MICROSOFT, **attributes)

    leaky = {"activation": "LeakyRelu", "activation_params": [0.2]}
    hard = {"activation": "HardSigmoid", "activation_params": [0.3, 0.4]}
    clip = {"activation": "Clip", "activation_params": [-0.5, 0.7]}
    nodes = [
        fused("FusedConv", "x", "w", "b", "c", pads=[1, 1, 1, 1], **leaky),
        fused("FusedConv", "c", "w2", "", "c", "d", activation="Relu"),
        fused("FusedConv", "d", "w2", "e", **hard),
        fused("FusedConv", "e", "w2", "f", **clip),
        make("Flatten", ["f"], ["g"], "g"),
        fused("FusedGemm", "g", "w3", "b3", "h", activation="Tanh", transB=1),
        fused("BiasGelu", "h", "b3", "i"),
        fused("FastGelu", "i", "b3", "j"),
        fused("QuickGelu", "j", "k"),
        fused("Gelu", "k", "y"),
    ]
    constants = {
        "w": floats(8, 4, 3, 3), "b": floats(8), "w2": floats(8, 8, 1, 1),
        "w3": floats(16, 8 * 6 * 6), "b3": floats(16),
    }  # fmt: skip
    rows = check(build(nodes, constants, ["N", 4, 6, 6]), floats(8, 4, 6, 6), 0.1)
    products = [row for row in rows.values() if row["op"].split("+")[0] in ("Conv", "Gemm")]
    assert len(products) == 5 and {row["type"] for row in products} == {"int8"}


@pytest.mark.slow
def test_fused_products_of_tokens() -> None:
    """Transposed and scaled products, and normalisations that add."""

    def fused(kind: str, inputs: list[str], results: list[str], **attributes: Any) -> Any:
        return make(kind, inputs, results, results[0], domain=MICROSOFT, **attributes)

    nodes = [
        fused("FusedMatMul", ["x", "w"], ["a"], transB=1, alpha=0.5),
        fused("FusedMatMul", ["x", "w2"], ["b"]),
        fused("FusedMatMul", ["a", "b"], ["c"], transB=1, alpha=0.35),
        make("Softmax", ["c"], ["d"], "d", axis=-1),
        make("MatMul", ["d", "b"], ["e"], "e"),
        fused(
            "SkipLayerNormalization", ["e", "x", "s", "t", "u"], ["n", "", "", "sum"], epsilon=1e-5
        ),
        fused("SkipSimplifiedLayerNormalization", ["n", "sum", "s"], ["p"]),
        fused("FusedMatMul", ["p", "w"], ["y"]),
    ]
    constants = {"w": floats(8, 8), "w2": floats(8, 8), "s": floats(8) + 1}
    constants |= {"t": floats(8), "u": floats(8)}
    rows = check(build(nodes, constants, ["N", 6, 8]), floats(8, 6, 8), 0.1)
    assert {row["type"] for row in rows.values() if row["op"] in ("Gemm", "MatMul")} == {"int8"}


def test_float16() -> None:
    """The quantised model has float32 inputs and outputs."""
    halves = {"w": floats(8, 4, 3, 3).astype(np.float16), "two": np.float16(2)}
    nodes = [
        make("Conv", ["x", "w"], ["c"], "c", pads=[1, 1, 1, 1]),
        make("Relu", ["c"], ["r"], "r"),
        make("Cast", ["r"], ["z"], "z", to=TensorProto.FLOAT16),
        make("Mul", ["z", "two"], ["y"], "y"),
    ]
    model, x = build(nodes, halves, ["N", 4, 6, 6], TensorProto.FLOAT16), floats(4, 4, 6, 6)
    made = vdla.quantize(model, x).model
    real, stored = peer(model, x=x[:1].astype(np.float16)), peer(made, x=x[:1])
    assert real.dtype == np.float16 and stored.dtype == np.float32
    assert np.abs(real - stored).max() <= 0.02 * np.abs(real).max()


def test_constants_are_folded_by_the_interpreter() -> None:
    """onnx's evaluator refuses GatherElements of 64 columns or more, which BERT's types need."""
    nodes = [
        make("GatherElements", ["types", "places"], ["chosen"], axis=1),
        make("Gather", ["table", "chosen"], ["rows"]),
        make("Add", ["x", "rows"], ["s"], "s"),
        make("MatMul", ["s", "w"], ["y"], "y"),
    ]
    constants = {
        "types": np.arange(512)[None] % 2, "places": np.array([[0, 3, 500, 7]]),
        "table": floats(2, 8), "w": floats(8, 8),
    }  # fmt: skip
    rows = check(build(nodes, constants, [1, 4, 8]), floats(4, 4, 8))
    assert rows["s"]["type"] == "int8"


def test_the_table_ends_with_what_stays_float(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    nodes = [
        make("MatMul", ["x", "w"], ["h"], "h"),
        make("Softmax", ["h"], ["s"], "s"),
        make("Softmax", ["s"], ["y"], "y"),
    ]
    onnx.save(build(nodes, {"w": floats(8, 8)}, ["N", 8]), tmp_path / "m.onnx")
    np.savez(tmp_path / "x.npz", x=floats(4, 8))
    command = ["quantize", str(tmp_path / "m.onnx"), "--samples", str(tmp_path / "x.npz")]
    assert run_app(command) == 0
    out = " ".join(capsys.readouterr().out.split())
    assert "1 nodes in int8, 2 in float" in out
    assert out.endswith("float: 2 Softmax: Softmax has no integer form")


PEAK = """
import resource, sys
import numpy as np, vdla
if sys.argv[1:]:
    vdla.quantize(sys.argv[1], np.load(sys.argv[2]))
else:
    import vdla.compiler.quantize
print(resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024)
"""


@pytest.mark.more
@pytest.mark.slow
def test_memory(tmp_path: Path) -> None:
    """Of a network of products, whose constants are nearly all: at most three times the file."""
    width, count = 2048, 8
    weights = {f"w{i}": floats(width, width) / 8 for i in range(count)}
    names = ["x", *(f"h{i}" for i in range(count - 1)), "y"]
    nodes = [
        make("MatMul", [names[i], f"w{i}"], [names[i + 1]], names[i + 1]) for i in range(count)
    ]
    onnx.save(build(nodes, weights, ["N", width]), tmp_path / "m.onnx")
    np.save(tmp_path / "x.npy", floats(4, width))

    def peak(*arguments: Path) -> int:
        command = [sys.executable, "-c", PEAK, *map(str, arguments)]
        return int(subprocess.run(command, check=True, capture_output=True).stdout)

    added = peak(tmp_path / "m.onnx", tmp_path / "x.npy") - peak()
    assert added <= 3 * (tmp_path / "m.onnx").stat().st_size


def test_open_sizes_are_those_of_the_samples() -> None:
    nodes = [
        make("Conv", ["x", "w"], ["c"], "c", pads=[1, 1]),
        make("Relu", ["c"], ["r"], "r"),
        make("Conv", ["r", "w"], ["y"], "y"),
    ]
    model = build(nodes, {"w": floats(8, 8, 3)}, ["N", 8, "length"])
    made = vdla.quantize(model, floats(6, 8, 20)).model
    module = vdla.compile(made, dims={"length": (3, 40)})
    for length in (20, 33):
        x = floats(2, 8, length)
        wanted = peer(made, x=x)
        assert np.abs(module.run(x)[0] - wanted).max() <= 0.02 * np.abs(wanted).max()
