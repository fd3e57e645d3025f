"""Transformers and functions of several operators through the quantiser."""

from __future__ import annotations

from typing import Any

import numpy as np
import onnx
import pytest
import vdla
from onnx import TensorProto, helper, numpy_helper
from vdla.bench.modern import FloatNet, vit_tiny
from vdla.compiler.frontends.onnx.importer import import_onnx
from vdla.compiler.frontends.sizes import Sizes
from vdla.compiler.graph.interpret import evaluate
from vdla.compiler.graph.ops.integer import QAdd
from vdla.compiler.graph.passes import run_passes
from vdla.compiler.quantize.calibrate import Range
from vdla.compiler.quantize.draft import Draft
from vdla.compiler.quantize.plan import plan
from vdla.compiler.quantize.prepare import prepare
from vdla.compiler.quantize.weights import Scale
from vdla.isa.errors import VdlaError
from vdla.isa.params import HwParams

from .peers import peer


def encoder() -> onnx.ModelProto:
    """One layer of an encoder with 8 tokens, width 32 and two heads."""
    net = FloatNet("encoder")
    x = net.input(1, 8, 32)
    x = net.layer_norm(net.binary("Add", x, net.attention(x, 2)))
    net.output(net.layer_norm(net.binary("Add", x, net.mlp(x, 64))))
    return net.model()


def positioned(*shape: int, tokens: int = 16) -> onnx.ModelProto:
    """Rows of tokens, a constant that is added to them, and attention."""
    net = FloatNet("positioned")
    rows = net.linear(net.input(1, tokens, 32), 32)
    places = np.random.default_rng(4).standard_normal(shape).astype(np.float32)
    x = net.plus(rows, places)
    net.output(net.binary("Add", x, net.attention(x, 2)))
    return net.model()


@pytest.mark.slow
@pytest.mark.short(1)
@pytest.mark.parametrize("shape", [(1, 16, 32), (16, 32)])
def test_positions_are_added_in_integers(shape: tuple[int, ...]) -> None:
    """On the accelerator; the file has them as int8, within half a step."""
    model = positioned(*shape)
    x = np.random.default_rng(5).standard_normal((32, 16, 32)).astype(np.float32)
    made = vdla.quantize(model, x)
    kinds = {row["op"]: row["type"] for row in made.report["layers"]}
    assert kinds.pop("Softmax") == "float32" and {*kinds.values()} == {"int8"}
    onnx.checker.check_model(made.model, full_check=True)
    stored = {i.name: numpy_helper.to_array(i) for i in made.model.graph.initializer}
    (name,) = (name for name, value in stored.items() if value.shape == shape)
    (back,) = (n for n in made.model.graph.node if n.input[0] == name)
    scale, zero = (stored[n].item() for n in back.input[1:])
    (places,) = (a for i in model.graph.initializer
                 if (a := numpy_helper.to_array(i)).shape == shape)  # fmt: skip
    assert back.op_type == "DequantizeLinear" and stored[name].dtype == np.int8
    assert np.abs((stored[name] - float(zero)) * scale - places).max() <= 0.501 * scale
    real, ours = peer(model, x=x[:1]), peer(made.model, x=x[:1])
    assert 10 * np.log10(np.square(real).sum() / np.square(real - ours).sum()) > 30
    module = vdla.compile(made.model, hw=HwParams(vector_table=2))
    y, z = module.run(x[:2])[0], vdla.compile(made.model, "cpu").run(x[:2])[0]
    np.testing.assert_array_equal(y, z)
    assert len(module.compiled.programs) == 1
    sums = [row["target"] for row in module.report["layers"] if row["op"] in ("QAdd", "QConvAdd")]
    assert sums == ["accel", "accel"]


