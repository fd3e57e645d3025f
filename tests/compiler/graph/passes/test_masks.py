"""Masks of a softmax as exporters and quantisers write them, against ONNX Runtime."""

from __future__ import annotations

from typing import Any

import numpy as np
import onnx
import pytest
import vdla
from onnx import TensorProto, helper, numpy_helper
from vdla.bench.distance import distances
from vdla.compiler.frontends.onnx.importer import import_onnx
from vdla.compiler.graph.ops.softmax import QTableSoftmax
from vdla.compiler.graph.passes import run_passes
from vdla.compiler.graph.passes.masks import GAP, NO_MASK

#: Conditions of keys, an input: a query sees a key, or does not.
CONDITIONS = "conditions"
SCALE, ZERO = 0.06, 7
HEADS, TOKENS = 2, 24
LOWEST = np.finfo(np.float32).min


class Scores:
    """A model of scores [heads, tokens, tokens], whose softmax weights values."""

    def __init__(self) -> None:
        self.nodes: list[onnx.NodeProto] = []
        self.constants: list[onnx.TensorProto] = []
        self.scores = self.stored("x", SCALE, ZERO)

    def constant(self, value: Any) -> str:
        self.constants.append(numpy_helper.from_array(np.asarray(value), f"c{len(self.constants)}"))
        return self.constants[-1].name

    def op(self, kind: str, *names: str, **attributes: Any) -> str:
        count = len(self.nodes)
        self.nodes.append(helper.make_node(kind, names, [f"t{count}"], f"n{count}", **attributes))
        return self.nodes[-1].output[0]

    def stored(self, x: str, scale: float, zero: int) -> str:
        quant = self.constant(np.float32(scale)), self.constant(np.int8(zero))
        return self.op("DequantizeLinear", self.op("QuantizeLinear", x, *quant), *quant)

    def number(self, value: float) -> str:
        return self.constant(np.float32(value))

    def model(
        self, masked: str, share: float = 1 / 255, is_guarded: bool = False
    ) -> onnx.ModelProto:
        shares = self.op("Softmax", masked, axis=-1)
        if is_guarded:
            shares = self.op("Where", self.op("IsNaN", shares), self.number(0), shares)
        rows = self.stored(shares, share, -128)
        values = self.stored("v", 0.1, 3)
        y = self.stored(self.op("MatMul", rows, values), 0.02, 0)
        shapes = {"x": (HEADS, TOKENS, TOKENS), "v": (HEADS, TOKENS, 8)}
        ends = [
            helper.make_tensor_value_info(n, TensorProto.FLOAT, shape)
            for n, shape in {**shapes, y: None}.items()
        ]
        graph = helper.make_graph(self.nodes, "net", ends[:2], ends[2:], self.constants)
        return helper.make_model(graph, opset_imports=[helper.make_opsetid("", 13)], ir_version=8)


def seen(kind: str) -> np.ndarray:
    """Whether a query sees a key, bool [tokens, tokens] or what is broadcast to that."""
    rng = np.random.default_rng(4)
    anywhere = rng.random((HEADS, TOKENS, TOKENS)) < 0.5
    anywhere[..., 0] = True
    return {
        "causal": np.tri(TOKENS, dtype=bool),
        "padding": (np.arange(TOKENS) < TOKENS - 5)[None, None],
        "anywhere": anywhere,
    }[kind]


def floats(mask: np.ndarray, value: float = -1e9) -> np.ndarray:
    return np.where(mask, 0, value).astype(np.float32)


def _added(net: Scores, mask: np.ndarray, value: float) -> str:
    return net.op("Add", net.constant(floats(mask, value)), net.scores)


def _in_a_pair(net: Scores, mask: np.ndarray) -> str:
    """As a quantiser leaves it that knows no masks but has the range of scores."""
    gone = floats(mask, -2 * 255 * SCALE)
    quant = net.number(4 * SCALE), net.constant(np.int8(100))
    known = net.op("DequantizeLinear", net.op("QuantizeLinear", net.constant(gone), *quant), *quant)
    return net.stored(net.op("Add", net.scores, known), 4 * SCALE, 100)


def _stretched(net: Scores, mask: np.ndarray) -> str:
    """``x * mask - 1e4 * (1 - mask)``."""
    kept = net.constant(mask.astype(np.float32))
    hidden = net.op("Sub", net.number(1), kept)
    return net.op("Sub", net.op("Mul", net.scores, kept), net.op("Mul", hidden, net.number(1e4)))


