"""The quantiser: its models in ONNX Runtime and on the accelerator, its parts against NumPy."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import onnx.parser
import pytest
import vdla
from onnx import TensorProto, helper, numpy_helper
from vdla import VdlaError
from vdla.cli import run_app
from vdla.compiler.quantize import METHODS, Quantized
from vdla.compiler.quantize.calibrate import BINS, Range, by_entropy, by_percentile
from vdla.compiler.quantize.draft import Draft
from vdla.compiler.quantize.prepare import prepare
from vdla.module import Module

from .float_models import float_onnx
from .peers import peer

MODELS = Path(__file__).parents[3] / "examples" / "models"
SHARED = Path(__file__).parents[4] / "shared" / "models"
#: What the host does of a model that runs on the accelerator: its edges.
EDGES = {"Quantize", "Dequantize", "PackWindows", "Transpose"}


def on_accelerator(quantized: Quantized, x: np.ndarray) -> Module:
    """Run on sim and cpu, which must agree; all but the edges must run on the accelerator."""
    module = vdla.compile(quantized.model)
    np.testing.assert_array_equal(module.run(x)[0], vdla.compile(quantized.model, "cpu").run(x)[0])
    host = {row["op"] for row in module.report["layers"] if row["target"] == "cpu"}
    assert host <= EDGES
    return module


@pytest.fixture(scope="module")
def digits() -> dict[str, Any]:
    data = np.load(MODELS / "digits_test.npz")
    model = onnx.load_model(str(MODELS / "digits_float.onnx"))
    return {"model": model, "x": data["x"], "y": data["y"]}


@pytest.mark.short(2)
@pytest.mark.slow
@pytest.mark.parametrize("method", METHODS)
@pytest.mark.parametrize("bias_correction", [False, True])
def test_digits_within_a_point(digits: dict[str, Any], method: str, bias_correction: bool) -> None:
    """Calibrated on some of the images, judged by ONNX Runtime on all."""
    model, x, y = digits["model"], digits["x"], digits["y"]
    seen: list[tuple[int, int]] = []
    made = vdla.quantize(
        model, x[:100], method, bias_correction=bias_correction,
        progress=lambda done, total: seen.append((done, total)),
    )  # fmt: skip
    onnx.checker.check_model(made.model, full_check=True)
    answers = peer(made.model, image=x).argmax(axis=1)
    real = peer(model, image=x).argmax(axis=1)
    assert (answers == y).mean() > (real == y).mean() - 0.01
    assert (answers == real).mean() > 0.99
    assert made.report["outputs"]["logits"]["sqnr_db"] > 30
    assert all(row["type"] == "int8" and not row["reason"] for row in made.report["layers"])
    assert [done for done, _ in seen] == [*range(1, seen[-1][1] + 1)]


@pytest.mark.slow
def test_digits_on_the_accelerator(digits: dict[str, Any]) -> None:
    x = digits["x"]
    made = vdla.quantize(digits["model"], {"image": x[:100]})
    module = on_accelerator(made, x[:4])
    accelerated = module.report["coverage"]
    assert accelerated["macs_on_accelerator"] == accelerated["macs_total"] > 0
    ours, theirs = module.run(x[:100])[0], peer(made.model, image=x[:100])
    step = next(r["scale"] for r in made.report["layers"] if r["name"] == "dense")
    assert np.abs(ours - theirs).max() <= 1.01 * step  # ONNX Runtime rounds some sums in float32
    assert made.report["top1_agreement"] == 1.0


@pytest.mark.more
@pytest.mark.slow
@pytest.mark.skipif(not SHARED.is_dir(), reason="needs ../shared/models")
def test_resnet8_within_a_point() -> None:
    """On pictures, ten of ten classes, and on those shifted, mirrored, dimmed and noisy."""
    model = float_onnx(SHARED / "mlperf_resnet8_fp32" / "model.tflite")
    stored = np.load(SHARED / "mlperf_resnet8_int8" / "real.npz")
    pictures = stored["x0"].astype(np.float32) + 128
    rng = np.random.default_rng(0)
    x = np.stack([_varied(pictures[i % len(pictures)], rng) for i in range(600)])
    classes = stored["golden"].argmax(axis=1)[np.arange(600) % len(pictures)]
    made = vdla.quantize(model, x[:100], "percentile", bias_correction=True)
    name = model.graph.input[0].name

    def answers(which: onnx.ModelProto, images: np.ndarray) -> np.ndarray:
        return peer(which, **{name: images}).argmax(axis=1)

    assert (answers(made.model, pictures) == answers(model, pictures)).all()
    real, ours = answers(model, x[100:]), answers(made.model, x[100:])
    assert (ours == classes[100:]).mean() > (real == classes[100:]).mean() - 0.01
    assert (ours == real).mean() >= 0.98  # of one in ten, the two best are close
    on_accelerator(made, pictures[:1])


def _varied(picture: np.ndarray, rng: np.random.Generator) -> np.ndarray:
    """A picture [H,W,C] of values 0 to 255, another way."""
    picture = picture[:, :: rng.choice([1, -1])]
    picture = np.roll(picture, rng.integers(-4, 5, 2), (0, 1)) * rng.uniform(0.6, 1.3)
    return np.clip(picture + rng.normal(0, 4, picture.shape), 0, 255).astype(np.float32)


# ---- rewriting the float model ----


def conv(x: str, y: str, weight: np.ndarray, *more: str, **attributes: Any) -> tuple:
    """A convolution and its weight."""
    node = helper.make_node("Conv", [x, f"{y}_w", *more], [y], y, **attributes)
    return node, numpy_helper.from_array(weight, f"{y}_w")


def build(
    nodes: list[Any],
    constants: dict[str, Any],
    shape: list[int | str],
    output: str,
    opset: int = 17,
) -> onnx.ModelProto:
    """A model of one image; (node, constant) pairs are taken apart."""
    stored = [numpy_helper.from_array(np.asarray(v), n) for n, v in constants.items()]
    stored += [pair[1] for pair in nodes if isinstance(pair, tuple)]
    plain = [pair[0] if isinstance(pair, tuple) else pair for pair in nodes]
    x = helper.make_tensor_value_info("x", TensorProto.FLOAT, shape)
    y = helper.make_empty_tensor_value_info(output)
    y.type.tensor_type.elem_type = TensorProto.FLOAT
    graph = helper.make_graph(plain, "test", [x], [y], stored)
    return helper.make_model(graph, opset_imports=[helper.make_opsetid("", opset)], ir_version=8)


def norm(x: str, y: str, channels: int, rng: np.random.Generator) -> tuple[Any, dict[str, Any]]:
    """Batch normalisation with parameters that differ."""
    names = [f"{y}_{what}" for what in ("scale", "shift", "mean", "variance")]
    values = [rng.uniform(0.5, 2, channels).astype(np.float32) for _ in names]
    node = helper.make_node("BatchNormalization", [x, *names], [y], y, epsilon=1e-3)
    return node, dict(zip(names, values, strict=True))


def floats(rng: np.random.Generator, *shape: int) -> np.ndarray:
    return rng.normal(0, 0.5, shape).astype(np.float32)


def everything(rng: np.random.Generator) -> onnx.ModelProto:
    """Each rewriting has something to do; a depthwise convolution, too."""
    first, more = norm("c", "n", 6, rng)
    second, others = norm("r", "m", 6, rng)
    make = helper.make_node
    nodes = [
        make("Pad", ["x", "pads"], ["p"], "p"),
        conv("p", "c", floats(rng, 6, 3, 3, 3), "bias", strides=[2, 2]),
        first,
        make("Mul", ["n", "factors"], ["f"], "f"),
        make("Sub", ["f", "offsets"], ["o"], "o"),
        make("Clip", ["o", "zero", "six"], ["r"], "r"),
        make("MaxPool", ["r"], ["q"], "q", kernel_shape=[2, 2], pads=[0, 0, 1, 1]),
        second,  # not behind a convolution, and "r" has another reader
        conv("m", "d", floats(rng, 6, 1, 3, 3), group=6, pads=[1, 1, 1, 1]),
        make("Add", ["d", "r"], ["s"], "s"),
        make("Dropout", ["s"], ["same"], "same"),
        make("Concat", ["same", "m"], ["both"], "both", axis=1),
        make("ReduceMean", ["both"], ["mean"], "mean", axes=[2, 3], keepdims=0),
        make("Transpose", ["w_stored"], ["w"], "w", perm=[1, 0]),
        make("MatMul", ["mean", "w"], ["z"], "z"),
        make("Add", ["z", "b"], ["y"], "y"),
    ]
    constants: dict[str, Any] = {
        "pads": np.array([0, 0, 1, 1, 0, 0, 1, 1]), "zero": np.float32(0), "six": np.float32(6),
        "bias": floats(rng, 6), "factors": floats(rng, 1, 6, 1, 1), "b": floats(rng, 5),
        "offsets": floats(rng, 6, 1, 1), "w_stored": floats(rng, 5, 12), **more, **others,
    }  # fmt: skip
    return build(nodes, constants, ["N", 3, 9, 9], "y")


def test_rewriting_keeps_the_meaning() -> None:
    rng = np.random.default_rng(3)
    model = everything(rng)
    draft = Draft.load(model)
    prepare(draft)
    kinds = {node.op_type for node in draft.nodes}
    gone = {"BatchNormalization", "Mul", "Sub", "Pad", "ReduceMean", "Dropout", "MatMul"}
    assert not kinds & gone
    assert kinds >= {"Conv", "Gemm", "GlobalAveragePool", "Flatten", "Clip", "Add"}
    x = floats(rng, 4, 3, 9, 9) * 3
    np.testing.assert_allclose(peer(draft.finish(), x=x), peer(model, x=x), rtol=1e-4, atol=1e-5)


@pytest.mark.slow
def test_everything_quantised() -> None:
    """All of it is int8 but nothing is lost; sum, pool and concatenation share what they must."""
    rng = np.random.default_rng(3)
    model, x = everything(rng), floats(rng, 64, 3, 9, 9) * 3
    made = vdla.quantize(model, x, bias_correction=True)
    rows = {row["name"]: row for row in made.report["layers"]}
    assert {row["type"] for row in rows.values()} == {"int8"}
    assert rows["c"]["op"] == "Conv+Clip"
    assert rows["c"]["scale"] == pytest.approx(6 / 255, rel=0.2)
    assert rows["s"]["scale"] == rows["both"]["scale"] == rows["m"]["scale"]
    assert set(made.report["merged"]) == {"n", "f", "o", "m", "y", "p"}
    real, ours = peer(model, x=x), peer(made.model, x=x)
    noise = np.square(real - ours).mean() / np.square(real).mean()
    assert noise < 1e-3
    assert made.report["outputs"]["y"]["sqnr_db"] == pytest.approx(-10 * np.log10(noise), abs=1)


def test_old_operator_set_is_brought_up() -> None:
    rng = np.random.default_rng(5)
    nodes = [conv("x", "c", floats(rng, 4, 3, 3, 3)), helper.make_node("Relu", ["c"], ["y"], "y")]
    model, x = build(nodes, {}, [2, 3, 6, 6], "y", opset=9), floats(rng, 8, 3, 6, 6)
    made = vdla.quantize(model, x)
    assert made.report["samples"] == 4  # batches of the model's own size
    np.testing.assert_allclose(peer(made.model, x=x[:2]), peer(model, x=x[:2]), atol=0.05)


@pytest.mark.slow
def test_bias_correction_centres_the_error() -> None:
    """Weights whose rounding errors have one sign, on inputs far from zero."""
    rng = np.random.default_rng(7)
    weight = np.round(floats(rng, 8, 4, 3, 3) * 200) / 200 + np.float32(0.3 / 127)
    weight[:, 0, 0, 0] = 2
    model = build([conv("x", "y", weight, pads=[1, 1, 1, 1])], {}, ["N", 4, 8, 8], "y")
    x = rng.uniform(1, 2, (32, 4, 8, 8)).astype(np.float32)
    real = peer(model, x=x)
    biased, centred = (
        np.abs((peer(vdla.quantize(model, x, bias_correction=b).model, x=x) - real).mean((0, 2, 3)))
        for b in (False, True)
    )
    assert centred.max() < biased.max() / 4


@pytest.mark.slow
def test_what_stays_float_says_why() -> None:
    rng = np.random.default_rng(9)
    make = helper.make_node
    nodes = [
        conv("x", "c", floats(rng, 4, 3, 3, 3)),
        make("Softmax", ["c"], ["s"], "s", axis=1),
        make("Sigmoid", ["s"], ["g"], "g"),
        make("Add", ["g", "column"], ["a"], "a"),
        make("Conv", ["a", "c_w2"], ["y"], "y"),
    ]
    constants = {"column": floats(rng, 4, 1, 1), "c_w2": floats(rng, 2, 4, 1, 1)}
    made = vdla.quantize(build(nodes, constants, ["N", 3, 6, 6], "y"), floats(rng, 8, 3, 6, 6))
    rows = {row["name"]: (row["type"], row["reason"]) for row in made.report["layers"]}
    assert rows == {
        "c": ("int8", ""),
        "s": ("float32", "Softmax has no integer form"),
        "g": ("float32", "nothing that it reads is quantised"),
        "a": ("float32", "operand 'column' is a constant"),
        "y": ("int8", ""),
    }
    asked = vdla.quantize(
        build(nodes, constants, ["N", 3, 6, 6], "y"), floats(rng, 8, 3, 6, 6), float_nodes=["y"]
    )
    assert asked.report["layers"][-1]["reason"] == "asked to stay float"
    x = floats(rng, 1, 3, 6, 6)
    y, z = (vdla.compile(made.model, target).run(x)[0] for target in ("sim", "cpu"))
    np.testing.assert_array_equal(y, z)


def test_biases_beyond_int32_widen_the_scale() -> None:
    """A channel of tiny weights with a large bias, as a folded batch normalisation may leave it."""
    rng = np.random.default_rng(11)
    weight = floats(rng, 4, 3, 1, 1)
    weight[2] = 1e-12
    weight[3] = 0
    nodes = [conv("x", "y", weight, "b")]
    bias = np.array([0, 1, 5, -3], np.float32)
    x = floats(rng, 8, 3, 4, 4)
    model = build(nodes, {"b": bias}, ["N", 3, 4, 4], "y")
    made = vdla.quantize(model, x)
    np.testing.assert_allclose(vdla.compile(made.model).run(x)[0], peer(model, x=x), atol=0.05)


# ---- ranges ----


def test_percentile_of_uniform_values() -> None:
    found = by_percentile(np.full(BINS, 10), Range(-1.0, 1.0), 90.0)
    assert (found.lo, found.hi) == pytest.approx((-0.9, 0.9), abs=2 / BINS)


def test_percentile_keeps_a_full_end() -> None:
    counts = np.ones(BINS, np.int64)
    counts[0] = 10 * BINS  # zeros after a ReLU
    found = by_percentile(counts, Range(0.0, 8.0), 99.0)
    assert found.lo == 0 and 7 < found.hi < 8


@pytest.mark.parametrize("last", ["", "Flatten", "Transpose"])
def test_percentile_leaves_outputs_their_extremes(last: str) -> None:
    """Of a tensor before it, which has the same values, the largest are cut; also where the output
    is what was computed in another shape."""
    nodes = [helper.make_node("Relu", ["x"], ["h"]), helper.make_node("Conv", ["h", "w"], ["y"])]
    if last:
        nodes.append(helper.make_node(last, ["y"], ["z"]))
    x = helper.make_tensor_value_info("x", TensorProto.FLOAT, [1, 1, 8, 8])
    z = helper.make_empty_tensor_value_info(nodes[-1].output[0])
    w = numpy_helper.from_array(np.ones((1, 1, 1, 1), np.float32), "w")
    model = helper.make_model(helper.make_graph(nodes, "g", [x], [z], [w]))
    images = np.linspace(0, 1, 640, dtype=np.float32).reshape(10, 1, 8, 8)
    images[3, 0, 2, 2] = 9
    made = vdla.quantize(model, images, "percentile", percentile=99.0).model
    stored = {t.name: numpy_helper.to_array(t) for t in made.graph.initializer}
    assert 255 * stored["h.scale"] < 1
    assert 255 * stored["y.scale"] == pytest.approx(9)


def test_entropy_cuts_outliers_only() -> None:
    rng = np.random.default_rng(2)
    normal = rng.normal(0, 1, 1_000_000)
    span = Range(-40.0, 40.0)
    counts = np.histogram(np.append(normal, [-40, 40]), BINS, (span.lo, span.hi))[0]
    cut = by_entropy(counts, span)
    assert -8 < cut.lo < -3 and 3 < cut.hi < 8
    assert by_entropy(np.full(BINS, 100), Range(0.0, 1.0)) == Range(0.0, 1.0)


@pytest.mark.fast(1)
@pytest.mark.parametrize("method", ["percentile", "entropy"])
def test_a_narrow_range_far_from_zero(method: str) -> None:
    """With bins as narrow as this range needs, a hundred million of them would reach down to
    zero."""
    one, far = np.ones((1, 1, 1, 1), np.float32), np.full((1, 1, 4, 4), 1000, np.float32)
    nodes = [conv("x", "h", one), helper.make_node("Add", ["h", "far"], ["s"]), conv("s", "y", one)]
    model = build(nodes, {"far": far}, [1, 1, 4, 4], "y")
    x = np.random.default_rng(0).uniform(0, 0.01, (8, 1, 4, 4)).astype(np.float32)
    made = vdla.quantize(model, x, method=method)
    np.testing.assert_allclose(peer(made.model, x=x[:1]), 1000, rtol=0.01)


@pytest.mark.fast(1)
@pytest.mark.parametrize(
    ("attributes", "type_"),
    [
        ({"auto_pad": "VALID"}, "int8"),
        ({"auto_pad": "SAME_UPPER"}, "float32"),
        ({"auto_pad": "SAME_LOWER", "count_include_pad": 1}, "int8"),
        ({"pads": [0, 1, 0, 0]}, "float32"),
    ],
)
def test_averages_whose_divisor_varies_stay_float(attributes: dict[str, Any], type_: str) -> None:
    pool = helper.make_node("AveragePool", ["h"], ["y"], "pool", kernel_shape=[2, 2], **attributes)
    nodes = [conv("x", "h", np.ones((1, 1, 1, 1), np.float32)), pool]
    model = build(nodes, {}, [1, 1, 4, 4], "y")
    x = np.random.default_rng(0).uniform(-1, 1, (8, 1, 4, 4)).astype(np.float32)
    made = vdla.quantize(model, x)
    assert {row["name"]: row["type"] for row in made.report["layers"]}["pool"] == type_
    np.testing.assert_allclose(peer(made.model, x=x[:1]), peer(model, x=x[:1]), atol=0.03)


def test_caches_have_integer_rows() -> None:
    """Old and new rows have one scale; a cache that no product reads stays float."""
    rng = np.random.default_rng(2)
    model = onnx.parser.parse_model(
        '<ir_version: 11, opset_import: ["" : 24]> g (float[1, 2, 8] x, int64[1] at,'
        " float[1, 6, 8] past, float[1, 6, 8] seen) => (float[1, 2, 6] y, float[1, 6, 8] present,"
        " float[1, 6, 8] others) <float[8, 8] w> {rows = MatMul(x, w)"
        " present = TensorScatter<axis=1>(past, rows, at)"
        " others = TensorScatter<axis=1>(seen, x, at)"
        " turned = Transpose<perm=[0, 2, 1]>(past) y = MatMul(rows, turned)}"
    )
    model.graph.initializer.append(numpy_helper.from_array(floats(rng, 8, 8), "w"))
    samples = {"x": floats(rng, 16, 2, 8), "past": floats(rng, 16, 6, 8)}
    samples |= {"at": rng.integers(0, 5, 16), "seen": floats(rng, 16, 6, 8)}
    made = vdla.quantize(model, samples)
    rows = {row["name"]: row for row in made.report["layers"]}
    scatters = [n for n in made.model.graph.node if n.op_type == "TensorScatter"]
    assert [name.endswith(".int8") for n in scatters for name in n.input] == [
        True, True, False, False, False, False
    ]  # fmt: skip
    assert rows["present"]["type"] == "int8" and rows["others"]["type"] == "float32"
    ours, real = vdla.compile(made.model, "cpu"), vdla.compile(model, "cpu")
    for i in range(16):
        given = {name: value[i : i + 1] for name, value in samples.items()}
        for a, b in zip(ours.run(given), real.run(given), strict=True):
            np.testing.assert_allclose(a, b, atol=0.06 * np.abs(b).max())


# ---- refusals ----


@pytest.mark.parametrize(
    ("samples", "options", "message"),
    [
        (np.zeros((4, 1, 8, 7), np.float32), {}, r"expected shape .*1, 8, 8.*got \(4, 1, 8, 7\)"),
        (np.full((4, 1, 8, 8), np.nan, np.float32), {}, "finite"),
        (np.zeros((0, 1, 8, 8), np.float32), {}, "got \\(0, 1, 8, 8\\)"),
        ({"picture": np.zeros((4, 1, 8, 8))}, {}, "expected 'image', got picture"),
        (np.zeros((4, 1, 8, 8)), {"method": "best"}, "one of minmax, percentile, entropy"),
        (np.zeros((4, 1, 8, 8)), {"percentile": 101.0}, "at most 100, got 101.0"),
        (np.zeros((4, 1, 8, 8)), {"float_nodes": ["x"]}, "nodes of the model, got 'x'"),
        (np.zeros((4, 1, 8, 8)), {"dims": {"N": 0}}, "a size above 0 as 'N', got 0"),
        (
            np.zeros((4, 1, 8, 8)),
            {"dims": {"M": 2}},
            r"open dimensions of the model \(N\), got 'M'",
        ),
        (np.zeros((3, 1, 8, 8)), {"dims": {"N": 2}}, "a multiple of 2, 1, 8, 8"),
        (np.zeros((4, 1, 8, 8)), {"states": {"old": "new"}}, r"of the model \(image\), got 'old'"),
    ],
)
def test_refusals(
    digits: dict[str, Any], samples: Any, options: dict[str, Any], message: str
) -> None:
    with pytest.raises(VdlaError, match=message):
        vdla.quantize(digits["model"], samples, **options)


def test_a_quantised_model_is_refused(digits: dict[str, Any]) -> None:
    path = MODELS / "digits_int8.onnx"
    with pytest.raises(VdlaError, match=r"digits_int8.onnx: expected a float model"):
        vdla.quantize(path, digits["x"])


def test_a_dynamically_quantised_model_is_refused() -> None:
    node = helper.make_node("DynamicQuantizeLinear", ["x"], ["y", "scale", "zero"], "y")
    with pytest.raises(VdlaError, match="expected a float model, got one with DynamicQuantizeL"):
        vdla.quantize(build([node], {}, ["N", 3], "scale"), np.ones((2, 3), np.float32))


@pytest.mark.parametrize(
    ("kind", "reason"),
    [("Softmax", "Softmax has no integer form"), ("Exp", "nothing that it reads is quantised")],
)
def test_nothing_to_quantise_is_refused(kind: str, reason: str) -> None:
    model = build([helper.make_node(kind, ["x"], ["y"], "y")], {}, ["N", 3], "y")
    with pytest.raises(VdlaError, match=reason):
        vdla.quantize(model, np.ones((2, 3), np.float32))


@pytest.mark.slow
def test_the_command(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    path = tmp_path / "digits8.onnx"
    arguments = [str(MODELS / "digits_float.onnx"), "--samples", str(MODELS / "digits_test.npz")]
    assert run_app(["quantize", *arguments, "-o", str(path), "--json", "-"]) == 0
    report = json.loads(capsys.readouterr().out)
    assert report["command"] == "quantize" and report["top1_agreement"] > 0.99
    assert report["samples"] == 360 and len(report["layers"]) == 10
    onnx.checker.check_model(onnx.load_model(str(path)), full_check=True)
    assert run_app(["quantize", *arguments, "-o", str(path)]) == 0
    assert "10 nodes in int8, 0 in float" in capsys.readouterr().out
    assert run_app(["quantize", str(path), *arguments[1:]]) == 2
    error = capsys.readouterr().err
    assert error.count("\n") == 1 and "expected a float model" in error