@pytest.mark.more
def test_a_class_token_is_stored_with_the_patches() -> None:
    """A vision transformer has nothing but normalisation and softmax in float32; the number that
    scores are multiplied by is in the weights, and queries, keys and values have zero point 0."""
    model = vit_tiny(12, 4, 32, 2, layers=1)
    x = np.random.default_rng(5).standard_normal((8, 3, 12, 12)).astype(np.float32)
    made = vdla.quantize(model, x)
    rows = {row["op"]: row["type"] for row in made.report["layers"]}
    assert rows["Concat"] == "int8"
    real = {row["op"] for row in made.report["layers"] if row["type"] != "int8"}
    assert real <= {"LayerNormalization", "Softmax", "Reshape", "Slice"}
    nodes = {name: n for n in made.model.graph.node for name in n.output}
    stored = {i.name: numpy_helper.to_array(i) for i in made.model.graph.initializer}
    (softmax,) = (n for n in nodes.values() if n.op_type == "Softmax")
    step = nodes[softmax.input[0]]
    while step.op_type.endswith("Linear"):
        step = nodes[step.input[0]]
    assert step.op_type == "MatMul"
    products = [n for n in nodes.values() if n.op_type == "MatMul"]
    zeros = [stored[nodes[name].input[2]].item() for n in products for name in n.input]
    assert sorted(zeros) == [-128, 0, 0, 0]
    wanted, ours = peer(model, x=x[:1]), peer(made.model, x=x[:1])
    assert 10 * np.log10(np.square(wanted).sum() / np.square(wanted - ours).sum()) > 25


def test_a_range_is_balanced_where_that_widens_it_little() -> None:
    assert Range(-0.9, 1.0).balanced(1.25) == Range(-128 / 127, 1.0)
    assert Range(-1.0, 0.7).balanced(1.25) == Range(-128 / 127, 1.0)
    assert Range(-0.5, 1.0).balanced(1.25) == Range(-0.5, 1.0)
    assert Range(0.0, 1.0).balanced(1.25) == Range(0.0, 1.0)
    for span in (Range(-0.9, 1.0), Range(-1.0, 0.7)):
        assert Scale.of(span.balanced(1.25)).zero_point == 0


@pytest.mark.parametrize(("kind", "number"), [("Mul", 0.3), ("Div", 4.0)])
def test_a_number_goes_into_weights(kind: str, number: float) -> None:
    """Unless something else reads the scores; the float function stays the same."""
    for is_read in (False, True):
        net = FloatNet("scaled")
        x = net.input(1, 4, 8)
        scores = net.matmul(net.linear(x, 8), net.transpose(net.linear(x, 8), 0, 2, 1))
        scaled = net._node(kind, [scores, net.number(number)], (1, 4, 4))
        net.output(net.binary("Add", scaled, scores) if is_read else scaled)
        model = net.model()
        draft = Draft.load(model)
        prepare(draft)
        assert (kind in {node.op_type for node in draft.nodes}) == is_read
        given = np.random.default_rng(2).standard_normal((1, 4, 8)).astype(np.float32)
        name = model.graph.input[0].name
        before, after = (peer(m, **{name: given}) for m in (model, draft.finish()))
        np.testing.assert_allclose(after, before, rtol=1e-5, atol=1e-5)


@pytest.mark.parametrize("width", [8, 1])
def test_a_factor_for_each_channel_goes_into_the_weights(width: int) -> None:
    """And into the bias; one number for all stays, where no product of activations is behind it.
    The float function stays the same."""
    net = FloatNet("scaled")
    net.output(net.times(net.linear(net.input(1, 4, 8), 8), net.random("scale", width)))
    model = net.model()
    draft = Draft.load(model)
    prepare(draft)
    assert ("Mul" in {node.op_type for node in draft.nodes}) == (width == 1)
    given = np.random.default_rng(2).standard_normal((1, 4, 8)).astype(np.float32)
    name = model.graph.input[0].name
    before, after = (peer(m, **{name: given}) for m in (model, draft.finish()))
    np.testing.assert_allclose(after, before, rtol=1e-5, atol=1e-5)


