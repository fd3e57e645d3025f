"""Products of two activations among dense layers, against ONNX Runtime."""

from __future__ import annotations

from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import onnxruntime
import pytest
import vdla
from hypothesis import given, settings
from hypothesis import strategies as st
from onnx import TensorProto, helper, numpy_helper
from vdla.isa.program import Program

RNG = np.random.default_rng(8)
#: Standard deviation of a value that fills int8, in steps, and that of a weight.
STEPS, WEIGHT = 40, 0.74


class Net:
    """A quantised model: every result has a scale and a zero point of its own."""

    def __init__(self) -> None:
        self.nodes: list[onnx.NodeProto] = []
        self.constants: list[onnx.TensorProto] = []

    def constant(self, value: Any) -> str:
        self.constants.append(numpy_helper.from_array(np.asarray(value), f"c{len(self.constants)}"))
        return self.constants[-1].name

    def op(self, kind: str, *names: str, **attributes: Any) -> str:
        count = len(self.nodes)
        self.nodes.append(helper.make_node(kind, names, [f"t{count}"], f"n{count}", **attributes))
        return self.nodes[-1].output[0]

    def pair(self, x: str, scale: float, zero: int) -> str:
        quant = self.constant(np.float32(scale)), self.constant(np.int8(zero))
        return self.op("DequantizeLinear", self.op("QuantizeLinear", x, *quant), *quant)

    def dense(self, x: str, width: int, channels: int, scale: float, zero: int) -> str:
        w = self.constant(RNG.integers(-128, 128, (width, channels)).astype(np.int8))
        w = self.op(
            "DequantizeLinear", w, self.constant(np.float32(0.01)), self.constant(np.int8(0))
        )
        return self.pair(self.op("MatMul", x, w), scale, zero)

    def heads(self, x: str, shape: tuple[int, ...], order: list[int]) -> str:
        apart = self.op("Reshape", x, self.constant(np.array(shape)))
        return self.op("Transpose", apart, perm=order)

    def model(self, shape: tuple[int, ...], y: str) -> onnx.ModelProto:
        ends = [
            helper.make_tensor_value_info("x", TensorProto.FLOAT, shape),
            helper.make_tensor_value_info(y, TensorProto.FLOAT, None),
        ]
        graph = helper.make_graph(self.nodes, "net", ends[:1], ends[1:], self.constants)
        return helper.make_model(graph, opset_imports=[helper.make_opsetid("", 13)], ir_version=8)


def attention(
    tokens: int, heads: int, size: int, leading: tuple[int, ...] = (), queries: bool = False
) -> onnx.ModelProto:
    """Attention without a softmax: (q k^T) v for each head, between dense layers. With
    ``queries``, q and k are the same."""
    net, width = Net(), heads * size
    dense = 2 * WEIGHT * width**0.5 / STEPS
    scored = STEPS * dense**2 * size**0.5
    summed = STEPS * scored * dense * tokens**0.5
    x = net.pair("x", 2 / STEPS, 5)
    q = net.dense(x, width, width, dense, -3)
    k = q if queries else net.dense(x, width, width, dense, 11)
    v = net.dense(x, width, width, dense, 4)
    apart = (*(leading or (1,)), tokens, heads, size)
    scores = net.op("MatMul", net.heads(q, apart, [0, 2, 1, 3]), net.heads(k, apart, [0, 2, 3, 1]))
    values = net.heads(v, apart, [0, 2, 1, 3])
    mixed = net.pair(net.op("MatMul", net.pair(scores, scored, 7), values), summed, -20)
    together = net.op("Transpose", mixed, perm=[0, 2, 1, 3])
    y = net.op("Reshape", together, net.constant(np.array((*leading, tokens, width))))
    last = net.dense(net.pair(y, summed, -20), width, 24, summed * WEIGHT * width**0.5, 0)
    return net.model((*leading, tokens, width), last)


