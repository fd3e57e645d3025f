"""Each pass on a small model: its text before and after, and the same results."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from vdla.compiler.frontends.onnx.importer import import_onnx
from vdla.compiler.frontends.states import with_states
from vdla.compiler.frontends.tflite.importer import import_tflite
from vdla.compiler.graph.interpret import interpret, interpret_runs
from vdla.compiler.graph.ir import Graph, Node, Tensor, dump
from vdla.compiler.graph.ops.movement import Pad, Transpose
from vdla.compiler.graph.passes import GRAPH_PASSES, run_passes
from vdla.compiler.graph.passes.merge_transposes import merge_transposes as merge
from vdla.compiler.graph.verify import verify

from ...frontends.tflite.tflite_cases import CASES

#: The outputs of an ONNX model that is built, or a TensorFlow Lite file.
Make = Callable[[Any], list[str] | bytes]


def fold_constants(b: Any) -> list[str]:
    """A weight that is quantised in the model, and a reshaped one."""
    x = b.input("x", ["N", 2])
    flat = b.constant("flat", np.linspace(-1, 1, 6, dtype=np.float32))
    w = b.node("Reshape", [flat, b.constant("shape", np.array([2, 3], np.int64))], "w")
    return [b.node("MatMul", [x, b.qdq(w, 0.01, 0)], "y")]


def drop_identities(b: Any) -> list[str]:
    """An Identity, a Reshape to the same shape, a Quantize after its own Dequantize; one after
    another's stays.
    """
    b.input("x", [1, 4])
    same = b.node("Identity", [b.qdq("x", 0.1, 3)], "same")
    again = b.qdq(b.qdq(same, 0.1, 3), 0.2, 3)
    shaped = b.node("Reshape", [again, b.constant("shape", np.array([0, 4], np.int64))], "shaped")
    return [b.node("Relu", [shaped], "y")]


def common_subexpressions(b: Any) -> list[str]:
    """A tensor quantised twice with equal constants, and a Relu of each; an output stays."""
    b.input("x", [1, 4])
    first, second = (b.node("Neg", ["x"], f"negated{i}") for i in range(2))
    one, other = (b.node("Relu", [b.qdq(x, 0.1, 3)], f"{x}_relu") for x in (first, second))
    total = b.node("Add", [one, other], "total")
    leaky = [b.node("LeakyRelu", [total], f"leaky{i}", alpha=0.1 + i // 2) for i in range(3)]
    return [b.node("Sum", leaky, "y"), b.node("Neg", ["x"], "kept")]


def make_signed(b: Any) -> list[str]:
    """uint8 activations and a uint8 weight whose zero point is 128."""
    b.input("x", [1, 2])
    w = b.constant("w", np.array([[0, 255], [128, 7]], np.uint8))
    w = b.scaled("DequantizeLinear", w, "w_dq", 0.02, np.array(128, np.uint8))
    return [b.qdq(b.node("MatMul", [b.qdq("x", 0.1, 130, "uint8"), w], "h"), 0.2, 7, "uint8")]


def narrow_states(b: Any) -> list[str]:
    """A sum that is kept from run to run, and one that is read in float, too."""
    b.input("x", [1, 2])
    outputs = [b.node("Neg", ["x"], "y")]
    for name in ("kept", "read"):
        b.input(name, [1, 2])
        total = b.node("Add", [b.qdq(name, 0.1, 3), b.qdq(outputs[-1], 0.1, 3)], f"{name}_sum")
        outputs.append(b.qdq(total, 0.1, 3))
    return [*outputs, b.node("Abs", ["read"], "z")]


def wrap_repeats(b: Any) -> list[str]:
    """A tensor joined with itself, one that is expanded, and one that gets a dimension by it."""
    b.input("x", [1, 2])
    x = b.qdq("x", 0.1, 3)
    both = b.node("Concat", [x, x], "both", axis=0)
    shape = b.constant("shape", np.array([3, 1, 2], np.int64))
    once = b.node("Expand", [x, b.constant("same", np.array([1, 1, 2], np.int64))], "once")
    three = b.node("Expand", [x, shape], "three")
    return [b.qdq(y, 0.1, 3) for y in (both, three, once)]


def sink_conversions(b: Any) -> list[str]:
    """Transposed and concatenated activations of one scale; a transposed weight."""
    b.input("x", [1, 2])
    x = b.qdq("x", 0.1, 3)
    both = b.node("Concat", [x, b.node("Identity", [x], "same")], "both", axis=0)
    both = b.qdq(b.node("Transpose", [both], "turned", perm=[1, 0]), 0.1, 3)
    w = b.stored("w", np.array([[3, 4], [-5, 6]], np.int8), np.array([0.01, 0.02], np.float32))
    w = b.node("Transpose", [w], "w_turned", perm=[1, 0])
    return [b.qdq(b.node("MatMul", [both, w], "h"), 0.2, 7)]


def fold_activations(b: Any) -> list[str]:
    """Relu and Clip after an Add; a Relu whose input has a second reader stays."""
    b.input("x", [1, 4])
    total = b.node("Add", ["x", "x"], "total")
    bounds = [b.constant("six", np.float32(6))]
    clipped = b.node("Clip", [b.node("Relu", [total], "positive"), "", *bounds], "clipped")
    shared = b.node("Add", [clipped, "x"], "shared")
    return [b.node("Add", [b.node("Relu", [shared], "kept"), shared], "y")]


def quantise_functions(b: Any) -> list[str]:
    """A leaky ReLU, SiLU of a moved result, and a sum with a ReLU, behind convolutions that are not
    quantised themselves; one that two nodes read stays as it is."""
    b.input("x", [1, 2, 4, 4])
    x = b.qdq("x", 1 / 8, 3)
    scale = np.array([1 / 128, 1 / 64], np.float32)

    def conv(name: str) -> str:
        weight = np.roll(np.arange(-18, 18, dtype=np.int8), ord(name)).reshape(2, 2, 3, 3)
        return b.node("Conv", [x, b.stored(f"{name}_w", weight, scale)], name, pads=[1, 1, 1, 1])

    leaky = b.qdq(b.node("LeakyRelu", [conv("a")], "leaky", alpha=0.25), 1 / 8, -28)
    rows = b.node("Reshape", [conv("b"), b.constant("shape", np.array([1, 2, 16]))], "rows")
    silu = b.node("Mul", [rows, b.node("Sigmoid", [rows], "sigmoid")], "silu")
    total = b.node("Relu", [b.node("Add", [conv("c"), x], "sum")], "positive")
    twice = conv("d")
    other = b.qdq(b.node("LeakyRelu", [twice], "other"), 1 / 8, 0)
    return [leaky, b.qdq(silu, 1 / 8, -124), b.qdq(total, 1 / 4, -128), other, twice]


def fuse_qdq(b: Any) -> list[str]:
    """Convolution with ReLU, addition, pooling, and a padded average that has no integer form.

    Scales are powers of two, so that float32 is exact before the pass and sees ties as ties.
    """
    b.input("x", [1, 1, 4, 4])
    x = b.qdq("x", 1 / 8, 3)
    weight = np.arange(-9, 9, dtype=np.int8).reshape(2, 1, 3, 3)
    scale = np.array([1 / 128, 1 / 64], np.float32)
    bias = b.stored("b", np.array([5, -5], np.int32), scale / 8)
    h = b.node("Conv", [x, b.stored("w", weight, scale), bias], "conv", pads=[1, 1, 1, 1])
    h = b.qdq(b.node("Relu", [h], "relu"), 1 / 16, -10)
    h = b.qdq(b.node("Add", [h, h], "sum"), 1 / 8, -128)
    h = b.qdq(b.node("MaxPool", [h], "max", kernel_shape=[2, 2]), 1 / 8, -128)
    h = b.node("AveragePool", [h], "ragged", kernel_shape=[2, 2], pads=[1, 1, 0, 0])
    return [b.qdq(b.node("GlobalAveragePool", [b.qdq(h, 1 / 8, 0)], "mean"), 1 / 64, 1)]


def fuse_softmax(b: Any) -> list[str]:
    """Two softmaxes whose results weight values, one of them with steps for rows of 2,048 equal
    scores; one along the values stays, and so do one along another axis and one whose result is
    read as it is."""
    x, y = (b.qdq(b.input(name, [2, 3, 3]), 0.1, 3) for name in "xy")
    first = b.qdq(b.node("Softmax", [x], "p", axis=-1), 1 / 2048 / 255, -128)
    second = b.qdq(b.node("Softmax", [y], "q", axis=1), 1 / 16, -128)
    alone = b.qdq(b.node("Softmax", [y], "r", axis=-1), 1 / 16, -128)
    products = [b.qdq(b.node("MatMul", [p, y], f"{p}_y"), 0.1, 0) for p in (first, second)]
    return [*products, b.qdq(b.node("MatMul", [y, alone], "y_r"), 0.1, 0)]


def fuse_layer_norm(b: Any) -> list[str]:
    """Normalisation as one operator, before a Slice and a Reshape, and step by step, beside a
    product of two activations; RMS normalisation as one operator and step by step. One along
    another axis stays, as do one of another variance, one whose mean is another tensor's, and one
    of which only the variance is without a mean."""
    x, y = (b.qdq(b.input(name, [2, 16, 16]), 0.1, 3) for name in "xy")
    stored = b.constant("stored", np.arange(-8, 8, dtype=np.int8))
    gain = b.scaled("DequantizeLinear", stored, "gain", 0.2, np.array(0, np.int8))
    shift = b.constant("shift", np.linspace(-1, 1, 16, dtype=np.float32))
    numbers = [b.constant(f"c{v}", np.array(v, np.float32)) for v in (2.0, 1e-3)]

    def steps(name: str, centre: str, axis: int = -1, power: str = numbers[0]) -> str:
        mean = b.node("ReduceMean", [centre], f"{name}_mean", axes=[axis])
        apart = b.node("Sub", [x, mean], f"{name}_apart")
        squares = b.node("Pow", [apart, power], f"{name}_squares")
        variance = b.node("ReduceMean", [squares], f"{name}_variance", axes=[axis])
        root = b.node(
            "Sqrt", [b.node("Add", [variance, numbers[1]], f"{name}_sum")], f"{name}_root"
        )
        normal = b.node("Div", [apart, root], f"{name}_normal")
        scaled = b.node("Mul", [gain, normal], f"{name}_scaled")
        return b.qdq(b.node("Add", [scaled, shift], f"{name}_shifted"), 0.05, -7)

    whole = b.node("LayerNormalization", [x, gain, shift], "whole", axis=-1)
    plain = b.node("LayerNormalization", [y, shift], "plain", axis=-1, epsilon=0.01)
    ends = [b.constant(f"end{n}", np.array([n])) for n in (3, 7, 1)]
    some = b.node("Slice", [plain, *ends], "some")
    rows = b.node("Reshape", [some, b.constant("shape", np.array([4, 32]))], "rows")
    three = b.constant("c3", np.array(4.0, np.float32))
    others = [steps("turned", x, 1), steps("fourth", x, -1, three), steps("other", y)]
    product = b.qdq(b.node("MatMul", [x, y], "product"), 0.3, 0)
    root = b.node("SimplifiedLayerNormalization", [x, gain], "root", axis=-1, epsilon=0.01)

    def inverse_root(name: str) -> str:
        """``1 / sqrt(mean(x**2) + epsilon)``, as PyTorch's programs are exported."""
        squares = b.node("Pow", [x, numbers[0]], f"{name}_squares")
        mean = b.node("ReduceMean", [squares], f"{name}_mean", axes=[-1])
        total = b.node("Add", [mean, numbers[1]], f"{name}_sum")
        return b.node("Reciprocal", [b.node("Sqrt", [total], f"{name}_sqrt")], f"{name}_inverse")

    apart = b.node("Sub", [x, b.node("ReduceMean", [x], "mixed_centre", axes=[-1])], "mixed_apart")
    exported, mixed = (
        b.qdq(b.node("Mul", [gain, b.node("Mul", [above, inverse_root(name)], f"{name}_normal")],
                     f"{name}_scaled"), 0.05, 1)
        for name, above in (("exported", x), ("mixed", apart))
    )  # fmt: skip
    fused = [b.qdq(whole, 0.05, 3), b.qdq(rows, 0.05, 3), steps("apart", x)]
    return [*fused, b.qdq(root, 0.05, -2), exported, mixed, *others, product]


