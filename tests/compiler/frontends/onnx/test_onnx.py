"""Bad models give one clear line; opsets, batches and constants are read right."""

from __future__ import annotations

import random
import warnings
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import pytest
from onnx import TensorProto, helper, numpy_helper
from onnx.backend.test.case.node import collect_testcases
from vdla.compiler.frontends.onnx.importer import import_onnx
from vdla.compiler.frontends.onnx.ops import READERS
from vdla.compiler.frontends.sizes import Sizes
from vdla.compiler.graph.interpret import interpret
from vdla.compiler.graph.ops.pooling import AvgPool
from vdla.compiler.graph.ops.quantisation import Quantize
from vdla.compiler.graph.passes import run_passes
from vdla.isa.errors import VdlaError


def refused(source: Any, **options: Any) -> str:
    """The one line with which the import refuses."""
    with pytest.raises(VdlaError) as caught:
        import_onnx(source, **options)
    message = str(caught.value)
    assert "\n" not in message
    return message


Break = tuple[str, Callable[[Any], Any], str]

NODES: list[Break] = [
    (
        "operator",
        lambda b: b.node("ImageDecoder", ["x"], "y"),
        "node 'y_node': operator 'ImageDecoder' is not supported; of the ",
    ),
    (
        "domain",
        lambda b: b.node("Relu", ["x"], "y", domain="com.acme"),
        "operator 'com.acme.Relu' is not supported",
    ),
    ("undefined", lambda b: b.node("Relu", ["z"], "y"), "node 'y_node' (Relu): reads 'z', which"),
    ("twice", lambda b: b.node("Relu", ["x"], "x"), "tensor 'x' is defined twice"),
    (
        "rank",
        lambda b: b.node("MaxPool", ["v"], "y", kernel_shape=[2]),
        "expected [N, C, D1, ...], got float32[1,3]",
    ),
    (
        "conv1d",
        lambda b: b.node("Conv", ["v", b.constant("w", np.ones((1, 3, 1), np.float32))], "y"),
        "(Conv): expected [N, C, D1, ...], got float32[1,3]",
    ),
    (
        "channels",
        lambda b: b.node("Conv", ["x", b.constant("w", np.ones((1, 9, 1, 1), np.float32))], "y"),
        "node 'y_node': Conv2d expects channels that divide into 1 groups",
    ),
    (
        "kernel",
        lambda b: b.node("MaxPool", ["x"], "y", kernel_shape=[9, 9]),
        "node 'y_node': MaxPool expects an image that holds the window [9, 9], got x: float32",
    ),
    (
        "kernel_rank",
        lambda b: b.node("MaxPool", ["x"], "y", kernel_shape=[2, 2, 2]),
        "expected 2 integers in kernel_shape, got [2, 2, 2]",
    ),
    (
        "stride",
        lambda b: b.node("MaxPool", ["x"], "y", kernel_shape=[2, 2], strides=[0, 1]),
        "expected strides >= 1, got (0, 1)",
    ),
    (
        "gemm",
        lambda b: b.node("Gemm", ["x", b.constant("w", np.ones((3, 2), np.float32))], "y"),
        "node 'y_node' (Gemm): expected two matrices, got float32[1,3,8,8]",
    ),
    (
        "matmul",
        lambda b: b.node("MatMul", ["v", b.constant("w", np.ones((4, 2), np.float32))], "y"),
        "Dense expects a matrix and a weight matrix of its width, got v: float32[1,3], w:",
    ),
    (
        "broadcast",
        lambda b: b.node("Add", ["v", b.constant("w", np.ones(2, np.float32))], "y"),
        "Add expects shapes that broadcast",
    ),
    (
        "reshape",
        lambda b: b.node("Reshape", ["v", b.constant("s", np.array([-1, 2], np.int64))], "y"),
        "Reshape expects as many elements as",
    ),
    (
        "computed_shape",
        lambda b: b.node("Reshape", ["v", "v"], "y"),
        "expected a constant shape, got the computed tensor 'v'",
    ),
    (
        "scale",
        lambda b: b.scaled("QuantizeLinear", "v", "y", -1.0, np.array(0, np.int8)),
        "expected positive finite scales",
    ),
    (
        "zero_type",
        lambda b: b.scaled("QuantizeLinear", "v", "y", 1.0, np.array(0, np.float16)),
        "node 'y_node' (QuantizeLinear): expected operands that ONNX says it has: y_zero_point ",
    ),
    (
        "channels_of_scale",
        lambda b: b.scaled("QuantizeLinear", "v", "y", [1.0, 2.0], np.zeros(2, np.int8)),
        "node 'y_node': Quantize expects 3 scales and zero points, not 2 scales and 2 zero points",
    ),
    (
        "dequantize_float",
        lambda b: b.scaled("DequantizeLinear", "v", "y", 1.0, np.array(0, np.int8)),
        "(DequantizeLinear): expected integers, got float32[1,3]",
    ),
    (
        "type",
        lambda b: b.constant("h", np.ones(2, np.complex64)),
        "constant 'h' has type complex64, supported are float32, float64, int8,",
    ),
    (
        "bias",
        lambda b: b.node("Gemm", ["v", "v", "x"], "y", transA=1, alpha=0.5),
        "node 'y_node' (Gemm): expected shapes that broadcast",
    ),
    (
        "activation",
        lambda b: b.node(
            "RNN",
            [*(b.constant(n, np.ones((1, 3, 3), np.float32)) for n in "wrs")],
            "y",
            activations=["Swish"],
        ),
        "node 'y_node' (RNN): activation 'Swish' is not supported",
    ),
    (
        "steps",
        lambda b: b.node(
            "GRU",
            [
                b.constant("s", np.ones((1001, 1, 1), np.float32)),
                *(b.constant(n, np.ones((1, 3, 1), np.float32)) for n in "wr"),
            ],
            "y",
        ),
        "node 'y_node' (GRU): is unrolled in time: expected 1..1000 steps, got 1001",
    ),
    (
        "size",
        lambda b: b.node("Expand", ["v", b.constant("s", np.array([1 << 40, 3]))], "y"),
        "(Expand): expected a tensor of at most 134217728 elements, got [1099511627776, 3]",
    ),
    (
        "gather",
        lambda b: b.node("Gather", ["v", b.constant("i", np.array([1, -2]))], "y"),
        "(Gather): indices reach beyond axis 0 of float32[1,3]",
    ),
    (
        "split",
        lambda b: b.node("Split", ["v"], "y", axis=1, split=[2, 2]),
        "(Split): cannot split size 3 into [2, 2]",
    ),
    (
        "padding",
        lambda b: b.node("MaxPool", ["x"], "y", kernel_shape=[2, 2], pads=[2, 0, 0, 0]),
        "expected padding smaller than the window (2, 2), got (2, 0, 0, 0)",
    ),
    ("missing", lambda b: b.node("Add", ["x"], "y"), "node 'y_node' (Add): input 1 is missing"),
]


