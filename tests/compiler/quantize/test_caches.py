"""Attention that reads caches which it also writes, and ONNX's own operator for it, in the form in
which the quantiser reads them: with the same values, and no product that waits for a cache."""

from __future__ import annotations

from typing import Any

import numpy as np
import onnx
import pytest
from onnx import TensorProto, helper, numpy_helper
from onnx.reference import ReferenceEvaluator
from vdla.compiler.quantize.draft import Draft
from vdla.compiler.quantize.expand import taken_apart
from vdla.compiler.quantize.prepare import prepare

from .peers import peer

RNG = np.random.default_rng(0)
PLACES, ROWS, HEADS, KV_HEADS, WIDTH = 12, 3, 4, 2, 8
make = helper.make_node
Arrays = dict[str, np.ndarray]


def floats(*shape: int) -> np.ndarray:
    return RNG.normal(0, 1, shape).astype(np.float32)


def build(
    nodes: list[onnx.NodeProto], given: Arrays, constants: dict[str, Any], results: list[str],
    opset: int = 24,
) -> onnx.ModelProto:  # fmt: skip
    kinds = {
        name: (helper.np_dtype_to_tensor_dtype(value.dtype), value.shape)
        for name, value in given.items()
    }
    graph = helper.make_graph(
        nodes, "test",
        [helper.make_tensor_value_info(n, *kind) for n, kind in kinds.items()],
        [helper.make_tensor_value_info(n, TensorProto.FLOAT, None) for n in results],
        [numpy_helper.from_array(np.asarray(v), n) for n, v in constants.items()],
    )  # fmt: skip
    return helper.make_model(graph, opset_imports=[helper.make_opsetid("", opset)], ir_version=11)


# ---- ONNX's operator ----


ALL = np.ones((ROWS, ROWS), bool)
FORMS: dict[str, tuple[Arrays, dict[str, Any]]] = {
    "plain": ({}, {}),
    "a scale": ({}, {"scale": 0.3}),
    "causal": ({}, {"is_causal": 1}),
    "conditions": ({"mask": np.tril(ALL)}, {}),
    "conditions of one row": ({"mask": np.array([True, False, True])}, {}),
    "causal, with conditions": ({"mask": ALL & [[True, False, True]]}, {"is_causal": 1}),
    "a bias": ({"mask": floats(1, HEADS, ROWS, ROWS)}, {}),
    "causal, with a bias": ({"mask": floats(ROWS, ROWS)}, {"is_causal": 1}),
    "a past": (
        {"past_key": floats(2, KV_HEADS, 5, WIDTH), "past_value": floats(2, KV_HEADS, 5, 6)},
        {"is_causal": 1},
    ),
    "lengths": ({"length": np.array([2, 3])}, {}),
    "causal, with lengths": ({"length": np.array([3, 3])}, {"is_causal": 1}),
}  # fmt: skip


def attention(
    more: Arrays, attributes: dict[str, Any], rank: int, *outputs: str
) -> tuple[onnx.ModelProto, Arrays]:
    """A node with queries and keys of other numbers of heads and values of another width."""
    sizes = {"q": (HEADS, WIDTH), "k": (KV_HEADS, WIDTH), "v": (KV_HEADS, 6)}
    given = {n: floats(2, heads, ROWS, width) for n, (heads, width) in sizes.items()}
    if rank == 3:
        given = {n: floats(2, ROWS, heads * width) for n, (heads, width) in sizes.items()}
        attributes = attributes | {"q_num_heads": HEADS, "kv_num_heads": KV_HEADS}
    optional = [n if n in more else "" for n in ("mask", "past_key", "past_value", "length")]
    made = ["y", *(("key", "value") if "past_key" in more else ()), *outputs]
    node = make("Attention", ["q", "k", "v", *optional], made, "a", **attributes)
    return build([node], given | more, {}, [name for name in made if name]), given | more


