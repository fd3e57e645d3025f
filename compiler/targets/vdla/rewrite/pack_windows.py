"""Pack the windows of a first convolution into blocks.

A convolution over a few channels, such as those of a picture, would leave most of each block of
input channels empty at every position of its kernel. Where its input comes from the host, the host
lays out whole windows instead: all channels and positions of a window one behind another. The
accelerator multiplies them as a 1x1 convolution::

    y = QConv2d(x [N,C,H,W], w [OC,C,KH,KW])
      ->
    p = PackWindows(x) [N,C*KH*KW,OH,OW];  y = QConv2d(p, w [OC,C*KH*KW,1,1])
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace

from ....graph.ir import Graph, Node, Tensor
from ....graph.ops.convolution import QConv2d
from ....graph.ops.layout import PackWindows
from ..machine import ACCELERATOR, HOST


def pack_windows(graph: Graph, packs: Callable[[Graph, Node], bool]) -> Graph:
    """Rewrite convolutions on the accelerator that read from the host, where ``packs`` says so."""
    producers = graph.producers()
    nodes: list[Node] = []
    tensors: list[Tensor] = []
    for node in graph.nodes:
        source = producers.get(node.inputs[0])
        conv = isinstance(node.op, QConv2d) and node.target == ACCELERATOR
        if conv and (source is None or source.target == HOST) and packs(graph, node):
            packing, conv, made = _packed(graph, node)
            nodes += [packing, conv]
            tensors += made
        else:
            nodes.append(node)
    return graph.with_nodes(nodes, *tensors)


def _packed(graph: Graph, node: Node) -> tuple[Node, Node, list[Tensor]]:
    """The packing on the host, the convolution of the windows, and the new tensors."""
    op = node.op_as(QConv2d)
    x, weight = graph[node.inputs[0]], graph[node.inputs[1]]
    assert weight.data is not None
    pack = PackWindows(weight.shape[2:], op.strides, op.pads, op.x_zero_point)  # type: ignore[arg-type]
    shape, dtype = pack.infer((x.shape, x.dtype))
    windows = Tensor(f"{node.output}.windows", shape, dtype, quant=x.quant)
    flat = weight.data.reshape(weight.shape[0], -1, 1, 1)
    wide = replace(weight, name=f"{weight.name}.windows", shape=flat.shape, data=flat)
    reason = "windows of few channels are packed into blocks on their way to the accelerator"
    packing = Node(f"{node.name}.windows", pack, (x.name,), windows.name, HOST, reason)
    conv = replace(
        node,
        op=replace(op, strides=(1, 1), pads=(0, 0, 0, 0)),
        inputs=(windows.name, wide.name, *node.inputs[2:]),
    )
    return packing, conv, [windows, wide]
