"""Ensembles of decision trees, of the domain ``ai.onnx.ml``.

All trees go down one level at a time: from where each of them is, an element of the row decides
between two nodes. Leaves lead to themselves, so that after as many steps as the deepest tree has
levels every tree is at a leaf.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import numpy as np
import onnx
from onnx import numpy_helper

from ....graph.ir import Tensor
from ....graph.ops.movement import Concat, Gather, GatherElements
from ....graph.ops.reduction import ArgReduce
from ....te.expr import FLOAT_DTYPES, Const, Expr, select
from .call import Call, Outputs, Reader
from .elementwise import absolute, function, logistic, negate, number

#: When a node goes to its true branch: by the names of modes, and in the order of their numbers.
MODES: dict[str, Callable[[Expr, Expr], Expr]] = {
    "BRANCH_LEQ": lambda x, v: x <= v,
    "BRANCH_LT": lambda x, v: x < v,
    "BRANCH_GTE": lambda x, v: v <= x,
    "BRANCH_GT": lambda x, v: v < x,
    "BRANCH_EQ": lambda x, v: x.equal(v),
    "BRANCH_NEQ": lambda x, v: negate(x.equal(v)),
}
NAMES = (*MODES, "BRANCH_MEMBER")
#: More levels, or more weights, is a damaged file.
MAX_LEVELS, MAX_WEIGHTS = 4096, 1 << 28
POST_TRANSFORMS = ("NONE", "SOFTMAX", "LOGISTIC")
AGGREGATES = ("AVERAGE", "SUM", "MIN", "MAX")


@dataclass
class _Forest:
    """Nodes of all trees, leaves among them; a leaf's branches are itself.

    Attributes
    ----------
    features, values, modes, missing : of each node, what it compares; the name of how; whether a
        missing element goes to its true branch
    branches : of each node the true one and the false one [2, nodes]
    weights : what each node adds to every target, float [nodes, targets]
    given : which weights the file has, bool [nodes, targets]
    """

    features: np.ndarray
    values: np.ndarray
    modes: list[str]
    missing: np.ndarray
    branches: np.ndarray
    roots: np.ndarray
    weights: np.ndarray
    given: np.ndarray

    @property
    def is_leaf(self) -> np.ndarray:
        """Of each node, whether it is a leaf."""
        return (self.branches == np.arange(self.features.size)).all(axis=0)

    def levels(self, call: Call) -> int:
        """How many nodes the longest way has before its leaf."""
        here, found, leaf = self.roots, 0, self.is_leaf
        while not leaf[here].all():
            here, found = np.unique(self.branches[:, here]), found + 1
            if found > MAX_LEVELS:
                raise call.refuse(f"expected at most {MAX_LEVELS} levels: do trees have circles?")
        return found


def _numbers(call: Call, name: str, size: int | None = None) -> np.ndarray:
    """An attribute of numbers, a list or a tensor; zeros where it is absent."""
    found = call.attributes.get(f"{name}_as_tensor", call.attributes.get(name))
    if found is None:
        return np.zeros(size or 0, np.int64)
    array = numpy_helper.to_array(found) if isinstance(found, onnx.TensorProto) else np.array(found)
    if array.dtype == np.float64 and not isinstance(found, onnx.TensorProto):
        array = array.astype(np.float32)
    if array.dtype.kind not in "iuf" or (size is not None and array.size != size):
        raise call.refuse(f"expected {size} numbers in {name}, got {array.size}")
    return array.reshape(-1)


def _at(call: Call, what: str, places: np.ndarray, size: int) -> np.ndarray:
    """Places, each of which is within a size."""
    if places.size and not 0 <= places.min() <= places.max() < size:
        raise call.refuse(
            f"expected {what} from 0 to {size - 1}, got {places.min()} to {places.max()}"
        )
    return places.astype(np.int64)


def _forest(call: Call, kind: str, targets: int) -> _Forest:
    """The trees of TreeEnsembleClassifier or TreeEnsembleRegressor, whose weights' attributes begin
    with ``kind``."""
    trees = _numbers(call, "nodes_treeids")
    size = trees.size
    ids = _numbers(call, "nodes_nodeids", size)
    place = {pair: i for i, pair in enumerate(zip(trees.tolist(), ids.tolist(), strict=True))}
    named = call.attributes.get("nodes_modes", [])
    names = isinstance(named, list) and all(isinstance(name, bytes) for name in named)
    modes = [name.decode() for name in named] if names else []
    if len(place) != size or len(modes) != size or not size:
        raise call.refuse(f"expected nodes with ids and modes, got {len(place)} of {size}")
    unknown = {*modes} - {*MODES, "LEAF"}
    if unknown:
        raise call.refuse(f"modes are LEAF, {', '.join(MODES)}, got {min(unknown)!r}")
    leaf = np.array([mode == "LEAF" for mode in modes])

    def places(of_trees: np.ndarray, of_nodes: np.ndarray, what: str) -> np.ndarray:
        pairs = list(zip(of_trees.tolist(), of_nodes.tolist(), strict=True))
        unknown = [pair for pair in pairs if pair not in place]
        if unknown:
            raise call.refuse(f"{what}: there is no node {unknown[0][1]} in tree {unknown[0][0]}")
        return np.array([place[pair] for pair in pairs], np.int64)

    branches = np.tile(np.arange(size), (2, 1))
    for row, name in zip(branches, ("nodes_truenodeids", "nodes_falsenodeids"), strict=True):
        row[~leaf] = places(trees[~leaf], _numbers(call, name, size)[~leaf], name)
    reached = np.zeros(size, bool)
    reached[branches[:, ~leaf]] = True
    roots = np.flatnonzero(~reached)
    if roots.size != np.unique(trees).size:
        raise call.refuse(f"expected one root in each of {np.unique(trees).size} trees")
    added = _numbers(call, f"{kind}_weights")
    targets_of = _at(call, f"{kind}_ids", _numbers(call, f"{kind}_ids", added.size), targets)
    nodes_of = places(
        _numbers(call, f"{kind}_treeids", added.size),
        _numbers(call, f"{kind}_nodeids", added.size), f"{kind}_nodeids",
    )  # fmt: skip
    weights, given = _weights(call, size, targets, nodes_of, targets_of, added)
    return _Forest(
        _numbers(call, "nodes_featureids", size).astype(np.int64),
        _numbers(call, "nodes_values", size), modes,
        _numbers(call, "nodes_missing_value_tracks_true", size).astype(bool), branches,
        roots, weights, given,
    )  # fmt: skip


def _weights(
    call: Call, size: int, targets: int, nodes: np.ndarray, of: np.ndarray, added: np.ndarray
) -> tuple[np.ndarray, np.ndarray]:
    if size * targets > MAX_WEIGHTS:
        raise call.refuse(f"expected at most {MAX_WEIGHTS} weights, got {size} x {targets}")
    dtype = np.float64 if added.dtype == np.float64 else np.float32
    weights, given = np.zeros((size, targets), dtype), np.zeros((size, targets), bool)
    np.add.at(weights, (nodes, of), added.astype(dtype))
    given[nodes, of] = True
    return weights, given


def _leaves(call: Call, forest: _Forest) -> Tensor:
    """Where every row ends in every tree, int64 [rows, trees]."""
    x = call.operand(0)
    if len(x.shape) == 1:
        x = call.reshape(x, (1, *x.shape))
    if len(x.shape) != 2:
        raise call.refuse(f"expected rows of features, got {x.type_text}")
    dtype = forest.values.dtype if x.dtype not in FLOAT_DTYPES else x.dtype
    x = call.cast(x, str(dtype))
    kinds = sorted({mode for mode in forest.modes if mode in MODES}) or [NAMES[0]]
    columns = {
        "feature": _at(call, "features", forest.features, x.shape[1]),
        "value": forest.values.astype(x.dtype),
        "true": forest.branches[0], "false": forest.branches[1],
    }  # fmt: skip
    if len(kinds) > 1:
        columns["kind"] = np.array([kinds.index(m) if m in MODES else 0 for m in forest.modes])
    if forest.missing.any():
        columns["missing"] = forest.missing

    def next_node(v: Expr, value: Expr, true: Expr, false: Expr, *more: Expr) -> Expr:
        rest = list(more)
        goes = MODES[kinds[0]](v, value)
        if len(kinds) > 1:
            kind = rest.pop(0)
            for i, name in enumerate(kinds[1:], 1):
                goes = select(kind.equal(i), MODES[name](v, value), goes)
        if rest:
            goes = goes | (rest[0] & negate(v.equal(v)))
        return select(goes, true, false)

    first = [call.value(column[forest.roots]) for column in columns.values()]
    node = call.map(next_node, call.emit(Gather(1), x, first[0]), *first[1:])
    tables = [call.value(column) for column in columns.values()]
    for _ in range(forest.levels(call) - 1):
        read = [call.emit(Gather(0), table, node) for table in tables]
        node = call.map(next_node, call.emit(GatherElements(1), x, read[0]), *read[1:])
    return node


def _aggregated(call: Call, forest: _Forest, aggregate: str, base: np.ndarray) -> Tensor:
    """The sum, mean, least or greatest of all trees' weights for each target [rows, targets]."""
    weights = forest.weights
    if aggregate in ("MIN", "MAX") and not forest.given[forest.is_leaf].all():
        raise call.refuse(f"{aggregate} expects that every leaf has a weight for every target")
    found = call.emit(Gather(0), call.value(weights), _leaves(call, forest))
    kind = {"MIN": "min", "MAX": "max"}.get(aggregate, "+")
    found = call.reduce(kind, found, (1,), keepdims=False)
    if aggregate == "AVERAGE":
        found = call.map(lambda v: v / number(forest.roots.size, v), found)
    if base.size not in (0, 1, weights.shape[1]):
        raise call.refuse(f"expected {weights.shape[1]} base_values, got {base.size}")
    return (
        call.map(lambda v, b: v + b, found, call.value(base, found.dtype)) if base.size else found
    )


