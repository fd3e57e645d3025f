"""Softmax along the positions of an image with a mask, on the vector unit.

As :mod:`.softmax`, but every block of queries has keys of its own that it sees, so that the loops
of one block are not those of the next: ``masked_softmax_loops`` writes them out. Keys that no query
of a block sees take no work but the store of the zero point.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from math import prod

import numpy as np

from .....isa.params import HwParams
from .....isa.timing import PARAM_ITERATIONS, VECTOR_DEPTH
from ....choose.space import Knobs, KnobValue, Refusal
from ....graph.ir import Graph, Node
from ....graph.ops.softmax import QTableSoftmax, newton_steps
from ....tir.ir import PrimFunc
from ..attention_mask import VisibleKeys, find_visible_keys
from ..cost.tiling import INSN_CYCLES, even_sizes, read_cycles
from ..expressions import REQUANT_ENTRIES, Epilogue
from ..machine import Context
from .base import Tiled, Track, WithinBudget, blocked_shape
from .masked_softmax_loops import APART, PARTS, Image, Loops, count_scores, group_tiles
from .softmax import LAST_OPS, POSITIONS, STEP_OPS, longest_row, softmax_constants


@dataclass(frozen=True)
class MaskedSoftmaxWorkload(WithinBudget):
    """Rows along ``places`` of a block of channels for each of ``spans``, with ``rows`` rows of
    masks; ``room`` as of the operator."""

    places: int
    spans: tuple[VisibleKeys, ...]
    rows: int
    room: int
    context: Context
    epilogue: Epilogue = field(compare=False)


class MaskedSoftmax(Tiled[MaskedSoftmaxWorkload]):
    """Maximum, sum of exponentials and inverse of ``blocks`` blocks of channels at a time; then
    exponentials times inverses of ``places`` at a time, of all blocks of a tile that see the same
    keys."""

    name = "masked softmax"
    ops = (QTableSoftmax,)
    track = Track.VECTOR
    table_bytes = 2

    def handles(self, graph: Graph, node: Node) -> bool:
        return len(node.inputs) == 2

    def takes(self, graph: Graph, node: Node) -> str | Refusal:
        assert isinstance(node.op, QTableSoftmax)
        params, (x, mask) = self.machine.params, graph.operands(node)
        if mask.data is None:
            return Refusal("a softmax whose mask is computed")
        if (keys := x.shape[node.op.axis]) > (longest := longest_row(params)):
            return Refusal(f"rows of {keys} elements; there is room for {longest}")
        if prod(x.shape) // keys % params.block == 0:
            _, rows = self._spans(graph, node)
            if len(rows) > (most := most_mask_rows(params)):
                return Refusal(f"masks of {len(rows)} different rows; there is room for {most}")
        if not (len(x.shape) == 4 and x.shape[0] == x.shape[3] == 1 and node.op.axis == POSITIONS):
            return Refusal("a softmax whose rows are not the places of an image")
        return "on the vector unit, by its table and Newton's steps, without keys that are masked"

    def _spans(self, graph: Graph, node: Node) -> tuple[tuple[VisibleKeys, ...], np.ndarray]:
        """What each block of rows sees, and the rows of masks."""
        assert isinstance(node.op, QTableSoftmax)
        x, mask = graph.operands(node)
        assert mask.data is not None
        visible = np.moveaxis(np.broadcast_to(mask.data, x.shape), node.op.axis, -1)
        return find_visible_keys(visible.reshape(-1, visible.shape[-1]), self.machine.params.block)

    def workload(self, graph: Graph, node: Node, context: Context) -> MaskedSoftmaxWorkload:
        op = node.op
        assert isinstance(op, QTableSoftmax)
        _, positions, _ = blocked_shape(graph[node.inputs[0]].shape, self.machine)
        spans, rows = self._spans(graph, node)
        epilogue = Epilogue(op.zero_point)
        return MaskedSoftmaxWorkload(positions, spans, len(rows), op.room, context, epilogue)

    def sizes(self, workload: MaskedSoftmaxWorkload) -> Mapping[str, Sequence[KnobValue]]:
        return {
            "blocks": even_sizes(len(workload.spans)),
            "places": even_sizes(max(span.bound for span in workload.spans)),
        }

    def needs(self, workload: MaskedSoftmaxWorkload, knobs: Knobs) -> Mapping[str, int]:
        """Some blocks at a time are multiplied at some positions at a time."""
        w, blocks, positions = workload, int(knobs["blocks"]), int(knobs["places"])
        tiles = group_tiles(w.spans, blocks)
        size, slots = min(blocks, len(w.spans)), 1 + (len(tiles) > 1)
        chunk = positions * max(g.count for groups in tiles for g in groups)
        # Maximum, inverse and limit stay. Exponentials are summed up beside the sums and parts of
        # them; then there are steps of the chain; at last, exponentials that are masked and
        # limited.
        staying, summing = size * (2 + bool(w.room)), 2 * (size + chunk)
        return {
            "inp": slots * max(map(count_scores, tiles)),
            "tmp": staying + max(summing, size * (1 + PARTS), 3 * chunk),
            "out": 3 * chunk,
            "par": REQUANT_ENTRIES + self.machine.params.table_entries + w.rows,
        }

    def predict(self, workload: MaskedSoftmaxWorkload, knobs: Knobs) -> int:
        """Passes of the vector unit: each waits for the first result of the one before;
        and the load of the first scores, and the stores if they take longer."""
        w, positions = workload, int(knobs["places"])
        tiles, cycles = group_tiles(w.spans, int(knobs["blocks"])), 0

        def passes(entries: int, count: int) -> int:
            return count * max(entries + INSN_CYCLES, VECTOR_DEPTH + 1)

        for groups in tiles:
            chain = STEP_OPS * newton_steps(w.places) + LAST_OPS + bool(w.room)
            cycles += passes(sum(g.count for g in groups), chain)
            for g in groups:
                cycles += passes(g.count * g.span.free, 2) if g.span.free else 0
                for chunk in g.chunks(positions, positions):
                    count = (8 if chunk.masked else 2) + bool(w.room)
                    cycles += passes(g.count * chunk.keys, count) + PARAM_ITERATIONS
        entries = [count_scores(groups) for groups in tiles]
        moved = sum(entries) + len(w.spans) * w.places
        entry_bytes = self.machine.params.entry_bytes("inp")
        first, bus = (read_cycles(n * entry_bytes, self.machine) for n in (entries[0], moved))
        return max(first + cycles, bus)

    def schedule(self, workload: MaskedSoftmaxWorkload, knobs: Knobs, name: str) -> PrimFunc:
        """Parameters: as those of :meth:`.softmax.Softmax.schedule`, with the rows of masks (int32
        [rows, block]), if there are any, before out."""
        params, w = self.machine.params, workload
        image = Image(w.places, w.rows, w.room, w.epilogue)
        tiles = group_tiles(w.spans, int(knobs["blocks"]))
        return Loops(image, tiles, int(knobs["places"]), params).program(name)

    def constants(self, graph: Graph, node: Node) -> Mapping[str, np.ndarray]:
        op = node.op
        assert isinstance(op, QTableSoftmax)
        found, (_, rows) = softmax_constants(op, self.machine), self._spans(graph, node)
        masks = np.where(rows, 0, APART).astype("<i4")
        return {**found, "mask": masks} if len(rows) else found


def most_mask_rows(params: HwParams) -> int:
    """The most rows of masks that par has room for, beside the table and what requantises."""
    return max(0, params.par_depth - REQUANT_ENTRIES - params.table_entries)