@pytest.mark.parametrize("rank", [3, 4])
@pytest.mark.parametrize("form", FORMS)
def test_attention_is_taken_apart(form: str, rank: int) -> None:
    model, given = attention(*FORMS[form], rank)
    apart = Draft.load(model).finish()
    assert "Attention" not in {node.op_type for node in apart.graph.node}
    wanted = ReferenceEvaluator(model).run(None, given)
    found = ReferenceEvaluator(apart).run(None, given)
    for ours, theirs in zip(found, wanted, strict=True):
        np.testing.assert_allclose(ours, theirs, rtol=0, atol=1e-5)


@pytest.mark.parametrize("form", ["capped", "scores", "a short mask"])
def test_attention_that_stays(form: str) -> None:
    more = {"mask": ALL[:, :2]} if form == "a short mask" else {}
    outputs = ("", "", "scores") if form == "scores" else ()
    model, _ = attention(more, {"softcap": 2.0} if form == "capped" else {}, 4, *outputs)
    assert [node.op_type for node in Draft.load(model).nodes] == ["Attention"]


def test_attributes_of_later_versions_stay() -> None:
    model, given = attention({}, {}, 4)
    [node] = model.graph.node
    shapes = {name: value.shape for name, value in given.items()}
    assert len(taken_apart(node, shapes, {}, {})) > 1
    node.attribute.append(helper.make_attribute("left_window_size", 2))
    assert taken_apart(node, shapes, {}, {}) == [node]


# ---- caches ----