def _logistic(x: Expr) -> Expr:
    """As ONNX Runtime has it here: the bits that ``1 - y`` loses are lost."""
    y = logistic(absolute(x))
    return select(x < number(0, x), number(1, x) - y, y)


def post_transform(call: Call, x: Tensor, name: str) -> Tensor:
    """Scores [rows, targets] after the attribute ``post_transform``."""
    if name not in POST_TRANSFORMS:
        raise call.refuse(f"post_transform is one of {', '.join(POST_TRANSFORMS)}, got {name!r}")
    if name == "LOGISTIC":
        return call.map(_logistic, x)
    if name == "NONE":
        return x
    powers = call.map(lambda v, m: function("exp", v - m), x, call.reduce("max", x, (1,)))
    return call.map(lambda v, total: v / total, powers, call.reduce("+", powers, (1,)))


def class_labels(call: Call, integers: str = "classlabels_int64s") -> np.ndarray:
    """The labels of classes, which must be integers."""
    if call.attributes.get("classlabels_strings"):
        raise call.refuse(
            "its class labels are strings, which are not supported; train with classes that are"
            " integers, or remove the output of labels"
        )
    return call.array(integers, "int64")


def emit_label(call: Call, scores: Tensor, labels: np.ndarray) -> Tensor:
    """The label of the greatest score, the first of equal ones; int64 [rows]."""
    return call.emit(
        Gather(0), call.value(labels), call.emit(ArgReduce("max", 1, False, False), scores)
    )


