"""Reshapes of products move behind the element-wise operators that follow.

::

    p = Dense(x, w)                           p = Dense(x, w)
    r = Reshape(p)                ->          a = Add(p, bias)
    y = Add(r, bias)                          y = Reshape(a)

The operators can then be the product's epilogue.
"""

from __future__ import annotations

from dataclasses import replace

from ....graph.ir import Graph, Node, Tensor
from ....graph.ops.base import Shape
from ....graph.ops.movement import Reshape
from ....graph.passes.dead_code import dead_code
from ...common.fuse_elementwise import is_elementwise
from ..templates.gemm import PRODUCTS


def sink_reshapes(graph: Graph) -> Graph:
    """The graph with Reshapes of products behind element-wise operators whose other operands have
    the shape of the result, or are broadcast along dimensions that both shapes have in common."""
    makers: dict[str, Node] = {}
    nodes: list[Node] = []
    tensors = dict(graph.tensors)
    results = set[str]()  # of products, and of what has moved before a Reshape of one

    def reshaped(name: str, shape: Shape) -> str:
        """A tensor in another shape."""
        data = tensors[name].data
        made = f"{name}.as{'x'.join(map(str, shape))}"
        if tensors[name].shape == shape:
            return name
        maker = makers.get(name)
        is_reshape = maker is not None and isinstance(maker.op, Reshape)
        if is_reshape and tensors[maker.inputs[0]].shape == shape:
            return maker.inputs[0]
        if data is not None:
            tensors[made] = Tensor.constant(made, data.reshape(shape))
        elif made not in tensors:
            tensors[made] = Tensor(made, shape, tensors[name].dtype)
            nodes.append(Node(made, Reshape(shape), (name,), made, node.target))
        return made

    for node in graph.nodes:
        before = next(
            (m for n in node.inputs if (m := makers.get(n)) and isinstance(m.op, Reshape)
             and m.inputs[0] in results), None,
        )  # fmt: skip
        wide = tensors[node.output].shape
        if before is not None and is_elementwise(node) and tensors[before.output].shape == wide:
            source = tensors[before.inputs[0]].shape
            shapes = [_moved(tensors[name].shape, wide, source) for name in node.inputs]
            if all(shape is not None for shape in shapes):
                inputs = tuple(
                    reshaped(name, shape)
                    for name, shape in zip(node.inputs, shapes, strict=True)
                    if shape is not None
                )
                flat = f"{node.output}.flat"
                tensors[flat] = Tensor(flat, source, tensors[node.output].dtype)
                nodes.append(replace(node, inputs=inputs, output=flat))
                results.add(flat)
                name = f"{node.name}.shape"
                node = replace(node, name=name, op=Reshape(wide), inputs=(flat,))
        if isinstance(node.op, PRODUCTS):
            results.add(node.output)
        makers[node.output] = node
        nodes.append(node)
    return dead_code(graph.with_nodes(nodes, *tensors.values()))


def _moved(shape: Shape, wide: Shape, source: Shape) -> Shape | None:
    """The shape of an operand that broadcasts to ``wide``, where that becomes ``source``; None if
    it has none."""
    if shape == wide:
        return source
    while shape[:1] == (1,):
        shape = shape[1:]
    fits = not shape or shape == wide[-len(shape) :] == source[-len(shape) :]
    return shape if fits else None
