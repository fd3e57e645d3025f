"""Nests in normal form become instructions and micro-ops.

Nothing here knows operators or loops over tiles. A *nest* is a list of loops, each with an extent
and one stride per operand; ``codegen.py`` recovers nests from TIR, this module fits them to
the shapes that instructions have.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field, replace
from itertools import product
from typing import NamedTuple

import numpy as np

from .....isa.encoding import PAD_BITS, SIZE_BITS, VECTOR_EXTENT_BITS
from .....isa.errors import VdlaError
from .....isa.insn import Gemm, Insn, Load, Param, Store, Table, Vector
from .....isa.params import HwParams
from ....tir.ir import Buffer
from ..machine import LONG_SUM, vector_loops


class Loop(NamedTuple):
    """One loop of a nest: extent and, per operand, the stride in entries (scratchpads) or bytes
    (DRAM).
    """

    extent: int
    strides: tuple[int, ...]


def fuse_loops(loops: list[Loop]) -> list[Loop]:
    """Drop loops of extent 1 and merge neighbours that step through every operand as one loop
    would.

    ``for i in 4: for j in 8: x[8*i + j]`` becomes ``for k in 32: x[k]``. Order is outermost first.
    """
    fused: list[Loop] = []
    for loop in loops:
        if loop.extent == 1:
            continue
        if fused and all(
            o == i * loop.extent for o, i in zip(fused[-1].strides, loop.strides, strict=True)
        ):
            fused[-1] = Loop(fused[-1].extent * loop.extent, loop.strides)
        else:
            fused.append(loop)
    return fused


class Padding(NamedTuple):
    """Padding of one copied dimension: entries before and after the data."""

    before: int = 0
    after: int = 0


@dataclass(frozen=True)
class VectorWork:
    """A nest for the vector unit. Memories, bases and strides are those of (dst, src0, src1), in
    entries; the ``reduction`` loops reduce to one result. A window ``slides`` along a loop of the
    reduction, which is not among these: in each of its iterations, an operand has another weight.
    """

    op: str
    imm: int
    memories: tuple[str, str, str]
    bases: tuple[int, int, int]
    loops: tuple[Loop, ...]
    reduction: tuple[Loop, ...] = ()
    slides: Loop | None = None

    def at(self, loop: Loop, index: int) -> VectorWork:
        """The work with its bases moved to an index of one of its loops."""
        dst, src0, src1 = (
            base + index * stride for base, stride in zip(self.bases, loop.strides, strict=True)
        )
        return replace(self, bases=(dst, src0, src1))

    def steps(self, strides: Sequence[int]) -> Iterator[tuple[VectorWork, int]]:
        """Split the work along the loops with which another operand moves. ``strides`` has that
        operand's stride in each loop. Yields each piece of work with the operand's offset.
        """
        moving = [(x, s) for x, s in zip(self.loops, strides, strict=True) if s]
        rest = tuple(x for x, s in zip(self.loops, strides, strict=True) if not s)
        for step in product(*(range(loop.extent) for loop, _ in moving)):
            part, place = replace(self, loops=rest), 0
            for index, (loop, stride) in zip(step, moving, strict=True):
                part, place = part.at(loop, index), place + index * stride
            yield part, place

    def after(self, reduction: VectorWork) -> VectorWork:
        """Merge this work, which copies the results of a reduction, into that reduction."""
        sources = {loop.strides[0]: loop for loop in reduction.loops if loop.extent > 1}
        loops = []
        for loop in self.loops:
            source = sources.pop(loop.strides[1], None) if loop.extent > 1 else loop
            if source is None or source.extent != loop.extent:
                raise VdlaError(
                    f"vector {reduction.op}: its results are read in loops {self.loops}, they are "
                    f"computed in {reduction.loops}"
                )
            loops.append(Loop(loop.extent, (loop.strides[0], *source.strides[1:])))
        return replace(
            reduction,
            memories=(self.memories[0], *reduction.memories[1:]),
            bases=(self.bases[0], *reduction.bases[1:]),
            loops=tuple(loops),
        )

    def windows(self) -> Iterator[VectorWork]:
        """The work of a window with the loop that it slides along behind all others; in several
        pieces where a row is too long for one instruction.

        ``for x in W: for k in K: dst[x] += src0[x + k] * byte k of src1`` reads an entry for W + K
        - 1 results, of which the first K - 1 are not whole.
        """
        assert self.slides is not None
        count, (_, step, _) = self.slides
        rows = [loop for loop in self.loops if loop.strides[1:] == (step, 0) and loop.extent > 1]
        row = rows[-1] if rows else Loop(1, (0, step, 0))
        rest = tuple(loop for loop in self.loops if loop is not row)
        most = (1 << VECTOR_EXTENT_BITS) - count
        for begin in range(0, row.extent, most):
            whole = min(most, row.extent - begin)
            slides = Loop(whole + count - 1, (row.strides[0], step, 0))
            yield replace(self.at(row, begin), imm=count - 1, loops=(*rest, slides))


#: A micro-op: its entries of acc, inp and wgt, and its flag ``first``.
_UopFields = tuple[int, int, int, int]


class Mark(NamedTuple):
    """What an instruction is for: the stage that it computes, the buffers whose data it moves, and
    the parameter whose address its own one counts from."""

    stage: str = ""
    moved: Sequence[Buffer] = ()
    buffer: Buffer | None = None


def _is_long_sum(loops: list[Loop]) -> bool:
    """Whether a nest adds many entries of one operand, each times the same entry of the other one,
    to one entry."""
    if len(loops) != 1 or loops[0].extent < LONG_SUM:
        return False
    of_acc, of_inp, of_wgt = loops[0].strides
    return not of_acc and not of_inp * of_wgt


@dataclass
class Stream:
    """The instructions of a loop program in program order, each with a mark; ``mark`` is that of
    the next instructions. Their ``dram_addr`` counts from the beginning of a parameter, their
    ``uop_begin`` is the number of a sequence in ``micro_ops``.
    """

    params: HwParams
    insns: list[Insn] = field(default_factory=list)
    marks: list[Mark] = field(default_factory=list)
    mark: Mark = field(default_factory=Mark)
    micro_ops: dict[tuple[_UopFields, ...], int] = field(default_factory=dict)
    _fusions: dict[tuple[Loop, ...], list[Loop]] = field(default_factory=dict)
    _rows: dict[tuple, tuple[list[Loop], list[Padding]]] = field(default_factory=dict)
    _gemms: dict[tuple, tuple[Loop, Loop, list[tuple[_UopFields, ...]]]] = field(
        default_factory=dict
    )

    def append(self, insn: Insn) -> None:
        """Append an instruction with the current mark."""
        self.insns.append(insn)
        self.marks.append(self.mark)

    # ---- copies ----

    def load(
        self,
        memory: str,
        base: int,
        dram_addr: int,
        loops: list[Loop],
        padding: list[Padding],
        pad_value: int = 0,
        widen: bool = False,
    ) -> None:
        """Copy a box of entries from DRAM. ``loops`` are outermost first with strides (DRAM
        bytes,); the scratchpad is filled contiguously, padding included. ``padding`` has one item
        for each loop. ``dram_addr`` is the address of the first entry that is not padding. Loops
        beyond three are unrolled, as is an outermost loop too long for its field. ``widen``: the
        source is int8, the entries int32.

        Raises VdlaError for padding outside of the last two dimensions, and for rows or padding too
        large for their fields.
        """
        entry_bytes = self.params.block if widen else self.params.entry_bytes(memory)
        loops, padding = self._contiguous(loops, padding, entry_bytes)
        while len(loops) > 3 or (
            len(loops) == 3 and (padding[0] != Padding() or loops[0].extent >= 1 << SIZE_BITS)
        ):
            if padding[0] != Padding():
                raise VdlaError(
                    f"load of {memory}: padding in dimension {len(loops)} from the end, at most "
                    f"2 can be padded"
                )
            inner = _box_entries(loops[1:], padding[1:])
            for i in range(loops[0].extent):
                self.load(
                    memory,
                    base + i * inner,
                    dram_addr + i * loops[0].strides[0],
                    loops[1:],
                    padding[1:],
                    pad_value,
                    widen,
                )
            return
        missing = 3 - len(loops)
        (z, y, x) = [Loop(1, (0,))] * missing + loops
        (_, pad_y, pad_x) = [Padding()] * missing + padding
        if x.extent >= 1 << SIZE_BITS or y.extent >= 1 << SIZE_BITS:
            raise VdlaError(
                f"load of {memory}: row of {x.extent} entries or {y.extent} rows, at most "
                f"{(1 << SIZE_BITS) - 1}"
            )
        limit = (1 << PAD_BITS) - 1
        if max(pad_y.before, pad_y.after, pad_x.before, pad_x.after) > limit:
            raise VdlaError(
                f"load of {memory}: padding {pad_y}, {pad_x}, at most {limit} on each side"
            )
        self.append(
            Load(
                memory=memory, base=base, dram_addr=dram_addr,
                x_size=x.extent, y_size=y.extent, z_size=z.extent, y_stride=y.strides[0],
                z_stride=z.strides[0], pad_top=pad_y.before, pad_bottom=pad_y.after,
                pad_left=pad_x.before, pad_right=pad_x.after, pad_value=pad_value, widen=int(widen),
            )
        )  # fmt: skip

    def store(self, base: int, dram_addr: int, loops: list[Loop]) -> None:
        """Copy a box of entries from ``out`` to DRAM; strides are (DRAM bytes,), the scratchpad is
        read contiguously.
        """
        out_bytes = self.params.entry_bytes("out")
        loops, _ = self._contiguous(loops, [Padding()] * len(loops), out_bytes)
        if len(loops) > 3:
            inner = _box_entries(loops[1:], [Padding()] * 3)
            for i in range(loops[0].extent):
                self.store(base + i * inner, dram_addr + i * loops[0].strides[0], loops[1:])
            return
        (z, y, x) = [Loop(1, (0,))] * (3 - len(loops)) + loops
        self.append(
            Store(
                base=base, dram_addr=dram_addr, x_size=x.extent, y_size=y.extent, z_size=z.extent,
                y_stride=y.strides[0], z_stride=z.strides[0],
            )
        )  # fmt: skip

    def _fused(self, loops: tuple[Loop, ...]) -> list[Loop]:
        """:func:`fuse_loops`, once for equal loops."""
        if loops not in self._fusions:
            self._fusions[loops] = fuse_loops(list(loops))
        return self._fusions[loops]

    def _contiguous(
        self, loops: list[Loop], padding: list[Padding], entry_bytes: int
    ) -> tuple[list[Loop], list[Padding]]:
        """:func:`_contiguous_rows`, once for equal loops."""
        key = tuple(loops), tuple(padding), entry_bytes
        if key not in self._rows:
            self._rows[key] = _contiguous_rows(loops, padding, entry_bytes)
        return self._rows[key]

    # ---- tensor core ----

    def gemm(self, bases: tuple[int, int, int], loops: list[Loop], init: bool) -> None:
        """Run a nest on the tensor core. ``bases`` and strides are (acc, inp, wgt) entries. A loop
        with acc stride 0 is a reduction. The two longest loops become the instruction's loops, the
        others become micro-ops. ``init``: the first reduction step overwrites the accumulators;
        then no reduction becomes one of the instruction's loops. A long sum is two instructions:
        its first step, and a loop over the others."""
        if init and _is_long_sum(fused := fuse_loops(loops)):
            [(steps, (of_acc, of_inp, of_wgt))] = fused
            acc, inp, wgt = bases
            others = [Loop(steps - 1, (of_acc, of_inp, of_wgt))]
            self.gemm(bases, [], init)
            self.gemm((acc + of_acc, inp + of_inp, wgt + of_wgt), others, init=False)
            return
        key = bases, tuple(loops), init
        if key not in self._gemms:
            self._gemms[key] = self._micro_ops(bases, loops, init)
        outer, inner, parts = self._gemms[key]
        for part in parts:
            number = self.micro_ops.setdefault(part, len(self.micro_ops))
            self.append(
                Gemm(
                    uop_begin=number, uop_count=len(part), outer=outer.extent,
                    inner=inner.extent, init=int(init), acc_outer=outer.strides[0],
                    acc_inner=inner.strides[0], inp_outer=outer.strides[1],
                    inp_inner=inner.strides[1], wgt_outer=outer.strides[2],
                    wgt_inner=inner.strides[2],
                )
            )  # fmt: skip

    def _micro_ops(
        self, bases: tuple[int, int, int], loops: list[Loop], init: bool
    ) -> tuple[Loop, Loop, list[tuple[_UopFields, ...]]]:
        """The loops of the instructions of a nest, and the micro-ops of each instruction."""
        loops = fuse_loops(loops)
        candidates = [i for i, loop in enumerate(loops) if loop.strides[0] or not init]
        chosen = sorted(sorted(candidates, key=lambda i: -loops[i].extent)[:2])
        (outer, inner) = [Loop(1, (0, 0, 0))] * (2 - len(chosen)) + [loops[i] for i in chosen]
        rest = [loop for i, loop in enumerate(loops) if i not in chosen]
        uops: list[_UopFields] = [(*bases, 1)]
        for loop in rest:
            of_acc, of_inp, of_wgt = loop.strides
            once = loop.extent if of_acc else 1  # a reduction's later steps add to the first
            uops = [
                (acc + i * of_acc, inp + i * of_inp, wgt + i * of_wgt, first * (i < once))
                for acc, inp, wgt, first in uops
                for i in range(loop.extent)
            ]
        capacity = self.params.uop_depth
        parts = [tuple(uops[begin : begin + capacity]) for begin in range(0, len(uops), capacity)]
        return outer, inner, parts

    # ---- vector unit ----

    def param(self, par_base: int, zero_point: int, lo: int, hi: int) -> None:
        """Set the requantisation registers."""
        self.append(Param(par_base=par_base, zero_point=zero_point, lo=lo, hi=hi))

    def table(self, par_base: int) -> None:
        """Set the table of the vector unit. Where it is set already, the program will not repeat
        it (:func:`~.order.without_repeated_settings`)."""
        self.append(Table(par_base=par_base))

    def vector(self, work: VectorWork, post: str = "none") -> None:
        """Run a nest on the vector unit, whose instructions have four loops; further spatial loops
        are unrolled, and so are those that run backwards through an operand.
        """
        if work.slides is not None:
            for piece in work.windows():
                self._vector(piece, post, [*self._fused(piece.loops[:-1]), piece.loops[-1]])
            return
        self._vector(work, post, self._fused(work.loops))

    def _vector(self, work: VectorWork, post: str, spatial: list[Loop]) -> None:
        """The instructions of a nest with these loops over results."""
        limit = (1 << VECTOR_EXTENT_BITS) - 1
        fused = self._fused(work.reduction)
        reduction = [part for loop in fused for part in _within_limit(loop)]
        if len(reduction) > 4 or any(not vector_loops(loop.extent) for loop in fused):
            raise VdlaError(
                f"vector {work.op}: reduction loops {[loop.extent for loop in fused]} exceed 4 "
                f"loops of {limit}"
            )
        for place, loop in enumerate(spatial):
            if min(loop.strides) < 0:
                others = [*spatial[:place], *spatial[place + 1 :]]
                for step in range(loop.extent):
                    self._vector(work.at(loop, step), post, others)
                return
        if spatial and (len(spatial) + len(reduction) > 4 or spatial[0].extent > limit):
            head, tail = spatial[0], spatial[1:]
            count = limit if head.extent > limit and len(spatial) + len(reduction) <= 4 else 1
            for begin in range(0, head.extent, count):
                part = Loop(min(count, head.extent - begin), head.strides)
                first = [] if part.extent == 1 else [part]
                self._vector(work.at(head, begin), post, first + tail)
            return
        nest = [Loop(1, (0, 0, 0))] * (4 - len(spatial) - len(reduction)) + spatial + reduction
        dst_strides, src0_strides, src1_strides = (
            tuple(loop.strides[k] for loop in nest) for k in range(3)
        )
        dst, src0, src1 = work.memories
        dst_base, src0_base, src1_base = work.bases
        self.append(
            Vector(
                op=work.op, post=post, reduce=len(reduction), imm=work.imm,
                extents=tuple(loop.extent for loop in nest), dst=dst, dst_base=dst_base,
                dst_strides=dst_strides, src0=src0, src0_base=src0_base,
                src0_strides=src0_strides, src1=src1, src1_base=src1_base,
                src1_strides=src1_strides,
            )
        )  # fmt: skip


def _within_limit(loop: Loop) -> list[Loop]:
    """A loop as loops of an instruction, the outermost first."""
    found, step = list[Loop](), 1
    for extent in reversed(vector_loops(loop.extent)):
        found.insert(0, Loop(extent, tuple(step * stride for stride in loop.strides)))
        step *= extent
    return found


def _box_entries(loops: list[Loop], padding: list[Padding]) -> int:
    """Scratchpad entries that a padded box fills."""
    return int(
        np.prod(
            [
                loop.extent + pad.before + pad.after
                for loop, pad in zip(loops, padding, strict=False)
            ],
            dtype=int,
        )
    )


def _contiguous_rows(
    loops: list[Loop], padding: list[Padding], entry_bytes: int
) -> tuple[list[Loop], list[Padding]]:
    """Merge unpadded neighbours that are contiguous in DRAM and make the innermost loop one over
    adjacent entries.
    """
    merged: list[Loop] = []
    pads: list[Padding] = []
    for loop, pad in zip(loops, padding, strict=True):
        if loop.extent == 1 and pad == Padding():
            continue
        joins = (
            merged and pad == Padding() and merged[-1].strides[0] == loop.strides[0] * loop.extent
        )
        if joins and merged[-1].extent * loop.extent < 1 << SIZE_BITS and pads[-1] == Padding():
            merged[-1] = Loop(merged[-1].extent * loop.extent, loop.strides)
        else:
            merged.append(loop)
            pads.append(pad)
    if not merged or merged[-1].strides[0] != entry_bytes:
        merged.append(Loop(1, (entry_bytes,)))
        pads.append(Padding())
    return merged, pads