def two_classes(
    call: Call, score: Tensor, labels: np.ndarray, name: str, bound: float, sums_to_one: bool
) -> Outputs:
    """Label and scores [rows, 2] where one score [rows, 1] decides between two classes: the second
    one where it is greater than ``bound``. The first class has the score ``1 - x`` or ``-x``."""
    if name not in ("NONE", "LOGISTIC") or labels.size != 2:
        raise call.refuse(
            f"expected two labels and post_transform NONE or LOGISTIC for one score, got"
            f" {labels.size} and {name!r}"
        )
    low, high = (Const(int(label), "int64") for label in labels)
    flat = call.reshape(score, score.shape[:1])
    label = call.map(lambda v: select(number(bound, v) < v, high, low), flat)
    other = call.map(lambda v: number(1 if sums_to_one else 0, v) - v, score)
    if name == "LOGISTIC":
        score = call.map(_logistic, score)
        other = call.map(lambda v: number(1, v) - v, score)
    return label, call.emit(Concat(1), other, score)


def _regressor(call: Call) -> Outputs:
    targets = call.integer("n_targets", 1)
    forest = _forest(call, "target", targets)
    aggregate = call.text("aggregate_function", "SUM")
    if aggregate not in AGGREGATES:
        raise call.refuse(
            f"aggregate_function is one of {', '.join(AGGREGATES)}, got {aggregate!r}"
        )
    scores = _aggregated(call, forest, aggregate, _numbers(call, "base_values"))
    return post_transform(call, scores, call.text("post_transform", "NONE"))