def cached(
    written: str = "TensorScatter", mask: str = "seen first", start: str = "first", opset: int = 24
) -> tuple[onnx.ModelProto, Arrays]:
    """Attention over caches of keys and values that get ``ROWS`` rows from the place ``first``."""
    given: Arrays = {
        "q": floats(1, HEADS, ROWS, WIDTH), "seen": RNG.random((1, 1, ROWS, PLACES)) < 0.5,
        "first": np.array([4]), "other": np.array([4]),
    }  # fmt: skip
    given["seen"][..., 0] = True
    nodes = []
    group = np.array([1, KV_HEADS, HEADS // KV_HEADS, PLACES, WIDTH])
    constants: dict[str, Any] = {
        "two": np.array([2]), "group": group, "heads": np.array([1, HEADS, PLACES, WIDTH]),
        "minus": np.array([-1]), "offsets": np.arange(ROWS), "zero": np.float32(0),
        "hidden": np.float32(-1e9), "factor": np.float32(0.6),
    }  # fmt: skip
    for kind in ("key", "value"):
        given |= {
            kind: floats(1, KV_HEADS, PLACES, WIDTH),
            f"{kind}s": floats(1, KV_HEADS, ROWS, WIDTH),
        }
        place = start if kind == "value" else "first"
        if written == "TensorScatter":
            nodes.append(make(written, [kind, f"{kind}s", place], [f"{kind}.next"], axis=2))
        else:
            nodes += [
                make("Add", ["offsets", place], [f"{kind}.at"]),
                make("Unsqueeze", [f"{kind}.at", "minus"], [f"{kind}.places"]),
                make("Transpose", [kind], [f"{kind}.turned"], perm=[2, 0, 1, 3]),
                make("Transpose", [f"{kind}s"], [f"{kind}s.turned"], perm=[2, 0, 1, 3]),
                make(
                    written, [f"{kind}.turned", f"{kind}.places", f"{kind}s.turned"],
                    [f"{kind}.scattered"],
                ),
                make("Transpose", [f"{kind}.scattered"], [f"{kind}.next"], perm=[1, 2, 0, 3]),
            ]  # fmt: skip
        nodes += [
            make("Unsqueeze", [f"{kind}.next", "two"], [f"{kind}.one"]),
            make("Expand", [f"{kind}.one", "group"], [f"{kind}.each"]),
            make("Reshape", [f"{kind}.each", "heads"], [f"{kind}.heads"]),
        ]
    if mask == "seen first":
        nodes.append(make("Where", ["seen", "zero", "hidden"], ["mask"]))
    elif mask == "hidden first":
        nodes += [
            make("Not", ["seen"], ["unseen"]),
            make("Where", ["unseen", "hidden", "zero"], ["mask"]),
        ]
    else:
        given["mask"] = np.where(given["seen"], np.float32(0), np.float32(-1e9))
    nodes += [
        make("Transpose", ["key.heads"], ["turned"], perm=[0, 1, 3, 2]),
        make("MatMul", ["q", "turned"], ["raw"]),
        make("Mul", ["raw", "factor"], ["scores"]),
        make("Add", ["scores", "mask"], ["masked"]),
        make("Softmax", ["masked"], ["raw shares"]),
        make("IsNaN", ["raw shares"], ["empty"]),
        make("Where", ["empty", "zero", "raw shares"], ["shares"]),
        make("MatMul", ["shares", "value.heads"], ["y"]),
    ]
    return build(nodes, given, constants, ["y", "key.next", "value.next"], opset), given


def softmax_places(draft: Draft) -> int:
    [softmax] = [node for node in draft.nodes if node.op_type == "Softmax"]
    return draft.shapes[softmax.output[0]][-1]


@pytest.mark.parametrize("first", [0, 4, PLACES - ROWS])
@pytest.mark.parametrize("mask", ["seen first", "hidden first"])
@pytest.mark.parametrize(
    ("written", "opset"), [("TensorScatter", 24), ("ScatterND", 18), ("ScatterND", 13)]
)
def test_caches_are_read_as_they_were(written: str, opset: int, mask: str, first: int) -> None:
    """Whatever the conditions are, and wherever the rows go."""
    model, given = cached(written, mask, opset=opset)
    draft = Draft.load(model)
    prepare(draft)
    assert softmax_places(draft) == PLACES + ROWS
    producers = draft.producers()
    read, found = {"y"}, set[str]()
    while read:
        name = read.pop()
        found.add(name)
        read |= {*producers[name].input} if name in producers else set()
    assert {"key", "value"} <= found and found.isdisjoint({"key.next", "value.next"})
    given |= {"first": np.array([first])}
    used = {value.name for value in model.graph.input}
    given = {name: value for name, value in given.items() if name in used}
    for ours, theirs in zip(peer(draft.finish(), **given), peer(model, **given), strict=True):
        np.testing.assert_allclose(ours, theirs, rtol=0, atol=1e-6)


@pytest.mark.parametrize("form", ["a bias", "other places", "keys that are read"])
def test_caches_that_are_read_behind(form: str) -> None:
    """Where the mask, or who else reads, leaves no other way."""
    mask = "bias" if form == "a bias" else "seen first"
    model, given = cached(mask=mask, start="other" if form == "other places" else "first")
    if form == "keys that are read":
        model.graph.output.append(helper.make_empty_tensor_value_info("key.heads"))
    draft = Draft.load(model)
    prepare(draft)
    assert softmax_places(draft) == PLACES
    for ours, theirs in zip(peer(draft.finish(), **given), peer(model, **given), strict=True):
        np.testing.assert_allclose(ours, theirs, rtol=0, atol=1e-6)


@pytest.mark.parametrize("kv_heads", [HEADS, KV_HEADS])
@pytest.mark.parametrize("first", [0, 5, PLACES - ROWS])
def test_caches_of_onnx_attention(first: int, kv_heads: int) -> None:
    """The form that ONNX describes: written by TensorScatter, read with lengths."""
    given: Arrays = {"q": floats(1, HEADS, ROWS, WIDTH)}
    for kind in ("key", "value"):
        given |= {kind: floats(1, kv_heads, PLACES, WIDTH)}
        given |= {f"{kind}s": floats(1, kv_heads, ROWS, WIDTH)}
    given |= {"first": np.array([first]), "length": np.array([first + ROWS])}
    nodes = [
        make("TensorScatter", [kind, f"{kind}s", "first"], [f"{kind}.next"])
        for kind in ("key", "value")
    ]
    operands = ["q", "key.next", "value.next", "", "", "", "length"]
    nodes.append(make("Attention", operands, ["y"], is_causal=1))
    model = build(nodes, given, {}, ["y", "key.next", "value.next"])
    draft = Draft.load(model)
    prepare(draft)
    assert softmax_places(draft) == PLACES + ROWS
    wanted = ReferenceEvaluator(model).run(None, given)
    found = ReferenceEvaluator(draft.finish()).run(None, given)
    for ours, theirs in zip(found, wanted, strict=True):
        np.testing.assert_allclose(ours, theirs, rtol=0, atol=1e-5)