FORMS = {
    "added": lambda net, mask: _added(net, mask, -1e9),
    "infinite": lambda net, mask: _added(net, mask, -np.inf),
    "the lowest number": lambda net, mask: _added(net, mask, LOWEST),
    "barely": lambda net, mask: _added(net, mask, -(255 * SCALE + GAP + 1e-3)),
    "subtracted": lambda net, mask: net.op("Sub", net.scores, net.constant(floats(mask, 1e9))),
    "chosen": lambda net, mask: net.op("Where", net.constant(mask), net.scores, net.number(LOWEST)),
    "stretched": _stretched,
    "divided": lambda net, mask: net.op(
        "Add", net.op("Div", net.scores, net.number(4)), net.constant(floats(mask))
    ),
    "in a pair": _in_a_pair,
}


def softmax_of(model: onnx.ModelProto) -> QTableSoftmax | None:
    """The model's softmax in integers, if it has one with a mask."""
    graph = run_passes(import_onnx(model))
    found = [n for n in graph.nodes if isinstance(n.op, QTableSoftmax) and len(n.inputs) == 2]
    if CONDITIONS not in graph.inputs:  # so that the accelerator leaves hidden keys out
        assert all(graph[n.inputs[1]].is_constant for n in found)
    return found[0].op if found else None  # type: ignore[return-value]


def operands() -> list[np.ndarray]:
    rng = np.random.default_rng(6)
    return [
        rng.normal(0, 40 * SCALE, (HEADS, TOKENS, TOKENS)).astype(np.float32),
        rng.normal(0, 4, (HEADS, TOKENS, 8)).astype(np.float32),
    ]


@pytest.mark.slow
@pytest.mark.short(9)
@pytest.mark.parametrize(
    ("form", "kind"),
    [
        *((form, "causal") for form in FORMS),
        *((form, kind) for form in list(FORMS)[:3] for kind in ("padding", "anywhere")),
    ],
)
def test_every_form_is_one_softmax(form: str, kind: str) -> None:
    """Within a step of ONNX Runtime, and 99 % of it; machine code computes the same."""
    net = Scores()
    model = net.model(FORMS[form](net, seen(kind)))
    op = softmax_of(model)
    assert op is not None
    assert op.in_scale == pytest.approx(
        {"divided": SCALE / 4, "in a pair": 4 * SCALE}.get(form, SCALE), rel=1e-6
    )
    x = operands()
    [distance] = [d for d in distances(model, x) if d.op == "QTableSoftmax"]
    assert distance.largest <= 1 and distance.counts[0] >= 0.99 * distance.elements
    host, sim = (vdla.compile(model, target).run(*x)[0] for target in ("cpu", "sim"))
    np.testing.assert_array_equal(host, sim)


def _some_key_hidden(value: float) -> np.ndarray:
    mask = floats(seen("causal"))
    mask[5, 3] = value
    return mask


NONE = {
    "not far enough": _some_key_hidden(-(255 * SCALE + GAP - 1e-3)),
    "a distance": _some_key_hidden(-1),
    "a row without keys": floats(np.arange(TOKENS)[:, None] != 9),
    "no number": _some_key_hidden(np.nan),
    "different for all": np.linspace(-20, 0, TOKENS, dtype=np.float32),
}


@pytest.mark.fast(1)
@pytest.mark.parametrize("case", NONE)
def test_what_is_no_mask_stays_in_float32(case: str) -> None:
    """The report says why."""
    net = Scores()
    model = net.model(net.op("Add", net.scores, net.constant(NONE[case])))
    assert softmax_of(model) is None
    module = vdla.compile(model, "sim")
    reasons = [layer.reason for layer in module.compiled.layers if layer.op == "Quantize"]
    assert reasons.count(NO_MASK) == 1


def test_constants_that_keep_all_are_no_mask() -> None:
    """Scores times a number, and a mask of zeros."""
    net = Scores()
    scaled = net.op("Mul", net.scores, net.number(0.25))
    model = net.model(net.op("Add", scaled, net.constant(np.zeros((TOKENS, TOKENS), np.float32))))
    graph = run_passes(import_onnx(model))
    [node] = [n for n in graph.nodes if isinstance(n.op, QTableSoftmax)]
    assert len(node.inputs) == 1
    assert node.op.in_scale == pytest.approx(SCALE / 4)