def residual(
    tokens: int, heads: int, size: int, second: float | None, by_scalar: bool = False
) -> onnx.ModelProto:
    """Attention with a bias behind each dense layer, halved scores and the sum with its input,
    whose scale is ``second`` times that of the other addend, or that of the dense layers' input; or
    with biases that are numbers."""
    net, width = Net(), heads * size
    dense = 2 * WEIGHT * width**0.5 / STEPS
    apart = (1, tokens, heads, size)
    x = net.pair("x", 2 / STEPS, 5)

    def biased(x: str, scale: float, zero: int) -> str:
        y = net.dense(x, width, width, scale, zero)
        bias = RNG.standard_normal(() if by_scalar else width).astype(np.float32)
        stored = net.constant(np.rint(30 * bias).astype(np.int8))
        real = net.op("DequantizeLinear", stored, net.constant(np.float32(scale)),
                      net.constant(np.int8(-3)))  # fmt: skip
        return net.pair(net.op("Add", y, real), 1.1 * scale, zero + 3)

    q, k, v = (biased(x, dense, zero) for zero in (-3, 11, 4))
    scores = net.op("MatMul", net.heads(q, apart, [0, 2, 1, 3]), net.heads(k, apart, [0, 2, 3, 1]))
    scored = STEPS * dense**2 * size**0.5
    scores = net.op("Div", net.pair(scores, scored, 7), net.constant(np.float32(2)))
    summed = STEPS * scored * dense * tokens**0.5 / 2
    values = net.heads(v, apart, [0, 2, 1, 3])
    mixed = net.pair(net.op("MatMul", net.pair(scores, scored / 2, 7), values), summed, -20)
    together = net.op("Transpose", mixed, perm=[0, 2, 1, 3])
    y = net.op("Reshape", together, net.constant(np.array((1, tokens, width))))
    last = summed * WEIGHT * width**0.5
    y = biased(net.pair(y, summed, -20), last, 0)
    total = net.op("Add", y, x if second is None else net.pair("x", second * last, 1))
    return net.model((1, tokens, width), net.pair(total, 1.5 * last, 4))


def expected(model: onnx.ModelProto, x: np.ndarray) -> np.ndarray:
    session = onnxruntime.InferenceSession(
        model.SerializeToString(), providers=["CPUExecutionProvider"]
    )
    return session.run(None, {"x": x})[0]


def compare(model: onnx.ModelProto, hw: str = "16x16", varied: bool = True) -> Any:
    """Accelerator and host give the same bits, and, if the result is ``varied`` enough to say so,
    those of ONNX Runtime but for ties; returns the layers and the number of programs."""
    shape = tuple(d.dim_value for d in model.graph.input[0].type.tensor_type.shape.dim)
    x = RNG.standard_normal(shape).astype(np.float32) * 2
    module = vdla.compile(model, "sim", hw=hw)
    [got], [host] = module.run(x), vdla.compile(model, "cpu").run(x)
    np.testing.assert_array_equal(got, host)
    if varied:
        wanted = expected(model, x)
        values = np.unique(wanted)
        assert len(values) > 20
        assert np.abs(got - wanted).max() <= 1.01 * np.diff(values).min()
        # A tie in one of the products changes a row of the last one by a step.
        assert (got == wanted).mean() > 0.95
    programs = [step for step in module.compiled.steps if isinstance(step, Program)]
    return module.compiled.layers, len(programs)


@pytest.mark.slow
@pytest.mark.parametrize("leading", [(), (1,)], ids=["matrix", "batch"])
@pytest.mark.parametrize("queries", [False, True], ids=["keys", "queries as keys"])
def test_one_program(leading: tuple[int, ...], queries: bool) -> None:
    """Tokens that fill no whole blocks; dense layers, products and the transposition of values
    between them move nothing on the host."""
    layers, programs = compare(attention(37, 3, 32, leading, queries))
    assert programs == 1
    ops = [layer.op for layer in layers if layer.target == "accel"]
    kinds = {"QConv2d", "QGroupMatMul", "TransposeGroups"}
    assert {op: ops.count(op) for op in kinds} == {
        "QConv2d": 3 if queries else 4, "QGroupMatMul": 2, "TransposeGroups": 1,
    }  # fmt: skip
    assert all(layer.target == "accel" for layer in layers if layer.macs)


@pytest.mark.slow
@pytest.mark.parametrize("second", [0.01, None], ids=["two inputs", "one input"])
def test_what_is_element_by_element(second: float | None) -> None:
    """Biases, a table of two pieces and the sum with the input are in the program, too. The host
    lays out each input once."""
    layers, programs = compare(residual(37, 3, 32, second))
    assert programs == 1
    turned = [layer for layer in layers if layer.op == "Transpose"]
    assert len(turned) == (2 if second is None else 3)
    ops = [layer.op for layer in layers if layer.target == "accel"]
    assert {op: ops.count(op) for op in ops} == {
        "QConvAddChannels": 4, "QGroupMatMul": 2, "TransposeGroups": 1, "QTable": 1, "QAdd": 1,
    }  # fmt: skip