def test_positions_of_a_batch() -> None:
    """They are repeated for each image; one number for each channel stays float32."""
    rng = np.random.default_rng(7)
    make = helper.make_node
    nodes = [make("MatMul", ["x", "w"], ["a"], "a"), make("Add", ["a", "places"], ["b"], "b"),
             make("MatMul", ["b", "v"], ["y"], "y")]  # fmt: skip
    constants = {n: rng.standard_normal(s).astype(np.float32)
                 for n, s in (("w", (6, 5)), ("places", (4, 5)), ("v", (5, 6)))}  # fmt: skip
    x = rng.standard_normal((16, 4, 6)).astype(np.float32)
    made = vdla.quantize(_model(nodes, constants, ["N", 4, 6]), x)
    together, alone = (run_passes(import_onnx(made.model, Sizes(n))) for n in (16, 1))
    for graph in (together, alone):
        assert sum(isinstance(node.op, QAdd) for node in graph.nodes) == 1
    ours = evaluate(together, {"x": x})[together.outputs[0]]
    apart = [evaluate(alone, {"x": image[None]})[alone.outputs[0]] for image in x]
    np.testing.assert_array_equal(ours, np.concatenate(apart))
    step = next(row["scale"] for row in made.report["layers"] if row["name"] == "y")
    assert np.abs(ours - peer(made.model, x=x)).max() <= 1.01 * step


@pytest.mark.parametrize(
    ("shape", "tokens"), [((32,), 16), ((1, 1, 32), 16), ((1, 16, 1), 16), ((32,), 1)]
)
def test_other_addends_are_not_rounded(shape: tuple[int, ...], tokens: int) -> None:
    draft = Draft.load(positioned(*shape, tokens=tokens))
    prepare(draft)
    places = next(i for i, node in enumerate(draft.nodes) if node.op_type == "Add")
    assert "is a constant" in plan(draft).reasons[places]


@pytest.mark.slow
@pytest.mark.short(1)
@pytest.mark.parametrize("scaled", [False, True])
@pytest.mark.parametrize("hidden", [-1e9, -np.inf])
def test_masks_are_not_rounded(hidden: float, scaled: bool) -> None:
    """Their range would leave no levels for the scores."""
    mask = np.triu(np.full((16, 16), hidden, np.float32), 1)
    net = FloatNet("masked")
    rows = net.linear(net.input(1, 16, 32), 32)
    scores = net.plus(net.matmul(rows, net.transpose(rows, 0, 2, 1)), mask[None])
    scores = net.scaled(scores, 0.25) if scaled else scores
    net.output(net.matmul(net.softmax(scores), rows))
    model = net.model()
    x = 0.3 * np.random.default_rng(5).standard_normal((16, 16, 32)).astype(np.float32)
    made = vdla.quantize(model, x)
    assert made.report["outputs"][model.graph.output[0].name]["sqnr_db"] > 30


def test_masks_that_are_computed_are_not_rounded() -> None:
    """Of one head, whose scores have the shape of the mask."""
    net = FloatNet("masked")
    rows = net.linear(net.input(1, 16, 32), 32)
    scores = net.matmul(rows, net.transpose(rows, 0, 2, 1))
    values = net.constant("seen", np.float32(0)), net.constant("hidden", np.float32(-1e9))
    seen = net.binary("Less", scores, net.transpose(scores, 0, 2, 1))
    mask = net._node("Where", [seen, *values], net.shapes[scores])
    net.output(net.matmul(net.softmax(net.binary("Add", scores, mask)), rows))
    draft = Draft.load(net.model())
    prepare(draft)
    reasons = plan(draft).reasons
    [added] = [i for i, node in enumerate(draft.nodes) if mask in node.input]
    assert reasons[added] == "a mask that is computed"


