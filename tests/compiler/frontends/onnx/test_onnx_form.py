"""Models in another form than ONNX asks for: nodes in any order, operator sets named in other ways,
functions; against ONNX Runtime where it runs them.
"""

from __future__ import annotations

import random
from collections.abc import Sequence
from typing import Any

import numpy as np
import onnx
import onnxruntime
import pytest
import vdla
from onnx import TensorProto, helper, numpy_helper
from vdla.compiler.frontends.onnx.importer import import_onnx
from vdla.compiler.frontends.onnx.model import OPSETS, load_model, opset_of
from vdla.compiler.graph.interpret import interpret
from vdla.isa.errors import VdlaError

RNG = np.random.default_rng(5)
SHAPE = (2, 3, 4)
Domains = Sequence[tuple[str, int]]


def opset(*domains: tuple[str, int]) -> list[onnx.OperatorSetIdProto]:
    return [helper.make_opsetid(domain, version) for domain, version in domains]


def model(
    nodes: list[onnx.NodeProto],
    domains: Domains = (("", 17),),
    functions: Sequence[onnx.FunctionProto] = (),
    constants: Sequence[onnx.TensorProto] = (),
) -> onnx.ModelProto:
    typed = [helper.make_tensor_value_info(name, TensorProto.FLOAT, SHAPE) for name in "xy"]
    graph = helper.make_graph(nodes, "g", typed[:1], typed[1:], constants)
    made = helper.make_model(graph, ir_version=8, functions=functions)
    del made.opset_import[:]
    made.opset_import.extend(opset(*domains))
    return made


def floats() -> np.ndarray:
    return RNG.standard_normal(SHAPE).astype(np.float32)


def same_as_theirs(made: onnx.ModelProto) -> None:
    """Our values are ONNX Runtime's, and the given model is as it was."""
    x, before = floats(), made.SerializeToString()
    (wanted,) = session(made).run(None, {"x": x})
    (got,) = interpret(import_onnx(made), x)
    np.testing.assert_allclose(got, wanted, 1e-5, 1e-6)
    assert made.SerializeToString() == before


def session(made: onnx.ModelProto) -> onnxruntime.InferenceSession:
    options = onnxruntime.SessionOptions()
    options.log_severity_level = 4
    data = made.SerializeToString()
    return onnxruntime.InferenceSession(data, options, providers=["CPUExecutionProvider"])


def refused(made: onnx.ModelProto) -> str:
    with pytest.raises(VdlaError) as caught:
        import_onnx(made)
    message = str(caught.value)
    assert "\n" not in message
    return message


# ---- order ----


def net() -> list[onnx.NodeProto]:
    """Branches, a node of two results, and a constant."""
    node = helper.make_node
    return [
        node("Constant", [], ["c"], "nc", value=numpy_helper.from_array(np.float32(2))),
        node("Relu", ["x"], ["a"], "na"),
        node("Split", ["a"], ["b0", "b1"], "nb", axis=2),
        node("Concat", ["b1", "b0"], ["d"], "nd", axis=2),
        node("Mul", ["d", "c"], ["e"], "ne"),
        node("Sub", ["e", "x"], ["f"], "nf"),
        node("Clip", ["f", "", "c"], ["y"], "ny"),
    ]


@pytest.mark.parametrize("seed", range(6))
def test_nodes_in_any_order(seed: int) -> None:
    nodes = net()
    random.Random(seed).shuffle(nodes)
    same_as_theirs(model(nodes))


def test_a_model_in_order_is_taken_as_it_is() -> None:
    made = model(net())
    assert load_model(made)[0] is made


def test_what_was_put_in_order_compiles_and_quantises(builder: Any) -> None:
    weight = RNG.standard_normal((3, 3, 1, 1)).astype(np.float32)
    builder.input("x", ["N", 3, 4, 4])
    builder.node("Relu", ["t"], "y")
    builder.node("Conv", ["x", builder.constant("w", weight)], "t")
    made, x = builder.model(["y"]), RNG.standard_normal((8, 3, 4, 4)).astype(np.float32)
    (wanted,) = session(made).run(None, {"x": x})
    np.testing.assert_allclose(vdla.compile(made, "cpu").run(x)[0], wanted, 1e-5, 1e-6)
    quantised = vdla.quantize(made, x).model
    assert load_model(quantised)[0] is quantised  # its nodes are in order
    (close,) = vdla.compile(quantised, "cpu").run(x)
    assert np.abs(close - wanted).max() < 0.1