@pytest.mark.slow
def test_a_scalar_is_no_constant_for_each_channel() -> None:
    layers, _ = compare(residual(20, 2, 16, 0.01, by_scalar=True))
    assert not {"QAddChannels", "QConvAddChannels"} & {layer.op for layer in layers}


def gated(tokens: int, width: int, factor: str = "its own") -> onnx.ModelProto:
    """Scores of what a GELU, a pair behind each of its steps, makes of a dense layer. The factor of
    a value is one of its own, of another layer's value, or of a sum of both without a pair."""
    net, scale = Net(), 2 * WEIGHT * width**0.5 / STEPS

    def number(value: float) -> str:
        stored, zero = net.constant(np.int8(127)), net.constant(np.int8(0))
        return net.op("DequantizeLinear", stored, net.constant(np.float32(value / 127)), zero)

    x = net.pair("x", 2 / STEPS, 5)
    h = net.dense(x, width, width, scale, 6)
    other = h if factor == "its own" else net.dense(x, width, width, scale, -4)
    argument = net.op("Add", h, other) if factor == "of a sum" else other
    inside = net.op("Div", argument, net.constant(np.float32(20 * scale)))
    erf = net.pair(net.op("Erf", inside), 1 / 127, 0)
    halves = net.pair(net.op("Add", erf, number(1)), 2 / 255, -128)
    y = net.pair(net.op("Mul", h, halves), 2 * scale, -100)
    y = net.pair(net.op("Mul", y, number(0.5)), scale, -100)
    turned = net.op("Transpose", y, perm=[0, 2, 1])
    scored = net.pair(net.op("MatMul", y, turned), 40 * scale**2 * width**0.5, -30)
    return net.model((1, tokens, width), scored)


@pytest.mark.slow
@pytest.mark.parametrize("has_table", [False, True], ids=["bends", "table"])
def test_a_function_in_several_steps_is_a_table(has_table: bool, tmp_path: Path) -> None:
    hw = tmp_path / "hw.toml"
    hw.write_text(f"vector_table = {int(has_table)}\n")
    layers, programs = compare(gated(21, 32), hw=str(hw))
    functions = [layer.target for layer in layers if layer.op in ("QConvTable", "QTable", "Map")]
    assert functions == ["accel" if has_table else "cpu"]
    assert programs == (1 if has_table else 2)


def softmax_attention(
    tokens: int, heads: int, size: int, keys: int, share: float, zero: int, divided: bool,
    mask: np.ndarray | None = None,
) -> onnx.ModelProto:  # fmt: skip
    """Attention of ``tokens`` queries to the first ``keys`` of them. Probabilities have scale
    ``share``; with ``divided``, scores are divided by a number before the softmax, and a ``mask``
    is added to them."""
    net, width = Net(), heads * size
    dense = 2 * WEIGHT * width**0.5 / STEPS
    scored = STEPS * dense**2 * size**0.5
    x = net.pair("x", 2 / STEPS, 5)
    first = x
    if keys < tokens:
        ends = (net.constant(np.array([end])) for end in (0, keys, 1))
        first = net.op("Slice", x, *ends)
    q = net.dense(x, width, width, dense, -3)
    k, v = (net.dense(first, width, width, dense, zero) for zero in (11, 4))
    apart, of_keys = (1, tokens, heads, size), (1, keys, heads, size)
    turned = net.heads(k, of_keys, [0, 2, 3, 1])
    scores = net.pair(net.op("MatMul", net.heads(q, apart, [0, 2, 1, 3]), turned), scored, 7)
    if divided:
        scores = net.op("Div", scores, net.constant(np.float32(20 * scored)))
        scores = net.pair(scores, 1 / 20, 7)
    if mask is not None:
        scores = net.op("Add", scores, net.constant(mask))
    probabilities = net.pair(net.op("Softmax", scores, axis=-1), share, zero)
    values = net.heads(v, of_keys, [0, 2, 1, 3])
    mixed = net.pair(net.op("MatMul", probabilities, values), 0.75 * dense, -20)
    together = net.op("Transpose", mixed, perm=[0, 2, 1, 3])
    y = net.op("Reshape", together, net.constant(np.array((1, tokens, width))))
    last = dense * WEIGHT * width**0.5
    return net.model(
        (1, tokens, width), net.dense(net.pair(y, 0.75 * dense, -20), width, 24, last, 0)
    )