def quantise_concats(b: Any) -> list[str]:
    """A constant row, a stored one and an activation of another scale, joined beside a product of
    two activations; what is joined with a float stays."""
    x, y = (b.qdq(b.input(name, [2, 3]), 0.1, 3) for name in "xy")
    row = b.constant("row", np.array([[0.3, -7.0, 2.05]], np.float32))
    stored = b.constant("stored", np.array([[5, -100, 127]], np.int8))
    stored = b.scaled("DequantizeLinear", stored, "second", 0.07, np.array(-2, np.int8))
    joined = b.qdq(b.node("Concat", [row, x, stored, y], "joined", axis=0), 0.08, -1)
    real = b.node("Exp", [x], "real")
    other = b.qdq(b.node("Concat", [real, y], "other", axis=0), 0.08, -1)
    turned = b.node("Transpose", [y], "turned", perm=[1, 0])
    return [joined, other, b.qdq(b.node("MatMul", [x, turned], "product"), 0.3, 0)]


def fuse_rotation(b: Any) -> list[str]:
    """A rotary embedding of four channels at two places."""
    b.input("x", [1, 1, 2, 4])
    x = b.qdq("x", 0.1, 3)
    angles = np.array([[0.0, 0.0], [1.0, 0.1]])
    cos, sin = (
        b.constant(name, np.tile(function(angles), 2).astype(np.float32))
        for name, function in (("cos", np.cos), ("sin", np.sin))
    )
    bounds = [b.constant(f"at{n}", np.array([n], np.int64)) for n in (0, 2, 3, 4)]
    first = b.node("Slice", [x, bounds[0], bounds[1], bounds[2]], "first")
    second = b.node("Slice", [x, bounds[1], bounds[3], bounds[2]], "second")
    turned = b.node("Concat", [b.node("Neg", [second], "below"), first], "turned", axis=3)
    straight, crossed = b.node("Mul", [x, cos], "straight"), b.node("Mul", [turned, sin], "crossed")
    return [b.qdq(b.node("Add", [straight, crossed], "sum"), 0.12, -1)]


