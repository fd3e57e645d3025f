"""If, Loop and Scan, and tensors of half types: on the CPU and in the interpreter."""

from __future__ import annotations

import numpy as np
import onnx
import onnxruntime
import pytest
from onnx import TensorProto, helper, parser
from vdla.compiler.frontends.onnx.importer import import_onnx
from vdla.compiler.graph.interpret import interpret
from vdla.compiler.graph.passes import run_passes
from vdla.compiler.onnx_backend import prepare
from vdla.compiler.targets.cpu.graph_code import build_cpu
from vdla.isa.errors import VdlaError

HEADER = '<ir_version: 9, opset_import: ["" : 19]>\n'
#: Each as ONNX's text, and whether it can be compiled without the values of its inputs.
MODELS = {
    "choice": ("""main (float[2,3] x, bool c) => (float[2,3] y) {
        y = If (c) <
            then_branch = one () => (float[2,3] a) { a = Add (x, x) },
            else_branch = two () => (float[2,3] b) { b = Neg (x) }
        > }""", True),
    "known_branch": ("""main (float[2,3] x) => (float[3] y) {
        c = Constant <value = bool {0}> ()
        y = If (c) <
            then_branch = one () => (float[2,3] a) { a = Add (x, x) },
            else_branch = two () => (float[3] b) {
                n = Constant <value = int64[1] {0}> ()
                b = ReduceSum <keepdims = 0> (x, n) }
        > }""", True),
    "loop": ("""main (float[3] x) => (float[3] y, float[4,3] rows) {
        n = Constant <value = int64 {4}> ()
        c = Constant <value = bool {1}> ()
        y, rows = Loop (n, c, x) <
            body = step (int64 i, bool go, float[3] v) => (bool go2, float[3] w, float[3] r) {
                go2 = Identity (go)
                f = Cast <to = 1> (i)
                s = Add (v, f)
                w = Mul (s, x)
                r = Sub (w, v) }
        > }""", True),
    "until": ("""main (float[3] x) => (int64 y) {
        zero = Constant <value = int64 {0}> ()
        y = Loop ("", "", zero) <
            body = step (int64 i, bool go, int64 v) => (bool go2, int64 w) {
                one = Constant <value = int64 {1}> ()
                five = Constant <value = int64 {5}> ()
                w = Add (v, one)
                go2 = Less (w, five) }
        > }""", True),
    "scan": ("""main (float[2] s, float[5,2] x) => (float[2] y, float[5,2] rows) {
        y, rows = Scan <num_scan_inputs = 1, scan_input_directions = [1],
            body = step (float[2] v, float[2] e) => (float[2] w, float[2] r) {
                w = Add (v, e)
                r = Mul (w, v) }
        > (s, x) }""", True),
    "nested": ("""main (float[3] x) => (float[3] y) {
        n = Constant <value = int64 {3}> ()
        y = Loop (n, "", x) <
            body = step (int64 i, bool go, float[3] v) => (bool go2, float[3] w) {
                go2 = Identity (go)
                one = Constant <value = int64 {1}> ()
                last = Equal (i, one)
                w = If (last) <
                    then_branch = a () => (float[3] p) { p = Mul (v, x) },
                    else_branch = b () => (float[3] q) { q = Add (v, x) }
                > }
        > }""", True),
}  # fmt: skip


def model_of(text: str) -> onnx.ModelProto:
    return parser.parse_model(HEADER + text)


@pytest.mark.parametrize("name", MODELS)
def test_subgraphs_are_what_onnx_runtime_computes(name: str) -> None:
    model = model_of(MODELS[name][0])
    rng = np.random.default_rng(1)
    graph = import_onnx(model)
    session = onnxruntime.InferenceSession(model.SerializeToString())
    compiled = build_cpu(run_passes(graph))
    for truth in (False, True):
        given = {
            value.name: np.array(truth) if value.name == "c" else rng.normal(
                size=[d.dim_value for d in value.type.tensor_type.shape.dim]
            ).astype(np.float32)
            for value in model.graph.input
        }  # fmt: skip
        wanted = session.run(None, given)
        inputs = [given[n] for n in graph.inputs]
        for made in (interpret(graph, *inputs), compiled.run(*inputs)):
            for y, value in zip(made, wanted, strict=True):
                np.testing.assert_allclose(y, value, 1e-6)


