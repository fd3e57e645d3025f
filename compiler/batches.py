"""Proof that a graph leaves the images of a batch apart, whatever its operators are.

The model is read for two images. Where these lie in each tensor follows, operator by operator, from
its tensor expression: an element of a result reads elements of its own image, and nothing else that
differs from image to image. The graph that is compiled, for another number of images, must be the
same but for sizes that grow with the batch; if it is for one image, for which operators such as
Expand are left out, that of three images may take its place. So n images are n runs for one.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from ..isa.errors import VdlaError
from .frontends.sizes import Sizes
from .graph.ir import Graph, Node, Tensor
from .graph.ops.base import Fusion, Op, Shape
from .graph.ops.movement import Reshape
from .targets.base import expression_of
from .te.expr import Binary, Cast, Const, Expr, Extern, Read, Var, children, walk
from .te.tensor import Tensor as Stage

#: Images of the graph whose operators are looked at, and of the one that stands in for one image.
IMAGES, OTHERS = 2, 3


@dataclass(frozen=True)
class Lies:
    """Where images lie in a tensor: along an axis, ``each`` elements of one side by side."""

    axis: int
    each: int = 1


class _Mixed(Exception):
    """An operator that may compute across images; the text says how."""


@dataclass(frozen=True)
class Batch:
    """How a graph treats the first dimensions that its model leaves open.

    Attributes
    ----------
    axes : by input and output, the dimension along which images lie; None where all share it.
        Missing names have images along their first dimension.
    why_not : the operator that mixes images and how, if they are not apart; ``axes`` are then None
    """

    axes: Mapping[str, int | None] = field(default_factory=dict)
    why_not: str = ""


def find_batch(graph: Graph, sizes: Sizes, read: Callable[[Sizes], Graph]) -> Batch:
    """The batch of a graph that was read for ``sizes``; ``read`` reads the same model for others. A
    model that can be read for one number of images only, and one with states, has images along the
    first dimension of all inputs and outputs.
    """
    opened = {name: shape[0] for name, shape in graph.symbols.items() if _opens(shape)}
    if not opened or graph.states:
        return Batch()
    counts = {graph[name].shape[0] for name in opened}
    others = {s: n for s, n in open_sizes(graph).items() if s not in opened.values()}

    def read_images(images: int) -> Graph:
        return read(Sizes(images, dims=others, values=sizes.values))

    try:
        two = read_images(IMAGES)
        if any(two[name].shape[0] != IMAGES for name in opened):
            return Batch()
        if len(counts) > 1:
            raise _Mixed(f"{' and '.join(map(repr, opened.values()))} are not one batch")
        [images], inputs = counts, _inputs(graph)
        found = None
        if images != IMAGES:
            try:
                found = _Proof(two, graph, images).run(inputs)
            except _Mixed:
                if images != 1:
                    raise
        if found is None:  # some operators are left out for a single image
            found = _Proof(two, read_images(OTHERS), OTHERS).run(inputs)
        axes = {name: _axis(name, found.get(name), two, graph, images) for name in graph.results}
    except VdlaError:
        return Batch()
    except _Mixed as mixed:
        return Batch(dict.fromkeys((*graph.given, *graph.results)), str(mixed))
    given = {name: inputs[name].axis if name in inputs else None for name in graph.given}
    return Batch(given | axes)


def _opens(sizes: Sequence[int | str]) -> bool:
    return isinstance(sizes[0], str) if sizes else False


def _inputs(graph: Graph) -> dict[str, Lies]:
    """Where images lie in inputs: along the dimensions with the names of open first ones."""
    names = {sizes[0] for sizes in graph.symbols.values() if _opens(sizes)}
    found = {}
    for name, sizes in graph.symbols.items():
        axes = [axis for axis, size in enumerate(sizes) if size in names]
        if len(axes) > 1:
            raise _Mixed(f"input {name!r} has the dimension {sizes[axes[0]]!r} several times")
        if axes:
            found[name] = Lies(axes[0])
    return found


def _axis(name: str, lies: Lies | None, two: Graph, graph: Graph, batch: int) -> int | None:
    """Along which dimension of an output of ``graph`` its images lie."""
    shape = two[name].shape
    if lies is not None and shape[lies.axis] != IMAGES * lies.each:
        raise _Mixed(f"output {name!r} has images apart, within dimension {lies.axis}")
    one = [n // IMAGES if lies and i == lies.axis else n for i, n in enumerate(shape)]
    wanted = [n * batch if lies and i == lies.axis else n for i, n in enumerate(one)]
    if list(graph[name].shape) != wanted:
        raise _Mixed(f"output {name!r} has another form for one image than for several")
    return None if lies is None else lies.axis


@dataclass
class _Proof:
    """Two graphs of a model, for ``IMAGES`` and for ``images`` of them, operator by operator.

    ``lies`` has the tensors that depend on images. Of the others, ``same`` says which are known to
    be equal in both graphs, and ``values`` keeps those that had to be computed.
    """

    graph: Graph
    other: Graph
    images: int
    lies: dict[str, Lies] = field(default_factory=dict)
    same: set[str] = field(default_factory=set)
    values: dict[tuple[int, str], np.ndarray] = field(default_factory=dict)

    def run(self, inputs: Mapping[str, Lies]) -> Mapping[str, Lies]:
        """Where images lie in each tensor that depends on them."""
        if len(self.graph.nodes) != len(self.other.nodes):
            raise _Mixed("its operators depend on the number of images")
        self.lies.update(inputs)
        self.same.update(name for name in self.graph.inputs if name not in inputs)
        for node, twin in zip(self.graph.nodes, self.other.nodes, strict=True):
            try:
                self._node(node, twin)
            except _Mixed as mixed:
                op = node.op.name
                raise _Mixed(f"node {node.name!r} ({op}) {mixed}") from None
        for name in self.graph.outputs:
            if name not in self.lies:
                self.expect_same(name, None)
        return self.lies

    def _node(self, node: Node, twin: Node) -> None:
        alike = node.inputs == twin.inputs and node.output == twin.output
        if not alike or type(node.op) is not type(twin.op):
            raise _Mixed("depends on the number of images")
        if not any(name in self.lies for name in node.inputs):
            if all(map(self._is_same, node.inputs)) and node.op.text == twin.op.text:
                self.same.add(node.output)
            return  # the value of another is computed where it matters
        shape, found = self.graph.result(node).shape, self._through(node)
        scaled = tuple(
            n * self.images // IMAGES if i == found.axis else n for i, n in enumerate(shape)
        )
        if self.other.result(twin).shape != scaled:
            raise _Mixed("has a result whose shape does not grow with the number of images")
        if not isinstance(node.op, Reshape):
            self._compare(node.op, twin.op)
        self.lies[node.output] = found

    def _compare(self, op: Op, twin: Op) -> None:
        """Raise unless attributes are equal, but for sizes that are as many times as large."""
        for (name, text), (_, other) in zip(op.attributes(), twin.attributes(), strict=True):
            if text == other:
                continue
            a, b = getattr(op, name), getattr(twin, name)
            sizes = isinstance(a, tuple) and isinstance(b, tuple) and len(a) == len(b)
            if not sizes or any(m != n and m * self.images != n * IMAGES for m, n in zip(a, b)):  # noqa: B905
                raise _Mixed(f"computes something else for another number of images ({name})")

    # ---- values that are the same for all images ----

    def _is_same(self, name: str) -> bool:
        """Whether a tensor is known to be equal in both graphs, without computing it."""
        mine, others = self.graph[name].data, self.other[name].data
        if name not in self.same and _equal(mine, others):
            self.same.add(name)
        return name in self.same

    def expect_same(self, name: str, lies: Lies | None) -> None:
        """Raise unless a tensor that depends on no image is equal for all images along an axis, and
        in both graphs."""
        if lies is None and self._is_same(name):
            return
        mine, others = self.value(0, name), self.value(1, name)
        if lies is None:
            equal = mine is others or _equal(mine, others)
        else:
            parts = _parts(mine, lies, IMAGES)
            twins = _parts(others, lies, self.images)
            first = next(parts)
            equal = all(_equal(first, part) for part in (*parts, *twins))
        if not equal:
            raise _Mixed(f"reads {name!r}, which depends on the image or on their number")
        if lies is None:
            self.same.add(name)

    def value(self, side: int, name: str) -> np.ndarray:
        if (side, name) not in self.values:
            graph = (self.graph, self.other)[side]
            data = graph[name].data
            if data is None:
                node = next((n for n in graph.nodes if n.output == name), None)
                if node is None:
                    raise _Mixed(f"reads {name!r}, which is not known")
                data = node.op.evaluate(*(self.value(side, i) for i in node.inputs))
            self.values[side, name] = data
        return self.values[side, name]

    # ---- operators ----

    def _through(self, node: Node) -> Lies:
        """Where the images lie in the result of an operator with an operand that has them."""
        operands = self.graph.operands(node)
        known = [self.lies.get(t.name) for t in operands]
        result = self.graph.result(node)
        if isinstance(node.op, Reshape) and known[0] is not None:
            return _reshaped(operands[0].shape, known[0], result.shape)
        if node.op.fusion in (Fusion.ELEMENTWISE, Fusion.ALIAS):
            return self._elementwise(operands, known, result)
        if 0 in result.shape or any(0 in t.shape for t in operands):
            raise _Mixed("has tensors without elements")
        try:
            expression = expression_of(self.graph, node)
        except (VdlaError, NotImplementedError):
            raise _Mixed("has no tensor expression, so that nothing is known of it") from None
        count = len(expression.args) - len(expression.attributes)
        stages = _Stages(self, dict(zip(expression.args, known, strict=False)))
        for stage, tensor in zip(expression.args[:count], operands, strict=False):
            stages.names[stage] = tensor.name
        for stage, array in zip(expression.args[count:], expression.attributes, strict=True):
            stages.arrays[stage], stages.lies[stage] = array, None
        found = stages.visit(expression.output)
        if found is None:
            raise _Mixed("loses the images")
        return found

    def _elementwise(
        self, operands: Sequence[Tensor], known: Sequence[Lies | None], result: Tensor
    ) -> Lies:
        rank = len(result.shape)
        found = {
            Lies(lies.axis + rank - len(t.shape), lies.each)
            for t, lies in zip(operands, known, strict=True)
            if lies is not None
        }
        if len(found) != 1:
            raise _Mixed("combines images along several dimensions")
        [lies] = found
        size = result.shape[lies.axis]
        for tensor, own in zip(operands, known, strict=True):
            axis = lies.axis - (rank - len(tensor.shape))
            if own is not None and tensor.shape[axis] != size:
                raise _Mixed("combines one image with several")
            if own is None:
                shared = axis < 0 or tensor.shape[axis] == 1
                self.expect_same(tensor.name, None if shared else Lies(axis, lies.each))
        return lies


def _reshaped(shape: Shape, lies: Lies, made: Shape) -> Lies:
    """Where images lie after a Reshape: so many elements later there begins the next one."""
    stride = math.prod(shape[lies.axis + 1 :]) * lies.each
    for axis, size in enumerate(made):
        after = math.prod(made[axis + 1 :])
        if after <= stride < after * size:
            each = stride // after
            if stride % after == 0 and size % (each * IMAGES) == 0:
                return Lies(axis, each)
    raise _Mixed("puts elements of several images together")


def _parts(array: np.ndarray, lies: Lies, images: int) -> Iterator[np.ndarray]:
    """What each image reads of an array along an axis."""
    shape = array.shape
    size = shape[lies.axis]
    if size % (images * lies.each):
        raise _Mixed("reads a constant that does not divide among images")
    split = array.reshape(
        *shape[: lies.axis], size // (images * lies.each), images, lies.each,
        *shape[lies.axis + 1 :],
    )  # fmt: skip
    for image in range(images):
        yield np.take(split, image, lies.axis + 1)


def _equal(a: np.ndarray | None, b: np.ndarray | None) -> bool:
    """Whether both are arrays of the same elements."""
    if a is None or b is None or a is b or a.shape != b.shape:
        return a is b and a is not None
    return np.array_equal(a, b, equal_nan=a.dtype.kind == "f")


@dataclass
class _Stages:
    """The stages of a tensor expression: where images lie in each."""

    proof: _Proof
    lies: dict[Any, Lies | None]
    #: Operands of the operator and arrays among its attributes, by placeholder.
    names: dict[Any, str] = field(default_factory=dict)
    arrays: dict[Any, np.ndarray] = field(default_factory=dict)
    #: Indices, by their identity, that name an element of the image itself.
    owned: set[int] = field(default_factory=set)

    def visit(self, stage: Stage) -> Lies | None:
        """Where images lie in a stage, after those that it reads."""
        if stage in self.lies:
            return self.lies[stage]
        assert stage.body is not None
        sources = [node.source for node in walk(stage.body) if isinstance(node, Read)]
        if stage.state is not None:  # a scan: its rows have images where the first ones have them
            self.lies[stage.state] = self.visit(sources[1])
        for source in dict.fromkeys(sources):
            self.visit(source)
        self.lies[stage] = self._stage(stage, stage.body)
        if stage.state is not None and self.lies[stage] != self.lies[stage.state]:
            raise _Mixed("computes rows from those of other images")
        return self.lies[stage]

    def _stage(self, stage: Stage, body: Expr) -> Lies | None:
        reads = [node for node in walk(body) if isinstance(node, Read)]
        carried = [(r, lies) for r in reads if (lies := self.lies[r.source]) is not None]
        if not carried:
            for read in reads:
                self._expect_same(read.source, None)
            return None
        if isinstance(body, Extern):
            raise _Mixed("is a program of its own, of which nothing is known")
        axes = {axis.var: i for i, axis in enumerate(stage.axes)}
        found: set[tuple[Any, int]] = set()
        for read, lies in carried:
            index, each = read.indices[lies.axis], lies.each
            var: Any = index
            if not isinstance(index, Var):
                var, each = self._own_image(index, read.source, lies), 1
            elif index in axes and stage.shape[axes[index]] != read.source.shape[lies.axis]:
                var = None
            if var not in axes:
                raise _Mixed("computes across the elements of several images")
            found.add((var, each))
        if len(found) != 1:
            raise _Mixed("combines images along several dimensions")
        [(var, each)] = found
        self._check(body, var, each)
        return Lies(axes[var], each)

    def _own_image(self, index: Expr, source: Any, lies: Lies) -> Var | None:
        """The variable of an index that is looked up in a table, if for image number i that is an
        element of image i, and the same one for all; exporters write masks so."""
        match index:
            case Binary("%", Cast(_, Read(table, places)) | Read(table, places), Const(size)):
                pass
            case _:
                return None
        whole = size == source.shape[lies.axis] == IMAGES * lies.each
        if table not in self.names or not whole:
            return None
        counts = (IMAGES, self.proof.images)
        tables = [self.proof.value(side, self.names[table]) for side in (0, 1)]
        for axis, var in enumerate(places):
            if not isinstance(var, Var):
                continue
            if any(t.shape[axis] != n for t, n in zip(tables, counts, strict=True)):
                continue
            rows = [
                np.moveaxis(t % (n * lies.each), axis, 0)
                for t, n in zip(tables, counts, strict=True)
            ]
            first = rows[0][0]
            own = (
                _equal(first + i * lies.each, row) for side in rows for i, row in enumerate(side)
            )
            if (first < lies.each).all() and all(own):
                self.owned.add(id(index))
                return var
        return None

    def _check(self, expr: Expr, var: Var, each: int) -> None:
        """Raise if an expression depends on which image it computes, but by what it reads of it."""
        if expr == var:
            raise _Mixed("computes with the image's place in the batch")
        if not isinstance(expr, Read):
            for child in children(expr):
                self._check(child, var, each)
            return
        lies = self.lies[expr.source]
        shared = None
        for axis, index in enumerate(expr.indices):
            if id(index) in self.owned:
                continue
            if index == var and lies is None:
                shared = Lies(axis, each)
            elif index != var or lies is None or axis != lies.axis:
                self._check(index, var, each)
        if lies is None:
            self._expect_same(expr.source, shared)

    def _expect_same(self, source: Any, lies: Lies | None) -> None:
        """As :meth:`_Proof.expect_same`, of what an expression reads."""
        if source in self.names:
            self.proof.expect_same(self.names[source], lies)
        elif lies is not None:
            array = self.arrays.get(source)
            parts = [] if array is None else [*_parts(array, lies, IMAGES)]
            if not parts or not all(_equal(parts[0], part) for part in parts):
                raise _Mixed("has attributes that depend on the image")


def open_sizes(graph: Graph) -> dict[str, int]:
    """The size that a graph has for each open dimension, by its name."""
    return {
        size: graph[name].shape[axis]
        for name, sizes in graph.symbols.items()
        for axis, size in enumerate(sizes)
        if isinstance(size, str)
    }