def fuse_tables(b: Any) -> list[str]:
    """x * sigmoid(x) with a bound; another scale; a product with another tensor, which stays."""
    b.input("x", [1, 4])
    x = b.qdq("x", 0.1, 3)
    silu = b.node("Mul", [x, b.node("Sigmoid", [x], "gate")], "silu")
    bounded = b.node("Clip", [silu, "", b.constant("four", np.float32(4))], "bounded")
    silu = b.qdq(b.qdq(bounded, 0.05, -100), 0.04, -90)
    return [b.qdq(b.node("Mul", [silu, x], "product"), 0.2, 0)]


def fold_pads(b: Any) -> bytes:
    """MobileNetV2's block with an explicit padding before the depthwise convolution."""
    return CASES["inverted_residual"]()[0]


def exact_add(b: Any) -> bytes:
    """Two images."""
    return CASES["add_trained"]()[0]


def merge_transposes(b: Any) -> bytes:
    """An image that comes as NCHW, is transposed for the file, and back for us."""
    return CASES["inverted_residual_nchw"]()[0]


def through_elementwise(b: Any) -> list[str]:
    """An image that is quantised and clipped as NHWC and goes back to NCHW; and a transposition
    that a second reader keeps."""
    b.input("x", [1, 2, 3, 4])
    h = b.qdq(b.node("Transpose", ["x"], "nhwc", perm=[0, 2, 3, 1]), 0.1, 3)
    h = b.node("Transpose", [b.node("Relu", [h], "relu")], "nchw", perm=[0, 3, 1, 2])
    kept = b.node("Neg", [b.node("Transpose", [h], "rows", perm=[0, 1, 3, 2])], "negated")
    back = b.node("Transpose", [kept], "back", perm=[1, 0, 3, 2])
    return [b.node("Sigmoid", [back], "y"), b.node("Abs", [kept], "z")]