#: Tokens, heads, channels of a head, keys; scale and zero point of probabilities; whether scores
#: are divided.
SOFTMAXES = {
    "a head": (64, 1, 64, 64, 1 / 255, -128, False),
    "heads, divided scores": (32, 3, 32, 32, 1 / 255, -128, True),
    "keys that fill no blocks": (48, 2, 32, 37, 1 / 255, -128, True),
    "small probabilities": (32, 2, 32, 32, 0.1 / 255, -128, True),
    "another zero point": (32, 2, 16, 32, 1 / 127, 0, True),
    "queries and keys that fill no blocks": (37, 3, 32, 37, 1 / 255, -128, True),
    "a few queries": (5, 2, 16, 5, 1 / 127, 3, False),
    "fewer keys than queries": (50, 1, 64, 21, 0.2 / 255, -128, True),
}


@pytest.mark.slow
@pytest.mark.short(3)
@pytest.mark.parametrize("case", SOFTMAXES)
def test_a_softmax_between_products_is_in_the_program(case: str, tmp_path: Path) -> None:
    """With a table of 16 bits; host and accelerator give the same bits."""
    hw = tmp_path / "hw.toml"
    hw.write_text("vector_table = 2\n")
    layers, programs = compare(softmax_attention(*SOFTMAXES[case]), str(hw), varied=False)
    assert [layer.target for layer in layers if layer.op == "QTableSoftmax"] == ["accel"]
    assert programs == 1
    ops = [layer.op for layer in layers if layer.target == "accel"]
    assert (ops.count("QGroupMatMul"), ops.count("TransposeGroups")) == (2, 2)


MASKS = {
    "causal": np.triu(np.full((48, 48), -1e9, np.float32), 1),
    "causal, tokens that fill no blocks": np.triu(np.full((37, 37), -1e9, np.float32), 1),
    "padding": np.where(np.arange(48) < 37, 0, -np.inf).astype(np.float32)[None],
    "each head its own": np.where(
        np.arange(48) <= np.arange(48)[:, None] + np.arange(2)[:, None, None], 0, -1e9
    ).astype(np.float32),
}


@pytest.mark.slow
@pytest.mark.short(2)
@pytest.mark.parametrize("case", MASKS)
def test_a_masked_softmax_is_in_the_program(case: str, tmp_path: Path) -> None:
    """Host and accelerator give the same bits."""
    hw = tmp_path / "hw.toml"
    hw.write_text("vector_table = 2\n")
    tokens = MASKS[case].shape[-1]
    model = softmax_attention(tokens, 2, 32, tokens, 1 / 255, -128, True, MASKS[case])
    layers, programs = compare(model, str(hw), varied=False)
    [softmax] = [layer for layer in layers if layer.op == "QTableSoftmax"]
    assert (softmax.target, programs) == ("accel", 1)


@pytest.mark.slow
def test_a_mask_of_too_many_rows(tmp_path: Path) -> None:
    hw = tmp_path / "hw.toml"
    hw.write_text("vector_table = 2\n")
    kept = np.random.default_rng(1).random((128, 128)) < 0.5
    kept[:, 0] = True
    mask = np.where(kept, 0, -1e9).astype(np.float32)
    model = softmax_attention(128, 1, 16, 128, 1 / 255, -128, True, mask)
    layers, programs = compare(model, str(hw), varied=False)
    [softmax] = [layer for layer in layers if layer.op == "QTableSoftmax"]
    assert softmax.target == "cpu" and programs == 2
    assert "masks of" in softmax.reason and "there is room for 117" in softmax.reason


@pytest.mark.slow
@pytest.mark.parametrize(
    ("knobs", "tokens", "reason"),
    [
        ("vector_table = 0", 32, "needs vector_table = 2"),
        ("vector_table = 1", 32, "needs vector_table = 2"),
        ("vector_table = 2\ntmp_depth = 22", 32, "rows are not the places of an image"),
    ],
)
def test_a_softmax_that_the_vector_unit_cannot_compute(
    knobs: str, tokens: int, reason: str, tmp_path: Path
) -> None:
    """Without a table of 16 bits, or without room in tmp, the host computes it: in the same
    integers."""
    hw = tmp_path / "hw.toml"
    hw.write_text(knobs)
    model = softmax_attention(tokens, 2, 32, tokens, 1 / 255, -128, True)
    layers, programs = compare(model, str(hw), varied=False)
    [softmax] = [layer for layer in layers if layer.op == "QTableSoftmax"]
    assert softmax.target == "cpu" and programs == 2
    assert reason in softmax.reason