CIRCLES: dict[str, tuple[list[tuple[str, str]], str]] = {
    "two": ([("b", "a"), ("a", "b")], "'a_node' (Neg) -> 'b_node' (Neg) -> 'a_node' (Neg)"),
    "itself": ([("a", "a")], "'a_node' (Neg) -> 'a_node' (Neg)"),
    "many": (
        [(f"t{i}", f"t{(i + 1) % 9}") for i in range(9)],
        "'t3_node' (Neg) -> 't2_node' (Neg) -> 't1_node' (Neg) -> 't0_node' (Neg) -> "
        "'t8_node' (Neg) -> 4 more -> 't3_node' (Neg)",
    ),
}


@pytest.mark.parametrize("case", CIRCLES)
def test_a_circle_names_its_nodes(case: str) -> None:
    edges, names = CIRCLES[case]
    nodes = [helper.make_node("Neg", [a], [b], f"{b}_node") for a, b in edges]
    message = refused(model([helper.make_node("Relu", ["x"], ["y"], "relu"), *nodes]))
    *_, circle = message.partition("ONNX model: expected nodes that can be put in order, got a ")
    assert circle.startswith("circle, in which each reads what the one before makes: ")
    got = circle.rpartition(": ")[2].split(" -> ")
    wanted = names.split(" -> ")
    assert len(got) == len(wanted) and got[0] == got[-1]
    assert {*got} <= {f"'{b}_node' (Neg)" for _, b in edges} | {"4 more"}


def test_what_nothing_defines_is_the_same_error_in_any_order() -> None:
    nodes = [
        helper.make_node("Relu", ["t"], ["y"], "relu"),
        helper.make_node("Neg", ["gone"], ["t"], "neg"),
    ]
    for made in (model(nodes), model(nodes[::-1])):
        assert refused(made) == "node 'neg' (Neg): reads 'gone', which nothing before it defines"


def test_two_definitions_are_refused_in_any_order() -> None:
    nodes = [
        helper.make_node("Relu", ["t"], ["y"], "relu"),
        helper.make_node("Neg", ["x"], ["t"], "neg"),
        helper.make_node("Abs", ["x"], ["t"], "abs"),
    ]
    assert refused(model(nodes)) == "ONNX model: tensor 't' is defined twice"


def test_subgraphs_are_put_in_order_too() -> None:
    """Also where only a subgraph reads what a node makes."""
    node, result = helper.make_node, [onnx.ValueInfoProto(name="r")]
    yes = [node("Neg", ["s"], ["r"], "neg"), node("Mul", ["t", "t"], ["s"], "mul")]
    nodes = [
        node(
            "If", ["cond"], ["y"], "if",
            then_branch=helper.make_graph(yes, "then", [], result),
            else_branch=helper.make_graph([node("Abs", ["t"], ["r"], "abs")], "else", [], result),
        ),
        node("Relu", ["x"], ["t"], "relu"),
    ]  # fmt: skip
    cond = numpy_helper.from_array(np.array(True), "cond")
    made = model(nodes, constants=[cond])
    with pytest.raises(onnx.checker.ValidationError, match="topologically sorted"):
        onnx.checker.check_model(made)
    found, _ = load_model(made)
    onnx.checker.check_model(found)
    x = floats()
    np.testing.assert_array_equal(session(found).run(None, {"x": x})[0], -(np.maximum(x, 0) ** 2))
    np.testing.assert_array_equal(interpret(import_onnx(made), x)[0], -(np.maximum(x, 0) ** 2))


# ---- functions ----


def function(nodes: list[onnx.NodeProto], domains: Domains = (("", 17),)) -> onnx.FunctionProto:
    return helper.make_function("my", "F", ["a"], ["b"], nodes, opset(*domains))


CALL = helper.make_node("F", ["x"], ["y"], "call", domain="my")