def _classifier(call: Call) -> Outputs:
    labels, name = class_labels(call), call.text("post_transform", "NONE")
    forest = _forest(call, "class", max(labels.size, 1))
    base = _numbers(call, "base_values")
    used = np.flatnonzero(forest.given.any(axis=0))
    if labels.size == 2 and used.size == 1:
        forest.weights, forest.given = forest.weights[:, used], forest.given[:, used]
        score = _aggregated(call, forest, "SUM", base[-1:])
        positive = bool((forest.weights >= 0).all())
        return two_classes(call, score, labels, name, 0.5 if positive else 0.0, positive)
    scores = _aggregated(call, forest, "SUM", base)
    return emit_label(call, scores, labels), post_transform(call, scores, name)


def _ensemble(call: Call) -> Outputs:
    """Since set 5 of the domain: nodes and leaves apart. A flag says whether a branch is the number
    of a leaf; a test for a set of values is a chain of tests for equality."""
    targets = call.integer("n_targets", 1)
    values, codes = _numbers(call, "nodes_splits"), _numbers(call, "nodes_modes")
    size, added = values.size, _numbers(call, "leaf_weights")
    codes = _at(call, "nodes_modes", codes, len(NAMES))
    features = _numbers(call, "nodes_featureids", size)
    missing = _numbers(call, "nodes_missing_value_tracks_true", size).astype(bool)
    branches = np.array([
        _numbers(call, f"nodes_{side}nodeids", size)
        + size * _numbers(call, f"nodes_{side}leafs", size)
        for side in ("true", "false")
    ])  # fmt: skip
    branches = _at(call, "branches", branches, size + added.size)
    modes = [NAMES[code] for code in codes]
    branches = np.hstack([branches, np.tile(np.arange(size, size + added.size), (2, 1))])
    nodes = size + np.arange(added.size)
    of = _at(call, "leaf_targetids", _numbers(call, "leaf_targetids", added.size), targets)
    weights, given = _weights(call, size + added.size, targets, nodes, of, added)
    leaves = np.zeros(added.size)
    forest = _Forest(
        np.concatenate([features, leaves]).astype(np.int64),
        np.concatenate([values, leaves.astype(values.dtype)]), [*modes, *["LEAF"] * added.size],
        np.concatenate([missing, leaves.astype(bool)]), branches,
        _at(call, "tree_roots", _numbers(call, "tree_roots"), size), weights, given,
    )  # fmt: skip
    _expand_sets(call, forest)
    aggregate = AGGREGATES[_code(call, "aggregate_function", 1, AGGREGATES)]
    scores = _aggregated(call, forest, aggregate, np.zeros(0))
    transforms = ("NONE", "LOGISTIC", "SOFTMAX")
    return post_transform(call, scores, transforms[_code(call, "post_transform", 0, transforms)])


def _code(call: Call, name: str, default: int, known: tuple[str, ...]) -> int:
    code = call.integer(name, default)
    if not 0 <= code < len(known):
        raise call.refuse(f"{name} is one of {', '.join(known)}, got number {code}")
    return code


def _expand_sets(call: Call, forest: _Forest) -> None:
    """Make each node that tests for a set, of which NaN ends one in ``membership_values``, a chain
    of nodes that test for equality."""
    testing = [i for i, mode in enumerate(forest.modes) if mode == "BRANCH_MEMBER"]
    sets: list[list[float]] = [[]]
    for value in _numbers(call, "membership_values").tolist():
        if value == value:
            sets[-1].append(value)
        else:
            sets.append([])
    if testing and (len(sets) <= len(testing) or not all(sets[: len(testing)])):
        raise call.refuse(f"expected {len(testing)} sets in membership_values")
    for node, members in zip(testing, sets, strict=False):
        size, more = len(forest.modes), len(members) - 1
        chain, copied = [node, *range(size, size + more)], np.full(more, node)
        forest.features = np.append(forest.features, forest.features[copied])
        forest.missing = np.append(forest.missing, forest.missing[copied])
        forest.values = np.append(forest.values, members[1:]).astype(forest.values.dtype)
        forest.values[node] = members[0]
        forest.branches = np.hstack([forest.branches, forest.branches[:, copied]])
        forest.branches[1, chain[:-1]] = chain[1:]
        forest.modes.extend(["BRANCH_EQ"] * more)
        forest.modes[node] = "BRANCH_EQ"
        shape = (more, forest.weights.shape[1])
        forest.weights = np.vstack([forest.weights, np.zeros(shape, forest.weights.dtype)])
        forest.given = np.vstack([forest.given, np.zeros(shape, bool)])


#: In the domain ``ai.onnx.ml``.
READERS: dict[str, Reader] = {
    "TreeEnsemble": _ensemble,
    "TreeEnsembleClassifier": _classifier,
    "TreeEnsembleRegressor": _regressor,
}