REFUSED = {
    "branches of two shapes": ("""main (float[2,3] x, bool c) => (float[N] y) {
        y = If (c) <
            then_branch = one () => (float[2,3] a) { a = Add (x, x) },
            else_branch = two () => (float[3] b) {
                n = Constant <value = int64[1] {0}> ()
                b = ReduceSum <keepdims = 0> (x, n) }
        > }""", "because the branches have different types"),
    "unknown steps": ("""main (float[3] x, int64 n) => (float[3] y) {
        y = Loop (n, "", x) <
            body = step (int64 i, bool go, float[3] v) => (bool go2, float[3] w) {
                go2 = Identity (go)
                w = Add (v, x) }
        > }""", "expected a constant number of steps, got the computed tensor 'n'"),
    "endless": ("""main (float[3] x) => (float[3] y) {
        y = Loop ("", "", x) <
            body = step (int64 i, bool go, float[3] v) => (bool go2, float[3] w) {
                go2 = Identity (go)
                w = Identity (v) }
        > }""", "expected at most 4096 steps"),
    "computed condition": ("""main (float[3] x, bool c) => (float[3] y) {
        n = Constant <value = int64 {3}> ()
        y = Loop (n, "", x) <
            body = step (int64 i, bool go, float[3] v) => (bool go2, float[3] w) {
                go2 = And (go, c)
                w = Identity (v) }
        > }""", "expected a constant condition after a step"),
    "absent result": ("""main (float[3] x, bool c) => (float[3] y) {
        y = If (c) <
            then_branch = one () => (float[3] a) { b = Add (x, x) },
            else_branch = two () => (float[3] b) { b = Neg (x) }
        > }""", "output 'a' of its subgraph is not computed by any node"),
    "sequence": ("""main (seq(float[3]) x) => (float[3] y) {
        n = Constant <value = int64 {0}> ()
        y = SequenceAt (x, n) }""", "input 'x': expected a tensor, got a sequence"),
    "of another domain": ("""main (float[3] x) => (float[3] y) {
        y = ai.onnx.ml.SVMRegressor <rho = [0.0]> (x) }""",
        "operator 'ai.onnx.ml.SVMRegressor' is not supported"),
}  # fmt: skip


@pytest.mark.fast(1)
@pytest.mark.parametrize("name", REFUSED)
def test_refusal(name: str) -> None:
    text, why = REFUSED[name]
    with pytest.raises(VdlaError) as error:
        import_onnx(model_of(text))
    assert why in str(error.value) and "\n" not in str(error.value)


# ---- half types


@pytest.mark.parametrize("half", ["float16", "bfloat16"])
def test_every_half_is_rounded_as_numpy_does(half: str) -> None:
    """float32 of all kinds, in the interpreter and as machine code."""
    rng = np.random.default_rng(3)
    bits = rng.integers(0, 2**32, 40_000, np.uint64).astype(np.uint32)
    halves = np.arange(1 << 16, dtype=np.uint16).view(np.dtype(half)).astype(np.float32)
    with np.errstate(all="ignore"):
        between = (halves[:-1] + halves[1:]) / 2
        near = np.concatenate([np.nextafter(between, np.float32(side)) for side in (-9e9, 9e9)])
    x = np.concatenate([bits.view(np.float32), halves, between, near])
    code = {"float16": TensorProto.FLOAT16, "bfloat16": TensorProto.BFLOAT16}[half]
    nodes = [
        helper.make_node("Cast", ["x"], ["h"], to=code),
        helper.make_node("Cast", ["h"], ["y"], to=TensorProto.FLOAT),
    ]
    x_type, y_type = (helper.make_tensor_value_info(n, TensorProto.FLOAT, x.shape) for n in "xy")
    graph = helper.make_graph(nodes, "cast", [x_type], [y_type])
    model = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 19)], ir_version=9)
    read = import_onnx(model)
    with np.errstate(all="ignore"):
        wanted = x.astype(half).astype(np.float32)
    for made in (interpret(read, x)[0], build_cpu(run_passes(read)).run(x)[0]):
        number = ~np.isnan(wanted)
        np.testing.assert_array_equal(np.isnan(made), ~number)
        np.testing.assert_array_equal(made[number].view("u4"), wanted[number].view("u4"))


@pytest.mark.slow
def test_a_network_of_float16_is_onnx_runtimes() -> None:
    """Weights, activations, inputs and outputs of float16."""
    rng = np.random.default_rng(4)
    x = rng.normal(size=(2, 3, 8, 8)).astype(np.float16)
    weight = (rng.normal(size=(4, 3, 3, 3)) / 5).astype(np.float16)
    nodes = [
        helper.make_node("Conv", ["x", "w"], ["c"], pads=[1, 1, 1, 1]),
        helper.make_node("Relu", ["c"], ["r"]),
        helper.make_node("GlobalAveragePool", ["r"], ["g"]),
        helper.make_node("Flatten", ["g"], ["f"]),
        helper.make_node("Softmax", ["f"], ["y"]),
    ]
    given = helper.make_tensor_value_info("x", TensorProto.FLOAT16, x.shape)
    made = helper.make_tensor_value_info("y", TensorProto.FLOAT16, (2, 4))
    constant = onnx.numpy_helper.from_array(weight, "w")
    graph = helper.make_graph(nodes, "half", [given], [made], [constant])
    model = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 19)], ir_version=9)
    [wanted] = onnxruntime.InferenceSession(model.SerializeToString()).run(None, {"x": x})
    [found] = prepare(model).run([x])
    assert found.dtype == np.float16
    np.testing.assert_allclose(found, wanted, 2e-3)