def test_scores_that_are_not_equidistant() -> None:
    """A function of scores that is no line stays in float32."""
    net = Scores()
    bent = net.op("Tanh", net.scores)
    model = net.model(net.op("Add", bent, net.constant(floats(seen("causal")))))
    assert softmax_of(model) is None


# ---- masks that are computed ----


def _as_floats(net: Scores) -> str:
    """``(1 - condition) * lowest``, as Hugging Face's BERT writes it."""
    shown = net.op("Cast", CONDITIONS, to=TensorProto.FLOAT)
    return net.op("Mul", net.op("Sub", net.number(1), shown), net.number(float(LOWEST)))


def _chosen(net: Scores) -> str:
    return net.op("Where", CONDITIONS, net.number(0), net.number(-1e9))


def _of_keys(net: Scores) -> str:
    """A row of keys for all queries, as from ``attention_mask``."""
    first = net.constant(np.array([TOKENS - 1])), net.constant(np.array([TOKENS]))
    last = net.op("Slice", CONDITIONS, *first, net.constant(np.array([0])))
    return net.op("Add", net.scores, net.op("Where", last, net.number(0), net.number(LOWEST)))


def _guarded(net: Scores) -> str:
    """Shares that are 0 where they are NaN, as PyTorch exports ``scaled_dot_product_attention``."""
    hidden = net.op("Where", CONDITIONS, net.number(0), net.number(-np.inf))
    return net.op("Add", net.scores, hidden)


COMPUTED = {
    "of keys": _of_keys,
    "guarded": _guarded,
    "chosen and added": lambda net: net.op("Add", net.scores, _chosen(net)),
    "added to": lambda net: net.op("Add", _chosen(net), net.scores),
    "of floats": lambda net: net.op("Add", net.scores, _as_floats(net)),
    "hidden where true": lambda net: net.op(
        "Where", net.op("Not", CONDITIONS), net.number(LOWEST), net.scores
    ),
    "chosen": lambda net: net.op("Where", CONDITIONS, net.scores, net.number(LOWEST)),
    "scaled before": lambda net: net.op(
        "Add", net.op("Div", net.scores, net.number(4)), _chosen(net)
    ),
}


def with_conditions(net: Scores, masked: str, is_guarded: bool = False) -> onnx.ModelProto:
    model = net.model(masked, is_guarded=is_guarded)
    shape = (TOKENS, TOKENS)
    model.graph.input.append(helper.make_tensor_value_info(CONDITIONS, TensorProto.BOOL, shape))
    return model


@pytest.mark.slow
@pytest.mark.short(2)
@pytest.mark.parametrize("form", COMPUTED)
def test_a_computed_mask_is_an_operand(form: str) -> None:
    """As near ONNX Runtime as a constant one, and on the accelerator."""
    net = Scores()
    model = with_conditions(net, COMPUTED[form](net), form == "guarded")
    assert softmax_of(model) is not None
    mask = np.tri(TOKENS, dtype=bool)
    mask[0] = form != "guarded"  # hides all keys of a query
    mask[-1, 3:7] = False
    x = [*operands(), mask]
    [distance] = [d for d in distances(model, x) if d.op == "QTableSoftmax"]
    assert distance.largest <= 1 and distance.counts[0] >= 0.99 * distance.elements
    host, sim = (vdla.compile(model, target).run(*x)[0] for target in ("cpu", "sim"))
    np.testing.assert_array_equal(host, sim)


def test_other_zeros_are_no_guard() -> None:
    """Only where a share is NaN its 0 is that of the integers."""
    net = Scores()
    model = net.model(_added(net, seen("causal"), -1e9), is_guarded=True)
    assert softmax_of(model) is not None
    [test] = (node for node in model.graph.node if node.op_type == "IsNaN")
    test.op_type = "Cast"
    test.attribute.append(helper.make_attribute("to", TensorProto.BOOL))
    assert softmax_of(model) is None


@pytest.mark.parametrize("value", [-1.0, -(255 * SCALE + GAP - 1e-3), 5.0])
def test_conditions_that_hide_nothing_stay_in_float32(value: float) -> None:
    """The report says why."""
    net = Scores()
    addend = net.op("Where", CONDITIONS, net.number(0), net.number(value))
    model = with_conditions(net, net.op("Add", net.scores, addend))
    assert softmax_of(model) is None
    reasons = [layer.reason for layer in vdla.compile(model, "sim").compiled.layers]
    assert reasons.count(NO_MASK) == 1