@pytest.mark.parametrize("twice", [False, True])
def test_nodes_of_functions_in_any_order(twice: bool) -> None:
    body = [
        helper.make_node("Sub", ["t", "a"], ["b"]),
        helper.make_node("Relu", ["s"], ["t"]),
        helper.make_node("Mul", ["a", "a"], ["s"]),
    ]
    calls = [CALL]
    if twice:
        calls = [
            helper.make_node("F", ["t"], ["y"], "second", domain="my"),
            helper.make_node("F", ["x"], ["t"], "first", domain="my"),
        ]
    made = model(calls, (("", 17), ("my", 1)), [function(body)])
    x = floats()

    def f(a: np.ndarray) -> np.ndarray:
        return np.maximum(a * a, 0) - a

    (got,) = interpret(import_onnx(made), x)
    np.testing.assert_allclose(got, f(f(x)) if twice else f(x), 1e-5)
    same_as_theirs(load_model(made)[0])


def test_a_circle_in_a_function_and_of_functions() -> None:
    body = [helper.make_node("Relu", ["b"], ["t"], "r"), helper.make_node("Neg", ["t"], ["b"], "n")]
    made = model([CALL], (("", 17), ("my", 1)), [function(body)])
    assert "got a circle" in refused(made) and "'r' (Relu)" in refused(made)
    again = [helper.make_node("F", ["a"], ["b"], "again", domain="my")]
    made = model([CALL], (("", 17), ("my", 1)), [function(again, (("", 17), ("my", 1)))])
    assert "expected functions to inline: Cycle detected" in refused(made)


# ---- operator sets ----

#: Softmax without an axis: before 13 over all dimensions but the first, then over the last.
SOFTMAX = helper.make_node("Softmax", ["x"], ["y"], "softmax")
OTHER = ("com.microsoft", 1)
IMPORTS: dict[str, tuple[Domains, int]] = {
    "by its other name": ([("ai.onnx", 12)], 12),
    "twice": ([("", 12), ("", 12)], 12),
    "by both names": ([("", 17), ("ai.onnx", 17)], 17),
    "a newer one last": ([("", 12), ("", 17)], 17),
    "an older one last": ([("", 17), ("ai.onnx", 12)], 12),
    "beside others": ([OTHER, ("ai.onnx", 12), ("ai.onnx.ml", 3)], 12),
    "others only": ([OTHER], OPSETS[-1]),
}


@pytest.mark.parametrize("case", IMPORTS)
def test_imports_of_operator_sets(case: str) -> None:
    domains, version = IMPORTS[case]
    made = model([SOFTMAX], domains)
    found, _ = load_model(made)
    assert opset_of(found) == version
    own = [(o.domain, o.version) for o in found.opset_import]
    assert own == [("", version), *(d for d in domains if d[0] not in ("", "ai.onnx"))]
    same_as_theirs(made)


def test_without_an_import_functions_say_the_version() -> None:
    made = model([CALL], [("my", 1)], [function([helper.make_node("Softmax", ["a"], ["b"])])])
    assert opset_of(load_model(made)[0]) == 17
    older = function([helper.make_node("Softmax", ["a"], ["b"])], [("ai.onnx", 12)])
    (got,) = interpret(import_onnx(model([CALL], [("my", 1)], [older])), floats())
    np.testing.assert_allclose(got.sum((1, 2)), 1, 1e-5)


def test_no_import_at_all() -> None:
    wanted = f"ONNX model: expected an import of opset 7 to {OPSETS[-1]}, got no opset_import"
    assert refused(model([SOFTMAX], [])) == wanted
    with pytest.raises(Exception, match=r"opset|Missing"):
        session(model([SOFTMAX], []))


def test_an_old_operator_set() -> None:
    """A broadcast product and a dropout in the form of operator set 6; of two imports the last
    one counts."""
    scale = numpy_helper.from_array(np.float32([1, -2, 3, 4]), "scale")
    nodes = [
        helper.make_node("Mul", ["x", "scale"], ["scaled"], broadcast=1),
        helper.make_node("Dropout", ["scaled"], ["kept"], is_test=1),
        helper.make_node("Clip", ["kept"], ["y"], min=-1.0, max=2.0),
    ]
    x = floats()
    for domains in ([("", 6)], [("", 17), ("ai.onnx", 6)]):
        made = model(nodes, domains, constants=[scale])
        (y,) = interpret(import_onnx(made), x)
        np.testing.assert_array_equal(y, np.clip(x * np.float32([1, -2, 3, 4]), -1, 2))


def test_what_onnx_cannot_convert() -> None:
    """A reshaping in a form that its operator set does not have."""
    node = helper.make_node("Reshape", ["x"], ["y"], shape=[0, -1])
    assert "got 6, which onnx cannot convert: " in refused(model([node], [("", 6)]))
