"""Pack the windows of a first convolution into blocks.

A convolution over a few channels, such as those of a picture, would leave most of each block of
input channels empty at every position of its kernel. Where its input comes from the host, the host
lays out whole windows instead, all channels and positions of one behind another, and the
accelerator multiplies them as a 1x1 convolution::

    y = QConv2d(x [N,C,H,W], w [OC,C,KH,KW])
      ->
    p = PackWindows(x) [N,C*KH*KW,OH,OW];  y = QConv2d(p, w [OC,C*KH*KW,1,1])
"""

from __future__ import annotations

from dataclasses import dataclass, replace

import numpy as np

from ....graph.ir import Graph, Node, Tensor
from ....graph.ops.fixed_point import FixedOp, Type
from ....graph.ops.integer import Pads, Pair, QConv2d


@dataclass(frozen=True)
class PackWindows(FixedOp):
    """x int8 [N,C,H,W] to int8 [N,C*KH*KW,OH,OW]: each output pixel's window, channel by channel,
    outside of the image ``fill``.
    """

    kernel: Pair
    strides: Pair
    pads: Pads
    fill: int

    def result(self, *operands: Type) -> Type | None:
        if len(operands) != 1 or len(operands[0][0]) != 4 or operands[0][1] != "int8":
            return None
        (n, channels, height, width), _ = operands[0]
        top, left, bottom, right = self.pads
        rows = (height + top + bottom - self.kernel[0]) // self.strides[0] + 1
        cols = (width + left + right - self.kernel[1]) // self.strides[1] + 1
        return (n, channels * self.kernel[0] * self.kernel[1], rows, cols), "int8"

    def evaluate(self, *args: np.ndarray) -> np.ndarray:
        (x,) = args
        top, left, bottom, right = self.pads
        border = ((0, 0), (0, 0), (top, bottom), (left, right))
        padded = np.pad(x, border, constant_values=self.fill)
        seen = np.lib.stride_tricks.sliding_window_view(padded, self.kernel, (2, 3))
        seen = seen[:, :, :: self.strides[0], :: self.strides[1]]
        n, channels, rows, cols, kh, kw = seen.shape
        moved = seen.transpose(0, 1, 4, 5, 2, 3)
        return np.ascontiguousarray(moved).reshape(n, channels * kh * kw, rows, cols)


def pack_windows(graph: Graph, block: int) -> Graph:
    """Rewrite convolutions on the accelerator that read few channels from the host, where that
    saves multiplications; ``block`` is the accelerator's number of channels in a block.
    """
    producers = graph.producers()
    nodes: list[Node] = []
    tensors: list[Tensor] = []
    for node in graph.nodes:
        source = producers.get(node.inputs[0])
        if _pays(graph, node, block) and (source is None or source.target == "cpu"):
            packing, conv, made = _packed(graph, node)
            nodes += [packing, conv]
            tensors += made
        else:
            nodes.append(node)
    return graph.with_nodes(nodes, *tensors)


def _pays(graph: Graph, node: Node, block: int) -> bool:
    op = node.op
    if not isinstance(op, QConv2d) or node.target != "accel" or op.groups != 1:
        return False
    _, channels, kh, kw = graph[node.inputs[1]].shape
    packed = -(-channels * kh * kw // block)
    return op.dilations == (1, 1) and packed < -(-channels // block) * kh * kw


def _packed(graph: Graph, node: Node) -> tuple[Node, Node, list[Tensor]]:
    """The packing on the host, the convolution of the windows, and the new tensors."""
    op = node.op
    assert isinstance(op, QConv2d)
    x, weight = graph[node.inputs[0]], graph[node.inputs[1]]
    assert weight.data is not None
    pack = PackWindows(weight.shape[2:], op.strides, op.pads, op.x_zero_point)  # type: ignore[arg-type]
    made = pack.result((x.shape, x.dtype))
    assert made is not None
    windows = Tensor(f"{node.output}.windows", made[0], made[1], quant=x.quant)
    flat = weight.data.reshape(weight.shape[0], -1, 1, 1)
    wide = replace(weight, name=f"{weight.name}.windows", shape=flat.shape, data=flat)
    reason = "windows of few channels are packed into blocks on their way to the accelerator"
    packing = Node(f"{node.name}.windows", pack, (x.name,), windows.name, "cpu", reason)
    conv = replace(
        node,
        op=replace(op, strides=(1, 1), pads=(0, 0, 0, 0)),
        inputs=(windows.name, wide.name, *node.inputs[2:]),
    )
    return packing, conv, [windows, wide]
