"""Trees, linear models and tables of ``ai.onnx.ml`` against ONNX Runtime."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import onnxruntime
import pytest
import vdla
from onnx import helper, numpy_helper
from onnx.reference import ReferenceEvaluator
from vdla.compiler.frontends.onnx.importer import import_onnx
from vdla.compiler.graph.interpret import interpret
from vdla.compiler.graph.passes import run_passes
from vdla.compiler.targets.cpu.graph_code import build_cpu
from vdla.isa.errors import VdlaError

DOMAIN = "ai.onnx.ml"
#: Elements lie on a grid, so that some are equal to what nodes compare them with.
GRID = 4
MODES = ["BRANCH_LEQ", "BRANCH_LT", "BRANCH_GTE", "BRANCH_GT", "BRANCH_EQ", "BRANCH_NEQ"]


def model(
    kind: str, inputs: Sequence[np.ndarray], outputs: int = 1, version: int = 3, **attributes: Any
) -> onnx.ModelProto:
    names = [f"x{i}" for i in range(len(inputs))]
    made = [f"y{i}" for i in range(outputs)]
    node = helper.make_node(kind, names, made, domain=DOMAIN, **attributes)
    graph = helper.make_graph(
        [node], "ml",
        [helper.make_tensor_value_info(n, helper.np_dtype_to_tensor_dtype(x.dtype), x.shape)
         for n, x in zip(names, inputs, strict=True)],
        [onnx.ValueInfoProto(name=name) for name in made],
    )  # fmt: skip
    imports = [helper.make_opsetid("", 17), helper.make_opsetid(DOMAIN, version)]
    return helper.make_model(graph, opset_imports=imports, ir_version=9)


def assert_as_ort(made: onnx.ModelProto, *inputs: np.ndarray) -> list[np.ndarray]:
    """What the graph computes is what ONNX Runtime computes, but for the last bits of floats."""
    session = onnxruntime.InferenceSession(made.SerializeToString())
    feeds = {i.name: x for i, x in zip(session.get_inputs(), inputs, strict=True)}
    graph = import_onnx(made)
    found = interpret(graph, *inputs)
    for a, b in zip(found, session.run(None, feeds), strict=True):
        assert a.dtype == b.dtype
        np.testing.assert_allclose(a, b.reshape(a.shape), rtol=1e-5, atol=1e-6)
    for a, b in zip(build_cpu(run_passes(graph)).run(*inputs), found, strict=True):
        np.testing.assert_allclose(a, b, rtol=1e-5, atol=1e-6)
    return list(found)


class Drawn:
    """Random trees, as attributes of the ensembles of sets 1 to 4."""

    def __init__(
        self, seed: int, trees: int, targets: int, modes: list[str], low: float, deepest: int = 4
    ):
        self.rng, self.modes, self.targets, self.low = (
            np.random.default_rng(seed),
            modes,
            targets,
            low,
        )
        self.nodes: list[tuple[int, int, int, float, str, int, int, int]] = []
        self.leaves: list[tuple[int, int, int, float]] = []
        self.tree = self.count = 0
        for self.tree in range(trees):
            self.count = 0
            self.grow(int(self.rng.integers(0, deepest + 1)))

    def grow(self, depth: int) -> int:
        number, self.count = self.count, self.count + 1
        if depth == 0:
            self.nodes.append((self.tree, number, 0, 0.0, "LEAF", 0, 0, 0))
            weights = self.rng.uniform(self.low, 1, self.targets)
            self.leaves += [(self.tree, number, i, float(w)) for i, w in enumerate(weights)]
            return number
        value = float(self.rng.integers(-6, 7)) / GRID
        feature, missing = int(self.rng.integers(5)), int(self.rng.integers(2))
        mode = self.modes[self.rng.integers(len(self.modes))]
        true, false = (self.grow(int(self.rng.integers(0, depth))) for _ in range(2))
        self.nodes.append((self.tree, number, feature, value, mode, true, false, missing))
        return number

    def attributes(self, kind: str) -> dict[str, Any]:
        names = ("treeids", "nodeids", "featureids", "values", "modes", "truenodeids",
                 "falsenodeids", "missing_value_tracks_true")  # fmt: skip
        columns = zip(*sorted(self.nodes), strict=True)
        found = {f"nodes_{n}": list(c) for n, c in zip(names, columns, strict=True)}
        leaves = zip(
            ("treeids", "nodeids", "ids", "weights"), zip(*self.leaves, strict=True), strict=True
        )
        return found | {f"{kind}_{name}": list(column) for name, column in leaves}


def rows(seed: int, missing: bool = False) -> np.ndarray:
    rng = np.random.default_rng(seed)
    x = (rng.integers(-8, 9, (30, 5)) / GRID).astype(np.float32)
    return np.where(rng.random(x.shape) < 0.1, np.float32(np.nan), x) if missing else x


@pytest.mark.parametrize("aggregate", ["SUM", "AVERAGE", "MIN", "MAX"])
@pytest.mark.parametrize("targets", [1, 3])
@pytest.mark.parametrize("modes", [MODES[:1], MODES], ids=["one mode", "all modes"])
def test_regressor(aggregate: str, targets: int, modes: list[str]) -> None:
    drawn = Drawn(3, 7, targets, modes, low=-1)
    x = rows(3, missing=True)
    made = model("TreeEnsembleRegressor", [x], n_targets=targets, aggregate_function=aggregate,
                 base_values=[0.5] * targets, **drawn.attributes("target"))  # fmt: skip
    assert len(np.unique(assert_as_ort(made, x)[0])) > 2


@pytest.mark.parametrize("dtype", ["float64", "int64", "int32"])
def test_rows_of_other_types(dtype: str) -> None:
    x = (rows(5) * GRID).astype(dtype)
    attributes = Drawn(2, 5, 3, MODES[:1], -1).attributes("class")
    assert_as_ort(model("TreeEnsembleClassifier", [x], 2, version=1, classlabels_int64s=[0, 1, 2],
                        **attributes), x)  # fmt: skip


@pytest.mark.parametrize("transform", ["NONE", "LOGISTIC", "SOFTMAX"])
def test_classifier(transform: str) -> None:
    x = rows(4)
    attributes = Drawn(3, 6, 3, MODES, 0).attributes("class")
    made = model("TreeEnsembleClassifier", [x], 2, post_transform=transform,
                 classlabels_int64s=[7, 3, 5], **attributes)  # fmt: skip
    assert len(np.unique(assert_as_ort(made, x)[0])) > 1


def test_two_classes_with_weights_are_as_onnx_defines_them() -> None:
    """The label is that of the greater score. ONNX Runtime's is 0 or 1, whatever labels there are,
    by the second score alone."""
    x = rows(4)
    made = model("TreeEnsembleClassifier", [x], 2, classlabels_int64s=[7, 3],
                 **Drawn(5, 6, 2, MODES[:1], -1).attributes("class"))  # fmt: skip
    label, scores = interpret(import_onnx(made), x)
    right = ReferenceEvaluator(made).run(None, {"x0": x})
    np.testing.assert_array_equal(label, right[0])
    np.testing.assert_allclose(scores, right[1], rtol=1e-5)
    assert set(label.tolist()) == {3, 7}


@pytest.mark.parametrize("base", [[], [0.25]], ids=["no base", "base"])
@pytest.mark.parametrize("transform", ["NONE", "LOGISTIC"])
@pytest.mark.parametrize("low", [-1.0, 0.0], ids=["margins", "probabilities"])
def test_classifier_with_one_score(low: float, transform: str, base: list[float]) -> None:
    """Two classes of which only one has weights."""
    x, trees = rows(6), 6 if low else 1
    more = {"base_values": base} if base else {}
    made = model("TreeEnsembleClassifier", [x], 2, post_transform=transform,
                 classlabels_int64s=[0, 1], **more,
                 **Drawn(8, trees, 1, MODES[:1], low).attributes("class"))  # fmt: skip
    assert_as_ort(made, x)


def test_ensemble_with_sets() -> None:
    """Set 5 of the domain: a set of values is one test."""
    x = rows(9)
    splits = np.array([0.25, 0, -0.5, 1.0], np.float32)
    modes = np.array([0, 6, 3, 6], np.uint8)
    made = model(
        "TreeEnsemble", [x], version=5, n_targets=2, aggregate_function=1, post_transform=0,
        nodes_splits=numpy_helper.from_array(splits), nodes_modes=numpy_helper.from_array(modes),
        membership_values=numpy_helper.from_array(
            np.array([0.25, 1.5, -1, np.nan, 0.5, np.nan], np.float32)
        ),
        nodes_featureids=[0, 1, 2, 3], nodes_truenodeids=[1, 0, 1, 4],
        nodes_falsenodeids=[2, 2, 3, 5], nodes_trueleafs=[0, 1, 1, 1],
        nodes_falseleafs=[0, 1, 1, 1], leaf_targetids=[0, 1, 0, 1, 1, 0],
        leaf_weights=numpy_helper.from_array(np.array([1, 2, 3, 4, 5, 6], np.float32)),
        tree_roots=[0, 3],
    )  # fmt: skip
    (found,) = interpret(import_onnx(made), x)
    np.testing.assert_array_equal(found, ReferenceEvaluator(made).run(None, {"x0": x})[0])
    assert len(np.unique(found)) > 4


@pytest.mark.parametrize(
    "count, transform",
    [(1, "NONE"), (1, "LOGISTIC"), (2, "NONE"), (2, "SOFTMAX"), (3, "LOGISTIC"), (3, "SOFTMAX")],
)
def test_linear_classifier(count: int, transform: str) -> None:
    x, rng = rows(1), np.random.default_rng(count)
    made = model("LinearClassifier", [x], 2, post_transform=transform,
                 classlabels_ints=list(range(4, 4 + max(count, 2))),
                 coefficients=rng.normal(size=5 * count).tolist(),
                 intercepts=rng.normal(size=count).tolist())  # fmt: skip
    assert_as_ort(made, x)


def test_the_example_of_onnx_runtime() -> None:
    """Its input has two features, and its coefficients are those of four."""
    made = onnx.load(Path(onnxruntime.__file__).parent / "datasets" / "logreg_iris.onnx")
    x = np.random.default_rng(0).uniform(0, 7, (3, 2)).astype(np.float32)
    session = onnxruntime.InferenceSession(made.SerializeToString())
    label, maps = session.run(None, {session.get_inputs()[0].name: x})
    found = interpret(import_onnx(made), x)
    np.testing.assert_array_equal(found[0], label)
    right = [[row[i] for i in range(3)] for row in maps]
    np.testing.assert_allclose(found[1], right, rtol=1e-5, atol=1e-7)


X = rows(2)
WHOLE = (X * GRID).astype(np.int64)
ROWS: dict[str, tuple[str, np.ndarray, dict[str, Any]]] = {
    "scaler": ("Scaler", X, {"offset": [0.5, 1, 2, 3, 4], "scale": [2.0, 3, 4, 5, 6]}),
    "scaler of integers": ("Scaler", WHOLE, {"offset": [0.5], "scale": [2.0]}),
    "normalizer max": ("Normalizer", np.abs(X) + 1, {"norm": "MAX"}),
    "normalizer l1": ("Normalizer", X, {"norm": "L1"}),
    "normalizer l2": ("Normalizer", X, {"norm": "L2"}),
    "normalizer zero": ("Normalizer", X * np.float32(0), {"norm": "L2"}),
    "binarizer": ("Binarizer", X, {"threshold": 0.25}),
    "imputer nan": ("Imputer", rows(8, True),
                    {"replaced_value_float": float("nan"),
                     "imputed_value_floats": [1.0, 2.0, 3.0, 4.0, 5.0]}),
    "imputer integer": ("Imputer", WHOLE, {"replaced_value_int64": 2, "imputed_value_int64s": [9]}),
    "one hot": ("OneHotEncoder", WHOLE[:, 0], {"cats_int64s": [-2, 0, 3]}),
    "linear": ("LinearRegressor", X, {"coefficients": [float(v) for v in range(10)], "targets": 2,
                                      "intercepts": [0.5, 2.0]}),
    "labels": ("LabelEncoder", WHOLE, {"keys_int64s": [-2, 0, 5], "values_int64s": [7, 8, 9],
                                       "default_int64": 4}),
    "labels of floats": ("LabelEncoder", X,
                         {"keys_floats": [0.25, 0.5], "values_floats": [7.0, 8.0]}),
    "labels to integers": ("LabelEncoder", X,
                           {"keys_floats": [0.25, 0.5], "values_int64s": [7, 8]}),
}  # fmt: skip


@pytest.mark.parametrize("name", ROWS)
def test_tables(name: str) -> None:
    kind, x, attributes = ROWS[name]
    assert_as_ort(model(kind, [x], version=2, **attributes), x)


def test_columns_by_number() -> None:
    places = np.array([3, 0, 0], np.int64)
    assert_as_ort(model("ArrayFeatureExtractor", [X, places]), X, places)
    assert_as_ort(model("FeatureVectorizer", [X, X[:, :2]], inputdimensions=[5, 2]), X, X[:, :2])


def test_maps_are_their_tensors() -> None:
    made = model("ZipMap", [X], classlabels_int64s=[0, 1, 2, 3, 4])
    np.testing.assert_array_equal(interpret(import_onnx(made), X)[0], X)


def refused(made: onnx.ModelProto) -> str:
    with pytest.raises(VdlaError) as error:
        import_onnx(made)
    return str(error.value)


def test_refusals() -> None:
    good = Drawn(8, 2, 1, MODES[:1], -1).attributes("class")
    labels = model("TreeEnsembleClassifier", [X], 2, classlabels_strings=["a", "b"], **good)
    assert "its class labels are strings" in refused(labels)
    one = model("TreeEnsembleClassifier", [X], 2, classlabels_int64s=[0, 1],
                post_transform="SOFTMAX", **good)  # fmt: skip
    assert "post_transform NONE or LOGISTIC for one score, got 2 and 'SOFTMAX'" in refused(one)
    keys = model("LabelEncoder", [X], keys_strings=["a"], values_floats=[1.0])
    assert "keys are strings" in refused(keys)
    far = {**good, "nodes_featureids": [9] * len(good["nodes_featureids"])}
    made = model("TreeEnsembleClassifier", [X], 2, classlabels_int64s=[0, 1], **far)
    assert "expected features from 0 to 4, got 9 to 9" in refused(made)
    lost = {**good, "nodes_truenodeids": [99] * len(good["nodes_treeids"])}
    made = model("TreeEnsembleClassifier", [X], 2, classlabels_int64s=[0, 1], **lost)
    assert "nodes_truenodeids: there is no node 99 in tree" in refused(made)
    assert "operator 'ai.onnx.ml.SVMRegressor' is not supported" in refused(
        model("SVMRegressor", [X])
    )


def test_trees_that_are_leaves() -> None:
    attributes = Drawn(1, 3, 2, MODES[:1], -1, deepest=0).attributes("target")
    assert_as_ort(model("TreeEnsembleRegressor", [X], n_targets=2, **attributes), X)


def test_rows_are_a_batch() -> None:
    """An open number of rows: one program for each row."""
    attributes = Drawn(2, 5, 1, MODES, -1).attributes("target")
    made = model("TreeEnsembleRegressor", [X], n_targets=1, **attributes)
    right = assert_as_ort(made, X)[0]
    made.graph.input[0].type.tensor_type.shape.dim[0].dim_param = "rows"
    np.testing.assert_allclose(vdla.compile(made, "cpu").run(X)[0], right, rtol=1e-5)


@pytest.mark.parametrize(
    "kind, attributes, said",
    [
        ("Scaler", {"scale": 2.0, "offset": [0.0]}, "expected a list of float32 in scale, got 2.0"),
        ("OneHotEncoder", {"cats_int64s": [0.5]}, "expected a list of int64 in cats_int64s"),
        ("LinearRegressor", {"coefficients": [1.0], "targets": 1}, "expected 1 rows of coeff"),
        ("Normalizer", {"norm": "L3"}, "norm is one of MAX, L1, L2, got 'L3'"),
        (
            "TreeEnsembleRegressor",
            {"nodes_treeids": [0], "nodes_modes": [1]},
            "expected nodes with ids",
        ),
    ],
)
def test_attributes_of_other_types(kind: str, attributes: dict[str, Any], said: str) -> None:
    assert said in refused(model(kind, [X], **attributes))


def test_trees_in_a_circle_are_refused() -> None:
    circle = {
        "nodes_treeids": [0, 0, 0], "nodes_nodeids": [0, 1, 2], "nodes_featureids": [0, 0, 0],
        "nodes_values": [0.0, 0.0, 0.0], "nodes_modes": ["BRANCH_LEQ", "BRANCH_LEQ", "LEAF"],
        "nodes_truenodeids": [1, 1, 0], "nodes_falsenodeids": [2, 2, 0],
        "target_treeids": [0], "target_nodeids": [2], "target_ids": [0], "target_weights": [1.0],
    }  # fmt: skip
    assert "do trees have circles?" in refused(model("TreeEnsembleRegressor", [X], **circle))
    around = circle | {"nodes_truenodeids": [1, 0, 0]}
    assert "one root in each of 1 trees" in refused(model("TreeEnsembleRegressor", [X], **around))
    odd = circle | {"nodes_modes": ["BRANCH_LEQ", "BRANCH_ODD", "LEAF"]}
    assert "got 'BRANCH_ODD'" in refused(model("TreeEnsembleRegressor", [X], **odd))