def raise_quantize(b: Any) -> list[str]:
    """A dense layer of three dimensions, positive, whose rows are transposed before they are
    quantised; and one whose float result is read, too."""
    b.input("x", [2, 3, 4])
    x = b.qdq("x", 0.1, 3)
    h = b.node("Relu", [b.node("MatMul", [x, _square(b, "v", 1)], "dense")], "positive")
    h = b.node("Transpose", [h], "turned")
    y = b.node("MatMul", [x, _square(b, "w", 2)], "read")
    return [b.qdq(h, 0.2, 1), b.qdq(y, 0.2, 1), b.node("Relu", [y], "z")]


def _square(b: Any, name: str, value: int) -> str:
    return b.stored(name, value * np.eye(4, dtype=np.int8), np.float32(0.5))


def dead_code(b: Any) -> list[str]:
    """A node and a constant without readers."""
    b.input("x", [1, 4])
    b.node("Add", ["x", b.constant("unused", np.ones(4, np.float32))], "dead")
    return [b.node("Relu", ["x"], "y")]


def unique_names(b: Any) -> list[str]:
    """Three nodes of one name, and one that has the name which the second would get."""
    h = b.input("x", [1, 2])
    for kind, name in (("Exp", "node"), ("Neg", "node"), ("Abs", "node.1"), ("Exp", "node")):
        h = b.node(kind, [h], f"t{len(b.nodes)}")
        b.nodes[-1].name = name
    return [h]