@pytest.mark.slow
def test_a_bias_of_scores_is_added_in_integers() -> None:
    """As in T5, whose scores are added numbers of their distance: on the accelerator."""
    net = FloatNet("biased")
    x = net.input(1, 16, 32)
    bias = np.random.default_rng(2).normal(0, 3, (1, 2, 16, 16)).astype(np.float32)
    net.output(net.binary("Add", net.linear(x, 32), net.attention(x, 2, bias)))
    x = np.random.default_rng(5).standard_normal((8, 16, 32)).astype(np.float32)
    made = vdla.quantize(net.model(), x)
    assert {row["op"] for row in made.report["layers"] if row["type"] != "int8"} == {"Softmax"}
    assert next(iter(made.report["outputs"].values()))["sqnr_db"] > 28
    module = vdla.compile(made.model)
    y, z = module.run(x[:1])[0], vdla.compile(made.model, "cpu").run(x[:1])[0]
    np.testing.assert_array_equal(y, z)
    assert len(module.compiled.programs) == 1
    assert [row["target"] for row in module.report["layers"] if row["op"] == "QAdd"] == ["accel"]


@pytest.mark.slow
def test_a_norm_between_norms_is_int8() -> None:
    """As behind SegFormer's patches; one whose result leaves the model keeps its precision."""
    net = FloatNet("norms")
    x = net.layer_norm(net.linear(net.input(1, 16, 32), 32))
    net.output(net.layer_norm(net.binary("Add", x, net.attention(net.layer_norm(x), 2))))
    x = np.random.default_rng(5).standard_normal((8, 16, 32)).astype(np.float32)
    made = vdla.quantize(net.model(), x)
    kinds = [row["type"] for row in made.report["layers"] if row["op"] == "LayerNormalization"]
    assert kinds == ["int8", "int8", "float32"]
    module = vdla.compile(made.model)
    y, z = module.run(x[:1])[0], vdla.compile(made.model, "cpu").run(x[:1])[0]
    np.testing.assert_array_equal(y, z)
    assert len(module.compiled.programs) == 1


@pytest.mark.slow
def test_a_norm_in_steps_stays_whole() -> None:
    """RMS normalisation as PyTorch writes it out: no step is rounded to int8, not even the square,
    which is a function of one tensor; the accelerator computes it."""
    net = FloatNet("rms")
    x = net.linear(net.input(1, 16, 32), 32)
    squares = net.binary("Mul", x, x)
    mean = net._node("ReduceMean", [squares, net.constant("axis", np.array([2]))], (1, 16, 1))
    root = net.unary("Sqrt", net.plus(mean, np.array(1e-5, np.float32)))
    normal = net._node("Mul", [x, net.unary("Reciprocal", root)], (1, 16, 32))
    normal = net._node("Mul", [normal, net.random("gain", 32)], (1, 16, 32))
    net.output(net.binary("Add", x, net.attention(normal, 2)))
    x = np.random.default_rng(5).standard_normal((8, 16, 32)).astype(np.float32)
    made = vdla.quantize(net.model(), x)
    kept = {row["op"] for row in made.report["layers"] if row["type"] != "int8"}
    assert kept == {"Mul", "ReduceMean", "Add+Sqrt+Reciprocal", "Reshape", "Softmax"}
    module = vdla.compile(made.model)
    y, z = module.run(x[:1])[0], vdla.compile(made.model, "cpu").run(x[:1])[0]
    np.testing.assert_array_equal(y, z)
    assert len(module.compiled.programs) == 1
    assert "QNormalise" in {row["op"] for row in module.report["layers"]}


def layers(count: int) -> tuple[onnx.ModelProto, list[str]]:
    """Sums that each of so many layers adds to, and their names."""
    net = FloatNet("stream")
    x, names = net.linear(net.input(1, 16, 32), 32), []
    for _ in range(count):
        x = net.binary("Add", x, net.mlp(net.layer_norm(x), 64))
        names.append(x)
    net.output(net.linear(net.layer_norm(x), 32))
    return net.model(), names


