"""Caches of keys and values that get new rows in place.

The scores of these rows would wait until the host has put keys and values into the caches, between
any two layers. So attention reads a cache as it was before, and the new rows behind it.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from math import prod
from typing import Any

import numpy as np
import onnx
from onnx import helper

from ..graph.passes.masks import GAP
from .draft import Draft, attribute, label

#: Operators between a cache and a product: moves, and a number that keys are multiplied by.
MOVES = {"Expand", "Mul", "Reshape", "Transpose", "Unsqueeze"}


def scatter_rows(draft: Draft) -> None:
    """PyTorch's way to write consecutive rows into a cache becomes a TensorScatter:
    ``Transpose(ScatterND(Transpose(cache), first + arange(rows), Transpose(new)))``."""
    if not any(_written(draft)):
        return
    draft.renew()
    places: dict[str, str] = {}
    for node, after, cache, first in [*_written(draft)]:
        if first not in places:
            places[first] = draft.fresh(f"{first}.place")
            operands = [first, draft.constant(f"{places[first]}.shape", np.array([1]))]
            made = helper.make_node("Reshape", operands, [places[first]], places[first])
            draft.nodes.insert(draft.place(node), made)
        order = attribute(after, "perm", [])
        rows = draft.fresh(f"{after.output[0]}.rows")
        operands = [cache, rows, places[first]]
        place = draft.place(after)
        draft.nodes[place : place + 1] = [
            helper.make_node("Transpose", [node.input[2]], [rows], rows, perm=order),
            helper.make_node(
                "TensorScatter", operands, after.output, label(node), axis=order.index(0)
            ),
        ]
        draft.nodes.remove(node)
    draft.infer()


def _written(draft: Draft) -> Iterator[tuple[onnx.NodeProto, onnx.NodeProto, str, str]]:
    """Each ScatterND that writes consecutive rows into an input, the Transpose behind it, the
    input, and the number of the first row."""
    producers, readers = draft.producers(), draft.readers()
    for node in draft.nodes:
        before = producers.get(node.input[0]) if node.op_type == "ScatterND" else None
        if before is None or before.op_type != "Transpose" or readers[node.output[0]] != 1:
            continue
        order, cache = attribute(before, "perm", []), before.input[0]
        after = next((other for other in draft.nodes if node.output[0] in other.input), node)
        first = _first_place(draft, producers, node.input[1])
        is_turned = attribute(after, "perm", []) == np.argsort(order).tolist()
        is_cache = cache in draft.inputs and draft.shapes[cache][0] == 1 and order[0] > 0
        is_plain = attribute(node, "reduction", b"none") == b"none"
        if first and is_plain and is_turned and is_cache:
            yield node, after, cache, first


def _first_place(draft: Draft, producers: dict[str, onnx.NodeProto], name: str) -> str:
    """The number that consecutive places [rows, 1] begin with; "" for other places."""
    rows = draft.shapes[name][0]
    if draft.shapes[name] != (rows, 1) or draft.dtypes[name] != "int64":
        return ""
    while rows > 1 and (node := producers.get(name)) is not None:
        if node.op_type == "Add":
            for first, offsets in (node.input, [*node.input][::-1]):
                values = draft.constants.get(offsets, np.array([]))
                if np.array_equal(values.reshape(-1), np.arange(rows)):
                    return first if prod(draft.shapes[first]) == 1 else ""
        if node.op_type not in ("Reshape", "Squeeze", "Unsqueeze"):
            return ""
        name = node.input[0]
    return name if rows == 1 else ""


def read_before_writing(draft: Draft) -> None:
    """Attention whose keys and values are caches behind a TensorScatter reads the caches before it,
    and the rows that are written: ``Softmax(q * keys + Where(condition, 0, -1e9)) * values``.

    The places that are written to are hidden, and the rows have the conditions of these."""
    found = [_attention(draft, node) for node in draft.nodes if node.op_type == "Softmax"]
    masks: dict[tuple[str, str], str] = {}
    for attention in found:
        if attention is not None:
            attention.rewrite(draft, masks)
    if masks:
        draft.infer()


@dataclass(frozen=True)
class _Way:
    """From a TensorScatter to a product's second operand, whose dimension ``axis`` has the cache's
    places. ``steps`` are the nodes between them, in order, with that dimension of their results."""

    scatter: onnx.NodeProto
    steps: tuple[tuple[onnx.NodeProto, int], ...]
    product: onnx.NodeProto
    axis: int

    def read_before(self, draft: Draft) -> None:
        """Let the way begin at the cache before it is written, and the rows behind it."""
        cache, rows = self.scatter.input[:2]
        result, axis = self.scatter.output[0], attribute(self.scatter, "axis", -2)
        both = draft.fresh(f"{result}.before")
        joined = helper.make_node("Concat", [cache, rows], [both], both, axis=axis)
        draft.nodes.insert(draft.place(self.scatter) + 1, joined)
        first = self.steps[0][0] if self.steps else self.product
        first.input[[*first.input].index(result)] = both
        places, more = draft.shapes[cache][axis], draft.shapes[rows][axis]
        for node, place in self.steps:
            if node.op_type in ("Expand", "Reshape"):
                shape = draft.constants[node.input[1]].copy()
                shape[place] += more if shape[place] == places else 0
                node.input[1] = draft.constant(f"{node.output[0]}.shape", shape)


@dataclass(frozen=True)
class _Attention:
    """One that reads caches of so many places, into which so many rows are written. ``sum`` adds
    what ``chosen``, a Where, makes of conditions; its first number is that of a place that is seen,
    or else the second one is."""

    ways: tuple[_Way, _Way]
    sum: onnx.NodeProto
    chosen: onnx.NodeProto
    sees_first: bool
    places: int
    rows: int

    def rewrite(self, draft: Draft, masks: dict[tuple[str, str], str]) -> None:
        """``masks`` are those that layers before have, by mask and place of the first row."""
        for way in self.ways:
            way.read_before(draft)
        key = self.chosen.output[0], self.ways[0].scatter.input[2]
        if key not in masks:
            masks[key] = self.mask(draft, *key)
        self.sum.input[[*self.sum.input].index(key[0])] = masks[key]

    def mask(self, draft: Draft, mask: str, first: str) -> str:
        """That of the places before and of the rows."""
        condition, *numbers = self.chosen.input
        base = draft.fresh(f"{mask} from {first}")
        made: list[onnx.NodeProto] = []

        def add(kind: str, *operands: str | int | np.ndarray, **attributes: Any) -> str:
            """A node; numbers become a constant."""
            name = f"{base}.{kind} {len(made)}"
            names = [
                x if isinstance(x, str) else draft.constant(f"{name}.number", np.asarray(x))
                for x in operands
            ]
            made.append(helper.make_node(kind, names, [name], name, **attributes))
            return name

        columns = np.arange(self.places)
        before = add("Less", columns, first)
        kept = add("Or", before, add("Less", add("Add", first, self.rows - 1), columns))
        old = add("And", condition, kept)
        if not self.sees_first:
            old = add("Or", condition, add("Not", kept))
        own = add("Gather", condition, add("Add", first, np.arange(self.rows)), axis=-1)
        seen = add("Concat", old, own, axis=-1)
        made.append(helper.make_node("Where", [seen, *numbers], [base], base))
        place = draft.place(self.sum)
        draft.nodes[place:place] = made
        return base


def _attention(draft: Draft, softmax: onnx.NodeProto) -> _Attention | None:
    """What a softmax is part of, if it reads caches; None for any other."""
    producers, shape = draft.producers(), draft.shapes[softmax.output[0]]
    added, mixing = producers.get(softmax.input[0]), _mixing(draft, softmax)
    if added is None or added.op_type != "Add" or mixing is None:
        return None
    pairs = [(producers.get(mask), _product(draft, producers, scores))
             for scores, mask in (added.input, [*added.input][::-1])]  # fmt: skip
    for chosen, product in pairs:
        if chosen is None or product is None or chosen.op_type != "Where":
            continue
        keys, values = (_way(draft, producers, node) for node in (product, mixing))
        if keys is None or values is None:
            return None
        numbers = [draft.constants.get(name, np.zeros(2)) for name in chosen.input[1:]]
        last = attribute(softmax, "axis", -1) % len(shape) == len(shape) - 1
        turned = [way.axis - len(draft.shapes[way.product.input[1]]) for way in (keys, values)]
        if (
            last
            and turned == [-1, -2]
            and keys.scatter.input[2] == values.scatter.input[2]
            and draft.shapes[keys.scatter.input[2]] == (1,)
            and draft.shapes[chosen.input[0]][-1:] == shape[-1:]
            and [number.size for number in numbers] == [1, 1]
            and abs(gap := float(numbers[0].item()) - float(numbers[1].item())) >= GAP
        ):
            rows = draft.shapes[keys.scatter.input[1]][attribute(keys.scatter, "axis", -2)]
            return _Attention((keys, values), added, chosen, gap > 0, shape[-1], rows)
    return None


def _product(
    draft: Draft, producers: dict[str, onnx.NodeProto], name: str
) -> onnx.NodeProto | None:
    """The product that scores come from, perhaps times a number."""
    node = producers.get(name)
    while node is not None and node.op_type in ("Div", "Mul"):
        data = [n for n in node.input if n not in draft.constants]
        node = producers.get(data[0]) if len(data) == 1 else None
    return node if node is not None and node.op_type == "MatMul" else None


def _mixing(draft: Draft, softmax: onnx.NodeProto) -> onnx.NodeProto | None:
    """The product of values that a softmax is for. PyTorch puts 0 for a row without any place."""
    names = {softmax.output[0]}
    for node in draft.nodes:
        if names.isdisjoint(node.input):
            continue
        if node.op_type == "MatMul":
            return node if node.input[0] in names else None
        if node.op_type not in ("IsNaN", "Where"):
            return None
        names |= {*node.output}
    return None


def _way(
    draft: Draft, producers: dict[str, onnx.NodeProto], product: onnx.NodeProto
) -> _Way | None:
    """How a product's second operand comes from a TensorScatter, if nothing else reads what is
    between."""
    readers, steps, name = draft.readers(), list[tuple[onnx.NodeProto, str]](), product.input[1]
    while (node := producers.get(name)) is not None and node.op_type != "TensorScatter":
        data = [n for n in node.input if n not in draft.constants]
        if node.op_type not in MOVES or len(data) != 1 or readers[name] != 1:
            return None
        name = data[0]
        steps.append((node, name))
    if node is None or attribute(node, "mode", b"linear") != b"linear" or len(node.input) < 3:
        return None
    axis = attribute(node, "axis", -2) % len(draft.shapes[name])
    found = []
    for step, data in reversed(steps):
        moved = _moved(step, draft.shapes[data], draft.shapes[step.output[0]], axis)
        if moved is None:
            return None
        found.append((step, moved))
        axis = moved
    return _Way(node, tuple(found), product, axis)


def _moved(
    node: onnx.NodeProto, before: tuple[int, ...], after: tuple[int, ...], axis: int
) -> int | None:
    """Where a dimension of an operand is in a result; None where it is no dimension of it."""
    match node.op_type:
        case "Transpose":
            return attribute(node, "perm", [*range(len(before))][::-1]).index(axis)
        case "Expand":
            return axis + len(after) - len(before)
        case "Mul":
            return axis if before == after else None
    sizes = enumerate(after)
    same = (i for i, n in sizes if n == before[axis] and prod(after[:i]) == prod(before[:axis]))
    return next(same, None)