MAKERS: tuple[Make, ...] = (
    fold_constants,
    common_subexpressions,
    make_signed,
    narrow_states,
    wrap_repeats,
    sink_conversions,
    raise_quantize,
    drop_identities,
    fold_activations,
    quantise_functions,
    fuse_qdq,
    fuse_softmax,
    fuse_layer_norm,
    fuse_rotation,
    quantise_concats,
    fuse_tables,
    fold_pads,
    exact_add,
    merge_transposes,
    dead_code,
    unique_names,
)


#: Further models, of passes that have one already.
MORE: dict[Make, str] = {through_elementwise: "merge_transposes"}
MODELS = (*MAKERS, *MORE)
#: States of models.
STATES = {narrow_states: {"kept": "kept_sum_dq", "read": "read_sum_dq"}}


def test_every_pass_has_a_model() -> None:
    assert [make.__name__ for make in MAKERS] == [p.__name__ for p in GRAPH_PASSES]


def place(make: Make) -> int:
    """The position of the pass that a model is for."""
    names = [p.__name__ for p in GRAPH_PASSES]
    return names.index(MORE.get(make, make.__name__))


def prepared(make: Make, builder: Any) -> Graph:
    """The model after the passes that come before the one under test."""
    index = place(make)
    made = make(builder)
    if isinstance(made, bytes):
        graph = import_tflite(made)
    else:
        graph = import_onnx(builder.model(made, name=make.__name__))
    graph = with_states(graph, STATES.get(make, {}))
    return run_passes(graph, GRAPH_PASSES[:index])


@pytest.mark.parametrize("make", MODELS, ids=lambda make: make.__name__)
def test_golden(make: Make, builder: Any, golden: Callable[[str, str], None]) -> None:
    before = prepared(make, builder)
    after = run_passes(before, (GRAPH_PASSES[place(make)],))
    assert dump(after) != dump(before)
    golden(f"{make.__name__}.txt", f"# before\n{dump(before)}\n# after\n{dump(after)}")


EXACT = [
    make
    for make in MODELS
    if make not in (fuse_layer_norm, fuse_rotation, quantise_functions, narrow_states)
]


@pytest.mark.fast(3)
@pytest.mark.parametrize("make", EXACT, ids=lambda make: make.__name__)
def test_pass_keeps_the_results(make: Make, builder: Any) -> None:
    before = prepared(make, builder)
    after = run_passes(before, (GRAPH_PASSES[place(make)],))
    rng = np.random.default_rng(0)
    for _ in range(20):
        x = [random_value(rng, before[name].shape, before[name].dtype) for name in before.inputs]
        for a, b in zip(interpret(before, *x), interpret(after, *x), strict=True):
            assert a.dtype == b.dtype
            np.testing.assert_array_equal(a, b)


def test_a_normalisation_keeps_the_results(builder: Any) -> None:
    """Within a step, and 99 % of it; what stays in float32 is the same."""
    before = prepared(fuse_layer_norm, builder)
    after = run_passes(before, (GRAPH_PASSES[place(fuse_layer_norm)],))
    rng = np.random.default_rng(0)
    off = []
    for _ in range(20):
        x = [random_value(rng, before[name].shape, before[name].dtype) for name in before.inputs]
        pairs = list(zip(interpret(before, *x), interpret(after, *x), strict=True))
        off += [np.abs(a - b).ravel() / 0.05 for a, b in pairs[:5]]
        for a, b in pairs[5:]:
            np.testing.assert_array_equal(a, b)
    steps = np.rint(np.concatenate(off))
    assert steps.max() <= 1 and (steps == 0).mean() >= 0.99


