"""Slices, concatenations and replaced ends of the positions of images, on the vector unit.

An image [1, C, N, 1] lies in DRAM as [C/block][N][block], so that a few of its positions, or those
of several images, are no memory in a row. Each image's positions are loaded, copied and stored."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from math import prod
from typing import NamedTuple

import numpy as np

from ....choose.space import Knobs, KnobValue
from ....graph.ir import Graph, Node
from ....graph.ops.base import Shape
from ....graph.ops.group_matmul import POSITIONS
from ....graph.ops.movement import Concat, ReplaceEnd, Slice
from ....te import compute, create_schedule, placeholder
from ....tir.ir import Buffer, PrimFunc, Stmt, Store, map_stmt, seq
from ....tir.lower import lower
from ..cost.tiling import VTHREADS, even_sizes, row_cycles
from ..expressions import attach, split_tiles, vthread_tiles
from ..machine import Context
from .base import Tiled, Track, WithinBudget, blocked_shape


class Part(NamedTuple):
    """``count`` positions of an image of ``positions``, from ``begin`` on."""

    positions: int
    begin: int
    count: int


@dataclass(frozen=True)
class CopyWorkload(WithinBudget):
    """``parts`` of images of ``channel_blocks``, one behind another; they are the end of an image
    that lies in the result's place and keeps its first ``kept`` positions."""

    channel_blocks: int
    parts: tuple[Part, ...]
    kept: int
    context: Context


class CopiedPositions(Tiled[CopyWorkload]):
    """At most ``positions`` of ``channel_blocks`` at a time."""

    name = "places moved"
    ops = (Concat, ReplaceEnd, Slice)
    track = Track.VECTOR
    says = "on the vector unit, places of images"

    def handles(self, graph: Graph, node: Node) -> bool:
        result, images = graph.result(node), [t.shape for t in graph.operands(node)]
        if result.dtype != "int8" or 0 in result.shape or not all(map(is_column, images)):
            return False
        match node.op:
            case Concat(axis=axis) | ReplaceEnd(axis=axis):
                return axis == POSITIONS
            case Slice(steps=(_, 1, 1, _)):
                return result.shape[1] == images[0][1]
        return False

    def workload(self, graph: Graph, node: Node, context: Context) -> CopyWorkload:
        counts = [t.shape[POSITIONS] for t in graph.operands(node)]
        kept = counts[0] - counts[1] if isinstance(node.op, ReplaceEnd) else 0
        parts = [Part(count, 0, count) for count in (counts[1:] if kept else counts)]
        if isinstance(node.op, Slice):
            parts = [Part(counts[0], node.op.starts[POSITIONS], node.op.shape[POSITIONS])]
        channel_blocks, *_ = blocked_shape(graph.result(node).shape, self.machine)
        return CopyWorkload(channel_blocks, tuple(parts), kept, context)

    def sizes(self, workload: CopyWorkload) -> Mapping[str, Sequence[KnobValue]]:
        return {
            "channel_blocks": even_sizes(workload.channel_blocks),
            "positions": even_sizes(max(part.count for part in workload.parts)),
            "vthreads": VTHREADS,
        }

    def needs(self, workload: CopyWorkload, knobs: Knobs) -> Mapping[str, int]:
        return dict.fromkeys(("inp", "out"), prod(int(n) for n in knobs.values()))

    def predict(self, workload: CopyWorkload, knobs: Knobs) -> int:
        """As for a row of vectors, for each part."""
        blocks, positions, vthreads = (
            int(knobs[name]) for name in ("channel_blocks", "positions", "vthreads")
        )
        cycles = 0
        for part in workload.parts:
            entries = workload.channel_blocks * part.count
            size = blocks * min(positions, part.count)
            cycles += row_cycles(entries, size, 1, 1, vthreads, self.machine)
        return cycles

    def schedule(self, workload: CopyWorkload, knobs: Knobs, name: str) -> PrimFunc:
        """Parameters: the images, out; of them, the one that lies there is not used."""
        params, first = self.machine.params, workload.kept
        count = first + sum(part.count for part in workload.parts)
        shape = (workload.channel_blocks, count, params.batch, params.block)
        out = Buffer("out", shape, "int8")
        images = [Buffer("there", shape, "int8")] if workload.kept else []
        copies: list[Stmt] = []
        for part in workload.parts:
            func = self._copied(workload.channel_blocks, part, knobs, name)
            image, own = func.params
            images.append(image)
            copies.append(_behind(func.body, own, out, first))
            first += part.count
        return PrimFunc(name, (*images, out), seq(copies))

    def _copied(self, channel_blocks: int, part: Part, knobs: Knobs, name: str) -> PrimFunc:
        """A part by itself. Parameters: its image, out."""
        vector = (self.machine.params.batch, self.machine.params.block)
        image = placeholder((channel_blocks, part.positions, *vector), "int8", "image")
        out = compute(
            (channel_blocks, part.count, *vector),
            lambda c, p, b, i: image[c, part.begin + p, b, i],
            "out",
        )
        s = create_schedule(out)
        local = s.cache_write(out, "out")
        tile_of_image = s.cache_read(image, "inp", [local])
        sizes = (int(knobs["channel_blocks"]), int(knobs["positions"]))
        outer, _ = split_tiles(s[out], sizes, (0, 1))
        tile = vthread_tiles(s[out], outer, int(knobs["vthreads"]))
        attach(s, {tile_of_image: "inp", local: "out"}, s[out], tile)
        return lower(s, [image, out], name)

    def constants(self, graph: Graph, node: Node) -> Mapping[str, np.ndarray]:
        return {}


def _behind(body: Stmt, own: Buffer, out: Buffer, first: int) -> Stmt:
    """A body that stores to a part's own result, redirected to position ``first`` of the whole
    one."""

    def on_stmt(stmt: Stmt) -> Stmt | None:
        if not (isinstance(stmt, Store) and stmt.buffer is own):
            return None
        blocks, place, *vector = stmt.indices
        return Store(out, (blocks, place + first, *vector), stmt.value)

    return map_stmt(body, lambda expr: expr, on_stmt=on_stmt)


def is_column(shape: Shape) -> bool:
    """Whether a tensor is an image [1, C, N, 1]."""
    return len(shape) == 4 and shape[0] == shape[3] == 1