@pytest.mark.parametrize(("make", "message"), [n[1:] for n in NODES], ids=[n[0] for n in NODES])
def test_bad_nodes_are_named(make: Callable[[Any], Any], message: str, builder: Any) -> None:
    builder.input("x", [1, 3, 8, 8])
    builder.input("v", [1, 3])
    make(builder)
    builder.node("Relu", ["v"], "fine")
    assert message in refused(builder.model(["fine"]))


def relu(b: Any, shape: list[int | str], **options: Any) -> onnx.ModelProto:
    return b.model([b.node("Relu", [b.input("x", shape)], "y")], **options)


NEWEST = onnx.defs.onnx_opset_version()


@pytest.mark.parametrize("opset", [0, NEWEST + 1])
def test_other_opsets_are_refused(opset: int, builder: Any) -> None:
    message = refused(relu(builder, [1, 3], opset=opset))
    assert message.endswith(f"expected opset 1 to {NEWEST}, got {opset}")


@pytest.mark.parametrize("opset", range(7, NEWEST + 1))
def test_supported_opsets(opset: int, builder: Any) -> None:
    (y,) = interpret(import_onnx(relu(builder, [1, 3], opset=opset)), np.float32([[-1, 0, 2]]))
    assert y.tolist() == [[0, 0, 2]]


def test_symbolic_dimensions(builder: Any) -> None:
    model = relu(builder, ["N", 3])
    assert import_onnx(model)["y"].shape == (1, 3)
    assert import_onnx(model, Sizes(5))["y"].shape == (5, 3)
    with pytest.raises(VdlaError, match="a batch of at least 1, got 0"):
        Sizes(0)


def test_missing_output(builder: Any) -> None:
    builder.input("x", [1])
    builder.node("Relu", ["x"], "y")
    assert "output 'z' is not computed" in refused(builder.model(["z"]))
    assert "expected a model with outputs" in refused(builder.model([]))


def test_unreadable_files(tmp_path: Path) -> None:
    missing = tmp_path / "missing.onnx"
    assert refused(missing) == f"{missing}: cannot read: No such file or directory"
    empty = tmp_path / "empty.onnx"
    empty.write_bytes(b"")
    assert "expected a model, got an empty file" in refused(empty)
    empty.write_bytes(b"\x08\x08")
    assert "got none (is it truncated?)" in refused(empty)
    text = tmp_path / "text.onnx"
    text.write_text("this is not a model")
    assert str(text) in refused(text)


def test_every_truncation_is_refused(models: Path) -> None:
    data = (models / "digits_int8.onnx").read_bytes()
    import_onnx(data)
    for size in [*range(200), *range(200, len(data), 97), len(data) - 1]:
        refused(data[:size])