def test_wide_tensors() -> None:
    """Sums of two bytes: one program, as near to the float model as what ONNX Runtime makes of the
    file, and nearer than int8."""
    model, names = layers(8)
    x = np.random.default_rng(5).standard_normal((8, 16, 32)).astype(np.float32)
    wanted, found = peer(model, x=x[:1]), {}
    for wide in ((), names):
        made = vdla.quantize(model, x, wide=wide)
        module = vdla.compile(made.model, hw=HwParams(vector_table=2))
        y, z = module.run(x[:1])[0], vdla.compile(made.model, "cpu").run(x[:1])[0]
        np.testing.assert_array_equal(y, z)
        assert len(module.compiled.programs) == 1
        rows = module.report["layers"]
        assert {row["target"] for row in rows if row["op"] in ("QAdd", "QNormalise")} == {"accel"}
        theirs = peer(made.model, x=x[:1])
        found[len(wide)] = [np.square(z - wanted).mean() for z in (y, theirs)]
    assert max(found[8]) < 0.9 * min(found[0])
    assert found[8][0] < 1.1 * found[8][1]
    with pytest.raises(VdlaError, match="wide: expected tensors of the model, got 'x9'"):
        vdla.quantize(model, x, wide=["x9"])


def test_a_normalised_wide_tensor_leaves_the_model() -> None:
    """Along two axes, too, where no integer form exists."""
    rng = np.random.default_rng(5)
    for axis, gain in ((-1, (32,)), (1, (16, 32))):
        nodes = [
            helper.make_node("MatMul", ["x", "w"], ["a"]),
            helper.make_node("MatMul", ["a", "w"], ["b"]),
            helper.make_node("Add", ["a", "b"], ["c"]),
            helper.make_node("RMSNormalization", ["c", "g"], ["y"], axis=axis),
        ]
        numbers = {"w": (32, 32), "g": gain}
        constants = [
            numpy_helper.from_array(rng.standard_normal(shape).astype(np.float32), name)
            for name, shape in numbers.items()
        ]
        ends = [
            [helper.make_tensor_value_info(name, TensorProto.FLOAT, (1, 16, 32))] for name in "xy"
        ]
        graph = helper.make_graph(nodes, "norm", *ends, constants)
        model = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 23)], ir_version=11)
        x = rng.standard_normal((8, 16, 32)).astype(np.float32)
        made = vdla.quantize(model, x, wide=["c"]).model
        wanted, theirs = peer(model, x=x[:1]), peer(made, x=x[:1])
        assert 10 * np.log10(np.square(wanted).sum() / np.square(wanted - theirs).sum()) > 30
        [y] = vdla.compile(made, "cpu").run(x[:1])
        step = np.abs(wanted).max() / 100
        assert np.abs(y - theirs).max() < step and (y == theirs).mean() > 0.97


@pytest.mark.more
def test_an_encoder_is_quantised() -> None:
    """All products and GELU are int8: of activations, of all tokens by a weight, with its bias. The
    number that scores are multiplied by is in weights."""
    model = encoder()
    x = np.random.default_rng(1).standard_normal((16, 8, 32)).astype(np.float32)
    made = vdla.quantize(model, x)
    rows = made.report["layers"]
    kinds = [row["op"] for row in rows if row["type"] == "int8"]
    assert kinds.count("Gemm") == 6 and kinds.count("MatMul") == 2
    assert kinds.count("Div+Erf+Add+Mul+Mul") == 1 and "Mul" not in kinds
    assert {row["op"] for row in rows if row["type"] != "int8"} == {
        "LayerNormalization",  # whose result leaves the model
        "Softmax",
    }
    (output,) = made.report["outputs"].values()
    assert output["sqnr_db"] > 35
    real, ours = peer(model, x=x[:1]), peer(made.model, x=x[:1])
    assert 10 * np.log10(np.square(real).sum() / np.square(real - ours).sum()) > 33
    y, z = (vdla.compile(made.model, target).run(x[:1])[0] for target in ("sim", "cpu"))
    np.testing.assert_array_equal(y, z)
    module = vdla.compile(made.model)
    module.run(x[:1])
    coverage = module.report["coverage"]
    assert coverage["macs_on_accelerator"] == coverage["macs_total"] > 0


