"""Rotary embeddings. Cosines and sines are quantised, so that the file says all that is rounded. Of
one that a model writes out, the steps stay float: the compiler finds one operator between the
quantisation of what is turned and that of the result."""

from __future__ import annotations

from collections.abc import Collection
from dataclasses import dataclass

import onnx

from ..graph.passes.fuse_rotation import largest
from .calibrate import Range
from .draft import Draft, attribute

STEP = "a step of a rotary embedding"


def rotation_steps(draft: Draft) -> dict[int, str]:
    """Why the nodes of rotary embeddings in halves stay float, by position::

        x * cos + concat(-b, a) * sin        concat(a * cos - b * sin, a * sin + b * cos)

    with the halves a and b of x.
    """
    finder = _Finder(draft)
    found = {place for node in draft.nodes for place in finder.embedding(node).steps}
    return dict.fromkeys(sorted(found), STEP)


def factor_ranges(draft: Draft, stored: Collection[str]) -> dict[str, Range]:
    """The ranges of the cosines and sines that tensors of ``stored`` are turned by: as wide as
    these can be, whatever samples have. Those of unknown magnitude are left out."""
    finder = _Finder(draft)
    made = [finder.embedding(node) for node in draft.nodes]
    pairs = {one.factors for one in made if one.turned in stored}
    if not pairs:
        return {}
    graph, ranges = draft.imported(), dict[str, Range]()
    producers = graph.producers()
    for pair in pairs:
        most = [largest(graph, producers, name) for name in pair]
        if all(most):  # one scale serves both products
            ranges |= dict.fromkeys(pair, Range(-max(most), max(most)))
    return ranges


@dataclass(frozen=True)
class _Embedding:
    """What is turned, the cosines and sines, and the positions of the nodes that a model writes it
    out as."""

    turned: str = ""
    factors: tuple[str, ...] = ()
    steps: frozenset[int] = frozenset()


class _Finder:
    def __init__(self, draft: Draft):
        self.nodes = draft.nodes
        self.places = {name: i for i, node in enumerate(draft.nodes) for name in node.output}

    def maker(self, name: str, *kinds: str) -> onnx.NodeProto | None:
        """The node of one of these kinds that computes a tensor."""
        node = self.nodes[self.places[name]] if name in self.places else None
        return node if node is not None and node.op_type in kinds else None

    def embedding(self, last: onnx.NodeProto) -> _Embedding:
        """The embedding that ends here; an empty one if none does."""
        if last.op_type == "RotaryEmbedding":
            in_halves = not attribute(last, "interleaved", 0)
            return _Embedding(last.input[0], (*last.input[1:3],)) if in_halves else _Embedding()
        sums = [last] if last.op_type == "Add" else []
        if last.op_type == "Concat" and len(last.input) == 2:
            ends = [self.maker(name, "Add", "Sub") for name in last.input]
            sums = [made for made in ends if made] if None not in ends else []
        products = [self.maker(name, "Mul") for total in sums for name in total.input]
        if len(products) not in (2, 4) or None in products:
            return _Embedding()
        names = [name for made in products if made for name in made.input]
        ways = [self.ways(name) for name in names]
        # Each product has a factor of its own kind, and something of x.
        shared = set.intersection(
            *({source for source, _ in (*ways[n], *ways[n + 1])} for n in range(0, len(ways), 2))
        )
        halves = {place for way in ways for source, places in way if source in shared
                  for place in places}  # fmt: skip
        if len(shared) != 1 or not halves:
            return _Embedding()
        nodes = [last, *sums, *(made for made in products if made)]
        steps = halves | {self.places[node.output[0]] for node in nodes}
        factors = [
            name for name, found in zip(names, ways, strict=True)
            if shared.isdisjoint(source for source, _ in found)
        ]  # fmt: skip
        return _Embedding(shared.pop(), tuple(dict.fromkeys(factors)), frozenset(steps))

    def ways(self, name: str) -> list[tuple[str, set[int]]]:
        """The tensor itself, and the one that it is a half of, or both halves in another order;
        each with the positions of the nodes between."""
        found: list[tuple[str, set[int]]] = [(name, set())]
        if half := self.maker(name, "Slice", "Split"):
            found.append((half.input[0], {self.places[name]}))
        turned = self.maker(name, "Concat")
        if turned is not None and len(turned.input) == 2:
            places, sources = {self.places[name]}, set()
            for part in turned.input:
                negated = self.maker(part, "Neg")
                places |= {self.places[part]} if negated else set()
                half = self.maker(negated.input[0] if negated else part, "Slice", "Split")
                sources.add(half.input[0] if half else "")
                places |= {self.places[half.output[0]]} if half else set()
            if len(sources) == 1 and "" not in sources:
                found.append((sources.pop(), places))
        return found