@pytest.mark.slow
def test_random_damage_gives_a_graph_or_one_line(models: Path) -> None:
    data = (models / "digits_int8.onnx").read_bytes()
    rng = random.Random(5)
    outcomes = {"read": 0, "refused": 0}
    for _ in range(400):
        damaged = bytearray(data)
        for _ in range(rng.randint(1, 8)):
            damaged[rng.randrange(len(damaged))] = rng.randrange(256)
        try:
            run_passes(import_onnx(bytes(damaged)))
            outcomes["read"] += 1
        except VdlaError as error:
            assert "\n" not in str(error)
            outcomes["refused"] += 1
    assert min(outcomes.values()) > 10, outcomes


def damaged(model: onnx.ModelProto, rng: random.Random) -> onnx.ModelProto:
    """A model whose nodes lack or change an attribute, an operand or the operator itself."""
    copy = onnx.ModelProto()
    copy.CopyFrom(model)
    node = rng.choice(copy.graph.node)
    match rng.randrange(5):
        case 0 if node.attribute:
            node.attribute.remove(rng.choice(node.attribute))
        case 1 if node.attribute:
            name = node.attribute.pop().name
            values: list[Any] = [-1, 2**40, 1.5, "s", [1, 2], [-3], [1.5], ["a"]]
            node.attribute.append(helper.make_attribute(name, rng.choice(values)))
        case 2 if node.input:
            node.input.pop()
        case 3 if node.input:
            node.input[rng.randrange(len(node.input))] = rng.choice([*node.input, ""])
        case _:
            node.op_type = rng.choice([*READERS])
    return copy


@pytest.mark.more
@pytest.mark.slow
def test_damaged_nodes_give_a_graph_or_one_line() -> None:
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # of the NumPy code that computes the expected values
        cases = [
            case for case in collect_testcases(None)
            if {node.op_type for node in case.model.graph.node} <= {*READERS}
        ]  # fmt: skip
    rng = random.Random(9)
    outcomes = {"read": 0, "refused": 0}
    for _ in range(1000):
        case = rng.choice(cases)
        inputs = zip(case.model.graph.input, case.data_sets[0][0], strict=True)
        values = {v.name: a for v, a in inputs if getattr(a, "dtype", None) == np.int64}
        try:
            run_passes(import_onnx(damaged(case.model, rng), Sizes(values=values)))
            outcomes["read"] += 1
        except VdlaError as error:
            assert "\n" not in str(error)
            outcomes["refused"] += 1
    assert min(outcomes.values()) > 100, outcomes


def test_damaged_constant(models: Path) -> None:
    model = onnx.load_model(str(models / "digits_int8.onnx"))
    weight = next(i for i in model.graph.initializer if i.name == "down.weight_quantized")
    weight.raw_data = weight.raw_data[:-1]
    assert "constant 'down.weight_quantized' is damaged" in refused(model)


def test_constant_nodes_and_defaults(builder: Any) -> None:
    builder.input("x", [1, 2, 4, 6])
    builder.nodes.append(helper.make_node("Constant", [], ["scale"], value_float=0.5))
    builder.node("GlobalAveragePool", ["x"], "mean")
    builder.node("QuantizeLinear", ["mean", "scale"], "q")
    builder.node("DequantizeLinear", ["q", "scale"], "y")
    graph = import_onnx(builder.model(["y"]))
    mean, quantize, _ = (node.op for node in graph.nodes)
    assert isinstance(mean, AvgPool) and mean.kernel == (4, 6)
    assert isinstance(quantize, Quantize) and quantize.quant.dtype == "uint8"


def test_interpreter_names_a_wrong_input(models: Path) -> None:
    graph = import_onnx(models / "digits_int8.onnx")
    with pytest.raises(VdlaError, match=r"input 'image' expects float32\[1,1,8,8\], got float64"):
        interpret(graph, np.zeros((1, 1, 8, 8)))
    with pytest.raises(VdlaError, match="expected 1 inputs, got 0"):
        interpret(graph)


def test_constant_in_another_file_is_refused_without_a_folder(builder: Any) -> None:
    model = relu(builder, [1, 3])
    stored = numpy_helper.from_array(np.ones(3, np.float32), "w")
    stored.data_location = TensorProto.EXTERNAL
    stored.external_data.add(key="location", value="/etc/passwd")
    model.graph.initializer.append(stored)
    assert "constant 'w' lies in another file" in refused(model)
    assert "constant 'w' lies in another file" in refused(model.SerializeToString())


def test_large_results_of_constants_are_not_folded(builder: Any) -> None:
    """4 bytes become 128 MiB only when the model runs."""
    shape = builder.constant("shape", np.array([1 << 12, 1 << 13]))
    one = builder.constant("one", np.ones((1, 1), np.float32))
    spread = builder.node("Tile", [one, shape], "t")
    builder.input("x", [1, 1])
    graph = run_passes(import_onnx(builder.model([builder.node("Add", [spread, "x"], "y")])))
    assert not graph["t"].is_constant
    assert sum(t.data.nbytes for t in graph.tensors.values() if t.data is not None) < 100