def test_functions_behind_products_keep_the_results(builder: Any) -> None:
    """The leaky ReLU, linear on both sides, to the bit; SiLU and the sum within a step."""
    before = prepared(quantise_functions, builder)
    after = run_passes(before, (GRAPH_PASSES[place(quantise_functions)],))
    rng = np.random.default_rng(0)
    for _ in range(20):
        x = [random_value(rng, before[name].shape, before[name].dtype) for name in before.inputs]
        steps = [
            np.abs(a - b) / scale
            for a, b, scale in zip(
                interpret(before, *x), interpret(after, *x), (1 / 8, 1 / 8, 1 / 4, 1 / 8, 1),
                strict=True,
            )
        ]  # fmt: skip
        assert [s.max() for s in (steps[0], *steps[3:])] == [0, 0, 0]
        assert steps[1].max() <= 1 and steps[2].max() <= 1
        assert (steps[1] == 0).mean() > 0.7 and (steps[2] == 0).mean() > 0.4


def test_narrow_states_keep_the_results(builder: Any) -> None:
    """Over several runs; the one that is read in float stays so."""
    before = prepared(narrow_states, builder)
    after = run_passes(before, (GRAPH_PASSES[place(narrow_states)],))
    assert [(name, after[name].dtype) for name, *_ in after.state_values] == [
        ("kept", "int8"), ("read", "float32")
    ]  # fmt: skip
    rng = np.random.default_rng(0)
    runs = [[random_value(rng, (1, 2), "float32") / 8] for _ in range(20)]
    for a, b in zip(interpret_runs(before, *runs), interpret_runs(after, *runs), strict=True):
        for x, y in zip(a, b, strict=True):
            np.testing.assert_array_equal(x, y)


def random_value(rng: np.random.Generator, shape: tuple[int, ...], dtype: str) -> np.ndarray:
    real = rng.uniform(-8, 8, shape)
    return real.astype(np.float32) if dtype == "float32" else (real * 16).astype(dtype)


@pytest.mark.parametrize("make", MODELS, ids=lambda make: make.__name__)
def test_passes_are_idempotent_and_pure(make: Make, builder: Any) -> None:
    before = prepared(make, builder)
    text = dump(before)
    apply = GRAPH_PASSES[place(make)]
    once = apply(before)
    assert dump(apply(once)) == dump(once)
    assert dump(before) == text


def test_padding_with_another_value_stays(builder: Any) -> None:
    before = prepared(fold_pads, builder)
    (pad,) = (node for node in before.nodes if isinstance(node.op, Pad))
    assert isinstance(pad.op, Pad)
    border = before[pad.inputs[1]]
    assert border.data is not None
    changed = before.with_nodes([*before.nodes], replace(border, data=border.data + np.int8(1)))
    apply = GRAPH_PASSES[MAKERS.index(fold_pads)]
    assert dump(apply(before)) != dump(before)
    assert dump(apply(changed)) == dump(changed)


def test_transpositions_that_follow_one_another_compose() -> None:
    """Two that do not commute."""
    x = np.arange(24, dtype=np.int8).reshape(2, 3, 4)
    perms = ((1, 2, 0), (0, 2, 1))
    tensors, nodes, name = {"x": Tensor("x", x.shape, "int8")}, [], "x"
    for index, perm in enumerate(perms):
        shape = tuple(tensors[name].shape[axis] for axis in perm)
        made = Tensor(f"t{index}", shape, "int8")
        nodes.append(Node(f"n{index}", Transpose(perm), (name,), made.name))
        tensors[made.name], name = made, made.name
    graph = Graph("transposed", ("x",), (name,), tuple(nodes), tensors)
    merged = merge(graph)
    assert merged.nodes[-1].inputs == ("x",)
    (expected,), (got,) = interpret(graph, x), interpret(merged, x)
    np.testing.assert_array_equal(got, expected)


def test_transpositions_are_merged_behind_merged_ones(builder: Any) -> None:
    """What the second pair reads has another shape since the first one has gone."""
    name = builder.input("x", [2, 3, 4])
    for order in [1, 0, 2], [2, 1, 0]:
        name = builder.node("Transpose", [name], f"{name}t", perm=order)
        name = builder.node("Abs", [name], f"{name}a")
        name = builder.node("Transpose", [name], f"{name}t", perm=order)
    graph = import_onnx(builder.model([name]))
    merged = merge(graph)
    verify(merged)
    x = np.random.default_rng(0).normal(0, 1, (2, 3, 4)).astype(np.float32)
    np.testing.assert_array_equal(interpret(merged, x)[0], interpret(graph, x)[0])


def test_digits_golden(models: Path, golden: Callable[[str, str], None]) -> None:
    golden("digits.txt", dump(run_passes(import_onnx(models / "digits_int8.onnx"))))