@pytest.mark.slow
def test_a_softmax_of_scores_that_are_turned(tmp_path: Path) -> None:
    """Of as many queries as keys, whose image has the shape of its transposed: where the same
    scores are weighted along keys and along queries, one softmax is the host's."""
    hw = tmp_path / "hw.toml"
    hw.write_text("vector_table = 2\n")
    net, scale = Net(), 2 * WEIGHT * 32**0.5 / STEPS
    x = net.pair("x", 2 / STEPS, 5)
    q, k = (net.dense(x, 32, 32, scale, zero) for zero in (-3, 4))
    turned = [1, 0]
    scores = net.op("MatMul", q, net.op("Transpose", k, perm=turned))
    scores = net.pair(scores, 0.05, 7)
    mixed = []
    for weights in (scores, net.op("Transpose", scores, perm=turned)):
        share = net.pair(net.op("Softmax", weights, axis=-1), 1 / 255, -128)
        mixed.append(net.pair(net.op("MatMul", share, k), scale, 3))
    y = net.pair(net.op("Add", *mixed), 2 * scale, 1)
    layers, _ = compare(net.model((32, 32), y), str(hw), varied=False)
    targets = [layer.target for layer in layers if layer.op == "QTableSoftmax"]
    assert targets == ["accel", "cpu"]


def normalised_attention(tokens: int, width: int, turned: bool = False) -> onnx.ModelProto:
    """Attention of one head without a softmax, its sum with the dense layer that it reads
    normalised, and a dense layer behind that; or, ``turned``, normalised along tokens."""
    net = Net()
    dense = 2 * WEIGHT * width**0.5 / STEPS
    scored, summed = STEPS * dense**2 * width**0.5, STEPS**2 * dense**3 * width
    q = net.dense(net.pair("x", 2 / STEPS, 5), width, width, dense, -3)
    scores = net.pair(net.op("MatMul", q, net.op("Transpose", q, perm=[1, 0])), scored, 7)
    mixed = net.pair(net.op("MatMul", scores, q), summed, -20)
    shape = net.constant(np.array([1, tokens, width]))
    parts = [net.op("Reshape", part, shape) for part in (mixed, q)]
    total = net.pair(net.op("Add", *parts), summed, 3)
    order = [0, 2, 1]
    rows = net.op("Transpose", total, perm=order) if turned else total
    length = tokens if turned else width
    gain, bias = (net.constant(RNG.standard_normal(length).astype(np.float32)) for _ in "gb")
    normal = net.op("LayerNormalization", rows, gain, bias, axis=-1)
    normal = net.pair(normal, 2 / STEPS, -4)
    back = net.op("Transpose", normal, perm=order) if turned else normal
    flat = net.op("Reshape", back, net.constant(np.array([tokens, width])))
    return net.model((tokens, width), net.dense(flat, width, 24, dense, 0))


@pytest.mark.slow
@pytest.mark.short(2)
@pytest.mark.parametrize(
    ("knobs", "tokens", "width", "turned", "reason"),
    [
        ("vector_table = 2", 32, 48, False, ""),
        ("vector_table = 1", 32, 48, False, "needs vector_table = 2"),
        ("vector_table = 2\nacc_depth = 140", 32, 80, False, "there is room for 64"),
        ("vector_table = 2", 37, 48, False, ""),
        ("vector_table = 2", 24, 40, False, "whole blocks of 16, got 40"),
        ("vector_table = 2", 32, 32, True, "no image of the accelerator"),
    ],
)
def test_a_normalisation_between_matrices(
    knobs: str, tokens: int, width: int, turned: bool, reason: str, tmp_path: Path
) -> None:
    """On the accelerator, in one program with its neighbours; or by the host, in the same integers,
    and the report says why."""
    hw = tmp_path / "hw.toml"
    hw.write_text(knobs)
    layers, programs = compare(normalised_attention(tokens, width, turned), str(hw), varied=False)
    made = [layer for layer in layers if layer.op in ("QLayerNorm", "RowDigits", "QNormalise")]
    if reason:
        [norm] = made
        assert (norm.op, norm.target) == ("QLayerNorm", "cpu") and programs > 1
        assert reason in norm.reason
    else:
        assert [(layer.op, layer.target) for layer in made] == [
            ("RowDigits", "accel"),
            ("QNormalise", "accel"),
        ]
        assert programs == 1


@pytest.mark.slow
def test_a_function_of_two_tensors_is_no_table() -> None:
    """But a product of two, and all of it one program."""
    layers, programs = compare(gated(21, 32, "of another"))
    assert "QMul" in {layer.op for layer in layers if layer.target == "accel"}
    assert programs == 1


