"""A recurrent network on the tree of loops, which ranks programs (TreeRNN: AutoTVM, section 5.2).

Each node of the tree has a state, made by a gated unit of the node's numbers and the sum of the
states inside of it. The state of the whole program gives its score, added to the estimates of the
template's cost model, where it has one. The network learns from pairs of trials, which of both is
faster.

It needs the extra ``treernn``.
"""

from __future__ import annotations

from collections.abc import Sequence
from functools import lru_cache, partial
from typing import Any

import jax  # pyright: ignore[reportMissingImports]
import numpy as np
import optax  # pyright: ignore[reportMissingImports]

from .boosted import BASE_WEIGHT, FEWEST, Points
from .loop_tree import LENGTH, LoopTree, TreeFeatures

#: Numbers of a state; steps of learning after each plan of trials, and their size.
STATE, STEPS, RATE = 32, 60, 5e-3
#: Programs and nodes are filled up to one of few sizes, for each of which code is made once.
BATCH, NODES = 64, 16


class TreeNetwork:
    """Learns from the trials of one task; goes on from what it has learned before."""

    def __init__(self, features: TreeFeatures, seed: int = 0):
        self.features, self.seed = features, seed
        self._weights: Any = None

    @property
    def knows(self) -> bool:
        """Whether it ranks points."""
        return self._weights is not None or self.features.has_estimates

    @property
    def scores_all(self) -> bool:
        """Each program has to be lowered."""
        return False

    def fit(self, points: Points, costs: Sequence[float]) -> None:
        """Learn from all trials of the task. A trial that failed is the slowest."""
        cost = np.asarray(costs, float)
        if len(points) < FEWEST or not np.isfinite(cost).any():
            return
        if self._weights is None:
            self._weights = _new_weights(self.seed)
        size = -(-len(points) // BATCH) * BATCH
        ranks = np.full(size, -1.0)
        # Equal costs are no pair; those of filled places, -1, are in none.
        ranks[: len(points)] = np.unique(-cost, return_inverse=True)[1]
        rows, around, margin = self._arrays(points, size)
        self._weights = _learner()(self._weights, rows, around, margin, ranks)

    def score(self, points: np.ndarray) -> np.ndarray:
        """float64 [points]: the greater the faster."""
        if self._weights is None:
            return -BASE_WEIGHT * self.features.prior(points)
        found = []
        for begin in range(0, len(points), BATCH):
            some = points[begin : begin + BATCH]
            scores = _scorer()(self._weights, *self._arrays(some, BATCH))
            found.append(np.asarray(scores, float)[: len(some)])
        return np.concatenate(found) if found else np.zeros(0)

    def _arrays(self, points: Points, size: int) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
        """The trees of points, filled up to ``size`` programs of equally many nodes."""
        trees = [self.features.tree(int(point)) for point in points]
        nodes = -(-max(len(tree.rows) for tree in trees) // NODES) * NODES
        rows = np.zeros((size, nodes, LENGTH), np.float32)
        around = np.full((size, nodes), nodes - 1, np.int32)
        for index, tree in enumerate(trees):
            _fill(tree, rows[index], around[index])
        margin = np.zeros(size, np.float32)
        margin[: len(trees)] = -BASE_WEIGHT * self.features.prior(np.asarray(points))
        return rows, around, margin


def _fill(tree: LoopTree, rows: np.ndarray, around: np.ndarray) -> None:
    """Write a tree to the last rows, so that the program is the last node of all."""
    first = len(rows) - len(tree.rows)
    rows[first:] = tree.rows
    around[first:] = first + np.array(tree.around)
    rows[:first] = 0.0
    around[:first] = np.arange(first)  # nodes around none


def _new_weights(seed: int) -> dict[str, Any]:
    rng = np.random.default_rng(seed)

    def matrix(inputs: int, outputs: int) -> Any:
        return jax.numpy.asarray(rng.normal(0, inputs**-0.5, (inputs, outputs)), "float32")

    weights = {f"{gate} of {side}": matrix(size, STATE) for gate in ("keep", "reset", "new")
               for side, size in (("row", LENGTH), ("state", STATE))}  # fmt: skip
    biases = {gate: jax.numpy.zeros(STATE, "float32") for gate in ("keep", "reset", "new")}
    return weights | biases | {"score": jax.numpy.zeros(STATE, "float32")}


def _scores(weights: dict[str, Any], rows: Any, around: Any, margin: Any) -> Any:
    """The scores of many programs: [programs, nodes, numbers], [programs, nodes], [programs]."""
    sigmoid, tanh = jax.nn.sigmoid, jax.numpy.tanh
    # Logarithms of counts are up to 30.
    seen = {gate: (rows / 8) @ weights[f"{gate} of row"] + weights[gate]
            for gate in ("keep", "reset", "new")}  # fmt: skip
    programs = jax.numpy.arange(rows.shape[0])

    def visit(inside: Any, node: Any) -> tuple[Any, None]:
        state = inside[:, node]
        keep = sigmoid(seen["keep"][:, node] + state @ weights["keep of state"])
        reset = sigmoid(seen["reset"][:, node] + state @ weights["reset of state"])
        new = tanh(seen["new"][:, node] + (reset * state) @ weights["new of state"])
        made = keep * state + (1 - keep) * new
        outer = around[:, node]
        # A node around itself is the program, or none at all: its state replaces the sum.
        inside = inside.at[programs, outer].add(jax.numpy.where((outer == node)[:, None], 0, made))
        return inside.at[:, node].set(made), None

    states = jax.numpy.zeros((*rows.shape[:2], STATE), "float32")
    states, _ = jax.lax.scan(visit, states, jax.numpy.arange(rows.shape[1]))
    return margin + states[:, -1] @ weights["score"]


@lru_cache(maxsize=1)
def _scorer() -> Any:
    return jax.jit(_scores)


@lru_cache(maxsize=1)
def _learner() -> Any:
    """Steps of Adam on the logistic loss of all pairs of trials of different cost."""
    adam = optax.adam(RATE)

    def loss(weights: Any, rows: Any, around: Any, margin: Any, ranks: Any) -> Any:
        scores = _scores(weights, rows, around, margin)
        faster = (ranks[:, None] > ranks[None, :]) & (ranks >= 0)[:, None] & (ranks >= 0)[None, :]
        losses = jax.nn.softplus(scores[None, :] - scores[:, None])
        return (losses * faster).sum() / faster.sum()

    def learn(weights: Any, rows: Any, around: Any, margin: Any, ranks: Any) -> Any:
        slope = jax.grad(partial(loss, rows=rows, around=around, margin=margin, ranks=ranks))

        def step(carried: Any, _: Any) -> Any:
            weights, state = carried
            updates, state = adam.update(slope(weights), state)
            return (optax.apply_updates(weights, updates), state), None

        begun = weights, adam.init(weights)
        (weights, _), _ = jax.lax.scan(step, begun, None, length=STEPS)
        return weights

    return jax.jit(learn)