def test_rows_of_tokens_keep_the_meaning() -> None:
    """Also of a batch of another size than the model's first dimension says."""
    rng = np.random.default_rng(2)
    make = helper.make_node
    nodes = [
        make("MatMul", ["x", "w"], ["a"], "a"),
        make("Add", ["bias", "a"], ["b"], "b"),
        make("MatMul", ["x", "v"], ["c"], "c"),  # read twice: its addend stays
        make("Add", ["c", "bias"], ["d"], "d"),
        make("Mul", ["c", "d"], ["e"], "e"),
        make("Concat", ["b", "e"], ["y"], "y", axis=2),
    ]
    constants = {n: rng.standard_normal(s).astype(np.float32)
                 for n, s in (("w", (6, 5)), ("v", (6, 5)), ("bias", (5,)))}  # fmt: skip
    model = _model(nodes, constants, ["N", 4, 6])
    draft = Draft.load(model)
    prepare(draft)
    kinds = [node.op_type for node in draft.nodes]
    assert kinds.count("Gemm") == 2 and kinds.count("Add") == 1 and "MatMul" not in kinds
    assert kinds.count("Reshape") == 3  # both products read the same rows
    x = rng.standard_normal((3, 4, 6)).astype(np.float32)
    np.testing.assert_allclose(peer(draft.finish(), x=x), peer(model, x=x), rtol=1e-5, atol=1e-5)


@pytest.mark.fast(1)
@pytest.mark.parametrize(
    ("steps", "expected"),
    [
        ("s=Sigmoid(h) y=Mul(h,s)", [["Sigmoid", "Mul"]]),
        ("a=Add(h,three) c=Clip(a,zero,six) m=Mul(h,c) y=Div(m,six)",
         [["Add", "Clip", "Mul", "Div"]]),
        ("t=Tanh(h) y=Sigmoid(t)", [["Tanh", "Sigmoid"]]),
        ("t=Tanh(h) s=Sigmoid(t) g=GlobalAveragePool(t) y=Mul(s,g)", [["Tanh"], ["Sigmoid"]]),
        ("y=Mul(h,x)", []),  # of two tensors
        ("y=Mul(h,row)", []),  # by a number for each place
        ("y=Div(h,six)", [["Div"]]),
    ],
)  # fmt: skip
def test_functions_of_one_tensor(steps: str, expected: list[list[str]]) -> None:
    """Nothing between the steps of a function is quantised; each function is one operator."""
    rng = np.random.default_rng(3)
    nodes = [helper.make_node("Conv", ["x", "w"], ["h"], "h")]
    for step in steps.split():
        name, _, call = step.partition("=")
        kind, _, names = call.rstrip(")").partition("(")
        nodes.append(helper.make_node(kind, names.split(","), [name], name))
    constants = {n: np.float32(v) for n, v in (("zero", 0), ("three", 3), ("six", 6))}
    constants |= {"w": rng.standard_normal((3, 3, 1, 1)).astype(np.float32)}
    constants |= {"row": rng.standard_normal((1, 1, 1, 4)).astype(np.float32)}
    model = _model(nodes, constants, ["N", 3, 4, 4])
    draft = Draft.load(model)
    prepare(draft)
    made = plan(draft)
    heads = [i for i in sorted(made.functions) if i not in made.merged]
    found = [[draft.nodes[p].op_type for p in made.chain(i)] for i in heads]
    assert found == expected
    x = rng.standard_normal((8, 3, 4, 4)).astype(np.float32)
    quantised = vdla.quantize(model, x)
    assert sum(node.op_type == "QuantizeLinear" for node in quantised.model.graph.node) == len(
        {*made.groups}
    )
    real, ours = peer(model, x=x), peer(quantised.model, x=x)
    np.testing.assert_allclose(ours, real, atol=0.03 * np.abs(real).max())


def _model(nodes: list[Any], constants: dict[str, Any], shape: list[Any]) -> onnx.ModelProto:
    stored = [numpy_helper.from_array(np.asarray(v), n) for n, v in constants.items()]
    x = helper.make_tensor_value_info("x", TensorProto.FLOAT, shape)
    y = helper.make_tensor_value_info("y", TensorProto.FLOAT, None)
    graph = helper.make_graph(nodes, "test", [x], [y], stored)
    return helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=8)