@pytest.mark.slow
def test_a_function_of_a_sum_is_no_table() -> None:
    compare(gated(21, 32, "of a sum"))


@pytest.mark.slow
@pytest.mark.parametrize("kind", ["sum with its transposed", "constant for each place"])
def test_images_in_another_order(kind: str) -> None:
    """Scores of as many queries as keys, whose image has the shape of its transposed: neither is
    their sum one of images, nor a constant along places one along channels."""
    net, scale = Net(), 2 * WEIGHT * 32**0.5 / STEPS
    q = net.dense(net.pair("x", 2 / STEPS, 5), 32, 32, scale, -3)
    k = net.op("Transpose", net.dense(q, 32, 32, 30 * scale, 2), perm=[1, 0])
    scores = net.pair(net.op("MatMul", q, k), 6000 * scale**2, 7)
    shape = net.constant(np.array([1, 32, 32]))
    turned = net.op("Transpose", net.op("Reshape", scores, shape), perm=[0, 2, 1])
    second = net.op("Reshape", scores, shape)
    if kind == "constant for each place":
        stored = net.constant(RNG.integers(-128, 128, 32).astype(np.int8))
        quant = net.constant(np.float32(3000 * scale**2)), net.constant(np.int8(4))
        second = net.op("DequantizeLinear", stored, *quant)
    total = net.pair(net.op("Add", turned, second), 7777 * scale**2, -5)
    layers, _ = compare(net.model((32, 32), total))
    assert {
        layer.target for layer in layers if layer.op in ("QAdd", "QAddChannels", "QConvAddChannels")
    } <= {"cpu"}


@pytest.mark.slow
def test_as_many_tokens_as_channels() -> None:
    """Images of values and of keys have one shape; only values are transposed."""
    layers, programs = compare(attention(32, 3, 32))
    assert programs == 1 and [layer.op for layer in layers].count("TransposeGroups") == 1


@pytest.mark.more
@pytest.mark.slow
@settings(max_examples=12)
@given(st.data())
def test_random_attention(data: st.DataObject) -> None:
    """Any number of tokens, heads of any size, with and without what is around products."""
    hw, block = data.draw(st.sampled_from([("4x4", 4), ("8x8", 8), ("16x16", 16)]))
    heads, size = data.draw(st.integers(1, 4)), block // 4 * data.draw(st.integers(1, 9))
    tokens = data.draw(st.integers(2, 40))
    make = data.draw(st.sampled_from([attention, partial(residual, second=None)]))
    layers, programs = compare(make(tokens, heads, size), hw, varied=False)
    # Tiles of weights of the smallest configuration begin with a beat.
    beats = hw != "4x4" or tokens % 2 == size % 2 == 0
    assert not beats or all(layer.target == "accel" for layer in layers if layer.macs)
    # It has no table, with which a residual's scores are divided.
    whole = beats and size % block == 0 and (hw != "4x4" or make is attention)
    assert not whole or programs == 1


@pytest.mark.more
@pytest.mark.slow
def test_the_rtl_takes_the_same_cycles() -> None:
    """A whole attention with biases and a residual, on a small configuration."""
    model = residual(10, 2, 8, 0.01)
    x = RNG.standard_normal((1, 10, 16)).astype(np.float32) * 2
    runs = []
    for target in ("sim", "rtl"):
        module = vdla.compile(model, target, hw="4x4")
        runs.append((module.run(x)[0], module.report["cycles"]))
    (y, cycles), (z, others) = runs
    np.testing.assert_array_equal(y, z)
    assert cycles == others


@pytest.mark.slow
def test_several_sequences() -> None:
    """Their tokens are places of one image, which the host cuts for products."""
    layers, programs = compare(attention(12, 2, 16, leading=(3,)))
    assert programs > 1
    assert all(layer.target == "accel" for layer in layers if layer.macs)


@pytest.mark.slow
def test_heads_that_fill_no_blocks() -> None:
    """Their channels are laid out anew by the host, and all products stay on the accelerator."""
    layers, programs = compare(attention(9, 2, 12))
    assert programs > 1 and "Pad" in {layer.op for layer in layers}
    assert all(layer.target == "accel" for layer in layers if layer.macs)


@pytest.mark.slow
def test_another_configuration() -> None:
    _, programs = compare(attention(21, 2, 16), hw="8x8")
    assert programs == 1
