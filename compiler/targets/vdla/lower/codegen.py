"""Loop programs to accelerator instructions.

The stream is static: loops around several statements are walked with concrete values, and every
perfect nest around one statement becomes instructions. The memory scopes that a nest touches
decide which: DRAM to scratchpad is a LOAD, out to DRAM a STORE, arithmetic into tmp or out a
VECTOR, the tensor intrinsic a GEMM. ``stream.py`` fits nests to instructions.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property, reduce
from itertools import product
from math import prod
from typing import Any, TypeVar

import numpy as np

from .....isa.errors import VdlaError
from .....isa.params import HwParams
from ....te.expr import Binary, Cast, Const, Expr, Read, Select, Var, walk
from ....tir.ir import (
    Allocate,
    Buffer,
    For,
    If,
    Prefetch,
    PrimFunc,
    Region,
    Seq,
    Stmt,
    Store,
    TensorCall,
    walk_stmt,
)
from ....tir.printer import expr_text
from ....tir.scopes import place_buffers
from ..scopes import memory_scopes
from .affine_values import Form, slack_of, with_values
from .object_code import ObjectCode
from .script import Script, Step, write_steps
from .split_k import early_products
from .stream import Loop, Padding, Stream, VectorWork
from .vector_patterns import (
    CLOSED,
    ONE_PASS,
    Arithmetic,
    Requantize,
    fusable_buffers,
    match_accumulation,
    match_arithmetic,
    match_difference,
    match_look_up,
    match_requantize,
    match_value,
    saturated,
)

LOADED_SCOPES = ("inp", "wgt", "par")
#: Scratchpads whose elements become an image in tmp.
IMAGE_SOURCES = ("acc", "tmp")
#: Marks entries that do not hold padding: a value that no padding has.
NO_PADDING = 1 << 40
#: An instruction is split only into instructions of at least this many cycles.
MIN_INSN_CYCLES = 64
#: Steps of longer loop programs are worked out again rather than kept: they take gigabytes.
MOST_KEPT_STEPS = 20_000


_Shape = TypeVar("_Shape")


@dataclass(frozen=True)
class Code:
    """A loop program as instructions. They are worked out once for all layers that have this loop
    program."""

    func: PrimFunc
    params: HwParams
    _made: dict[int, ObjectCode] = field(default_factory=dict, compare=False, repr=False)

    def object_code(self, image_chunks: int = 1) -> ObjectCode:
        """The instructions. An image is loaded in ``image_chunks`` chunks (``split_k.py``).

        Raises VdlaError for a nest that no instruction computes, with the nest's statement, and for
        a scratchpad that is too small, naming the buffers that live in it.
        """
        if image_chunks not in self._made:
            stream = Stream(self.params)
            write_steps(early_products(self._steps, image_chunks), stream)
            if len(self._steps) > MOST_KEPT_STEPS:
                del self.__dict__["_steps"]
            self._made[image_chunks] = ObjectCode.of(stream)
        return self._made[image_chunks]

    @cached_property
    def slots(self) -> frozenset[int]:
        """The numbers of the loop program that are in fields of instructions."""
        made = self._made.values() or [self.object_code()]
        return frozenset(slot for code in made for slot, _ in code.numbers)

    @cached_property
    def used(self) -> Mapping[str, int]:
        """Number of entries that the loop program uses, by scratchpad."""
        used: dict[str, int] = {}
        for buffer, base in self._storage.items():
            if buffer not in self._fusable:
                end = base + memory_scopes(self.params)[buffer.scope].entries_of(buffer)
                used[buffer.scope] = max(used.get(buffer.scope, 0), end)
        return used

    @cached_property
    def _fusable(self) -> frozenset[Buffer]:
        """Buffers that only pass a reduction on to its requantisation; they take no memory."""
        return fusable_buffers(self.func.body)

    @cached_property
    def _storage(self) -> dict[Buffer, int]:
        """First entry of every scratchpad buffer. Buffers of one scope that live at the same time
        follow one another; buffers of a fused reduction take no entries."""
        return place_buffers(self.func, memory_scopes(self.params), self._fusable)

    @cached_property
    def _steps(self) -> Sequence[Step]:
        walker = _Walker(self.func.name, self.params, self._storage, self._fusable)
        walker.walk(self.func.body)
        return walker.script.steps


@dataclass(frozen=True)
class _Axis:
    """A loop of a nest after its guards: runs over start <= var < stop of ``extent``."""

    var: Var
    extent: int
    stop: int
    start: int = 0


@dataclass
class _Nest:
    axes: list[_Axis]
    core: Store | TensorCall


@dataclass
class _Offset:
    """An affine element offset: constant and one coefficient per nest variable."""

    constant: int
    coefficients: dict[Expr, int]

    def of(self, axis: _Axis) -> int:
        return self.coefficients.get(axis.var, 0)


@dataclass(frozen=True)
class _Computed:
    """What a statement of the vector unit computes: an accumulation; or arithmetic, perhaps with
    requantisation after it; or nothing that the unit knows.
    """

    accumulation: Arithmetic | None
    requantize: Requantize | None = None
    arithmetic: Arithmetic | None = None

    @classmethod
    def by(cls, core: Store) -> _Computed:
        """What the value of a statement is."""
        accumulation = match_accumulation(core.value, core.buffer)
        wraps = core.buffer.dtype == "int8" and accumulation and accumulation.op not in CLOSED
        if accumulation is not None and not wraps:
            return cls(accumulation)
        for look_up in (match_look_up, match_difference, match_value):
            if found := look_up(core.value):
                return cls(None, None, found)
        requant = match_requantize(core.value)
        value = requant.value if requant else saturated(core.value)
        return cls(None, requant, None if value is None else match_arithmetic(value))


@dataclass
class _Walker:
    name: str
    params: HwParams
    bases: dict[Buffer, int]
    fusable: frozenset[Buffer]
    script: Script = field(default_factory=Script)
    #: Buffers set to a constant whose first accumulation has not come yet, with the constant.
    pending: dict[tuple[Buffer, int], int] = field(default_factory=dict)
    #: Reductions into fusable buffers whose requantisation has not come yet.
    reductions: dict[tuple[Buffer, int], VectorWork] = field(default_factory=dict)
    #: Per scratchpad, what its entries are padded with.
    filled: dict[str, np.ndarray] = field(default_factory=dict)
    #: The values of the loops around the current statement.
    known: dict[Var, int] = field(default_factory=dict)
    #: The first values of the current nest's loops, where these are not 0.
    starts: dict[Expr, int] = field(default_factory=dict)
    #: What does not depend on the loops outside of a nest is made once, by the identity of parts of
    #: the loop program: offsets of accesses (:meth:`form`), slacks of conditions, whether a loop is
    #: around several statements, what an innermost statement is for and computes.
    forms: dict[tuple[int, int], Form] = field(default_factory=dict)
    slacks: dict[int, Form | None] = field(default_factory=dict)
    around_several: dict[int, bool] = field(default_factory=dict)
    #: The shapes of a statement's instructions, which depend on its loops and the coefficients of
    #: its accesses; their addresses follow from the constants (:meth:`shape`).
    shapes: dict[tuple, Any] = field(default_factory=dict)
    notes: dict[int, tuple[str, Sequence[Buffer]]] = field(default_factory=dict)
    computed: dict[int, _Computed] = field(default_factory=dict)
    #: What a statement that makes a border computes inside of it.
    insides: dict[int, Store] = field(default_factory=dict)

    def __post_init__(self) -> None:
        scopes = memory_scopes(self.params)
        #: Elements of one entry of each scratchpad.
        self.elements = {name: scope.entry_elements for name, scope in scopes.items()}

    def walk(self, stmt: Stmt) -> None:
        """Emit a statement, with the values of the loops around it."""
        match stmt:
            case Seq(stmts):
                for s in stmts:
                    self.walk(s)
            case Allocate():
                self.walk(stmt.body)
            case For() if self.is_around_several(stmt):
                for i in range(stmt.extent):
                    self.known[stmt.var] = i
                    self.walk(stmt.body)
                del self.known[stmt.var]
            case If() if isinstance(holds := self.bounds(stmt.cond, None), bool):
                if holds:
                    self.walk(stmt.body)
            case _:
                nest = self.nest(stmt)
                if nest is not None:
                    self.emit(nest)

    def is_around_several(self, loop: For) -> bool:
        """Whether a loop is no part of a nest: it has several statements, or a buffer, or is
        unrolled."""
        if id(loop) not in self.around_several:
            found = any(isinstance(s, Seq | Allocate) for s in walk_stmt(loop.body))
            self.around_several[id(loop)] = found or loop.kind == "unrolled"
        return self.around_several[id(loop)]

    # ---- recognising nests ----

    def nest(self, stmt: Stmt) -> _Nest | None:
        """Loops and guards around one statement; None when a guard excludes all of it."""
        axes: list[_Axis] = []
        while not isinstance(stmt, Store | TensorCall):
            match stmt:
                case For():
                    axes.append(_Axis(stmt.var, stmt.extent, stmt.extent))
                case If():
                    if not self.guard(stmt.cond, axes):
                        return None
                case Prefetch(buffer):
                    raise VdlaError(
                        f"{self.name}: prefetch of {buffer.name}: the accelerator has no such "
                        "instruction; double_buffer a copy in its memory"
                    )
                case _:
                    raise VdlaError(f"{self.name}: no perfect nest at {stmt!r}")
            stmt = stmt.body  # type: ignore[union-attr]
        return _Nest(axes, stmt)

    def guard(self, cond: Expr, axes: list[_Axis]) -> bool:
        """Shorten the loop that a guard bounds; False when nothing remains."""
        bounds = self.bounds(cond, axes)
        if isinstance(bounds, bool):
            return bounds
        assert bounds is not None
        low, high, axis = bounds
        start, stop = max(axis.start, low), min(axis.stop, high)
        shorter = _Axis(axis.var, axis.extent, stop, start)  # faster than replace
        axes[axes.index(axis)] = shorter
        return shorter.start < shorter.stop

    def bounds(self, cond: Expr, axes: list[_Axis] | None) -> bool | tuple[int, int, _Axis] | None:
        """Whether a condition holds in the current iteration of the outer loops; if that depends on
        one of the ``axes``, ``low <= var < high`` for it. Without axes None where it depends.
        """
        if id(cond) not in self.slacks:
            self.slacks[id(cond)] = slack_of(cond)
        form = self.slacks[id(cond)]
        if form is None:
            cond = with_values(cond, self.known)
            if isinstance(cond, Const):
                return bool(cond.value)
            form = slack_of(cond)
        if form is not None:
            slack, factors = form.at(self.known)
            if not factors:
                return slack >= 0
            if len(factors) == 1 and axes is not None:
                ((term, k),) = factors.items()
                axis = next((a for a in axes if a.var is term), None)
                if axis is not None:
                    # slack + k*var >= 0
                    if k > 0:
                        return max(0, -(slack // k)), axis.extent, axis
                    return 0, max(0, slack // -k + 1), axis
        if axes is None:
            return None
        raise VdlaError(f"{self.name}: guard {self.text(cond)} must bound one loop")

    def text(self, expr: Expr) -> str:
        """An expression in the current iteration of the outer loops."""
        return expr_text(with_values(expr, self.known))

    def offset(self, buffer: Buffer, indices: tuple[Expr, ...]) -> _Offset:
        """Element offset of an access in its buffer."""
        constant, coefficients = self.form(buffer, indices).at(self.known)
        for term in coefficients:
            if not isinstance(term, Var):
                raise VdlaError(
                    f"{self.name}: index {expr_text(term)} of {buffer.name} is not affine in the "
                    f"nest's loops"
                )
        begin = sum(coefficients.get(var, 0) * start for var, start in self.starts.items())
        return _Offset(constant + begin, coefficients)

    def form(self, buffer: Buffer, indices: tuple[Expr, ...]) -> Form:
        """Element offset of an access as a form of all loops, also those outside of its nest."""
        key = id(buffer), id(indices)  # the loop program holds both
        if key not in self.forms:
            total: Expr = Const(0)
            for index, stride in zip(indices, buffer.strides, strict=True):
                total = total + index * stride
            self.forms[key] = Form.of(total)
        return self.forms[key]

    def split_entry(
        self, axes: list[_Axis], offset: _Offset, scope: str
    ) -> tuple[list[_Axis], list[_Axis]]:
        """Loops over entries and loops within an entry, of an access to a scratchpad."""
        per_entry = self.elements[scope]
        within = [a for a in axes if 0 < offset.of(a) < per_entry]
        outer = [a for a in axes if a not in within]
        covered = 1
        for axis in sorted(within, key=offset.of):
            if offset.of(axis) != covered or axis.stop != axis.extent:
                covered = -1
                break
            covered *= axis.extent
        if covered != per_entry or any(offset.of(a) % per_entry for a in outer):
            raise self.no_entries(scope)
        return outer, within

    def entry(self, buffer: Buffer, offset: _Offset) -> int:
        """Scratchpad entry of a constant offset."""
        return self.bases[buffer] + offset.constant // self.elements[buffer.scope]

    def stride(self, buffer: Buffer, offset: _Offset, axis: _Axis) -> int:
        """Entries that an access advances with a loop."""
        return offset.of(axis) // self.elements[buffer.scope]

    def shape(
        self, nest: _Nest, accesses: Sequence[tuple[Buffer, _Offset]], make: Callable[[], _Shape],
        *also: Any,
    ) -> _Shape:  # fmt: skip
        """What ``make`` returns for a nest and its accesses. It is made once for each of the
        nest's statements, loops and coefficients, and ``also``; it may not use constants."""
        key = (
            id(nest.core), make.__qualname__, tuple([axis.stop for axis in nest.axes]),
            tuple([tuple(offset.coefficients.items()) for _, offset in accesses]), *also,
        )  # fmt: skip
        if key not in self.shapes:
            self.shapes[key] = make()
        return self.shapes[key]

    def check_whole(self, buffer: Buffer, offset: _Offset) -> None:
        """An access to a scratchpad begins with an entry."""
        if offset.constant % self.elements[buffer.scope]:
            raise self.no_entries(buffer.scope)

    def no_entries(self, scope: str) -> VdlaError:
        """An access that is none of whole entries."""
        return VdlaError(
            f"{self.name}: an access to {scope} must sweep whole entries of "
            f"{self.elements[scope]} elements"
        )

    # ---- emission ----

    def emit(self, nest: _Nest) -> None:
        core = nest.core
        if id(core) not in self.notes:
            self.notes[id(core)] = self.note(core)
        self.script.begin(*self.notes[id(core)])
        self.starts = {}
        if isinstance(core, Store) and core.buffer.scope in LOADED_SCOPES:
            self.emit_load(nest, core)
            return
        if isinstance(core, Store) and isinstance(core.value, Select):
            self.emit_bordered(nest, core, core.value)
            return
        nest = self.begin(nest)
        match core:
            case TensorCall():
                self.emit_gemm(nest, core)
            case Store(Buffer(scope="global"), _, Read(Buffer(scope="out"))):
                self.emit_store(nest, core)
            case Store(Buffer(scope="tmp" | "out")):
                self.emit_vector(nest, core)
            case _:
                raise VdlaError(
                    f"{self.name}: no instruction computes {core.buffer.name} "
                    f"({core.buffer.scope}) = {expr_text(core.value)}"
                )

    def begin(self, nest: _Nest) -> _Nest:
        """The nest with loops that begin with 0. Their first values are part of all offsets."""
        self.starts = {axis.var: axis.start for axis in nest.axes if axis.start}
        return _Nest([_Axis(a.var, a.extent, a.stop - a.start) for a in nest.axes], nest.core)

    def note(self, core: Store | TensorCall) -> tuple[str, Sequence[Buffer]]:
        """What the instructions of a nest are for: the stage that they compute, and the buffers
        that they move."""
        written = core.output.buffer if isinstance(core, TensorCall) else core.buffer
        read = [buffer for buffer in _read_buffers(core) if buffer.scope == "global"]
        return written.name, [written, *read]

    def emit_load(self, nest: _Nest, core: Store) -> None:
        value, fill = core.value, 0
        inside = {axis.var: (axis.start, axis.stop) for axis in nest.axes}
        if isinstance(value, Select):
            assert isinstance(value.b, Const)
            fill = value.b.value
            found = self.box(nest, value.cond)
            if found is None:
                raise VdlaError(f"{self.name}: a load of padding only is not supported")
            inside, value = found, value.a
        widen = isinstance(value, Cast) and (core.buffer.scope, value.dtype) == ("par", "int32")
        if widen:
            value = value.a  # type: ignore[union-attr]
        if not (isinstance(value, Read) and value.source.scope == "global"):
            raise VdlaError(f"{self.name}: a load copies from DRAM, got {expr_text(value)}")
        target = self.offset(core.buffer, core.indices)
        source = self.offset(value.source, value.indices)
        self.check_whole(core.buffer, target)
        loops, padding, start_bytes, entries, apart = self.shape(
            nest, [(core.buffer, target), (value.source, source)],
            lambda: self.load_shape(nest, core.buffer, value.source, target, source, inside),
            tuple(inside.values()),
        )  # fmt: skip
        item_bytes = np.dtype(value.source.dtype).itemsize
        offset_bytes = start_bytes + source.constant * item_bytes
        base, scope = self.entry(core.buffer, target), core.buffer.scope
        if apart:
            for i in range(loops[0].extent):
                moved = value.source, offset_bytes + i * loops[0].strides[0]
                self.script.load(scope, base + i * entries, *moved, loops[1:], padding[1:], fill)
            return
        base, padding = self.keep_padding(scope, base, loops, padding, fill)
        self.script.load(scope, base, value.source, offset_bytes, loops, padding, fill, widen)

    def box(self, nest: _Nest, cond: Expr) -> dict[Var, tuple[int, int]] | None:
        """For each loop of a nest, the first value with which a condition holds, and the one behind
        the last; None where it holds with none."""
        inside = {axis.var: (axis.start, axis.stop) for axis in nest.axes}
        for term in _conjunction(cond):
            bounds = self.bounds(term, nest.axes)
            if isinstance(bounds, bool):
                if not bounds:
                    return None
                continue
            assert bounds is not None
            low, high, axis = bounds
            old = inside[axis.var]
            inside[axis.var] = (max(old[0], low), min(old[1], high))
        return inside

    def load_shape(
        self,
        nest: _Nest,
        buffer: Buffer,
        source_buffer: Buffer,
        target: _Offset,
        source: _Offset,
        inside: dict[Var, tuple[int, int]],
    ) -> tuple[list[Loop], list[Padding], int, int, bool]:
        """Loops and padding of a load; the bytes from the constant of its source to the first
        element that is no padding; entries in an iteration of the outermost loop; and whether each
        of these has a load of its own.
        """
        outer, within = self.split_entry(nest.axes, target, buffer.scope)
        if any(source.of(a) != target.of(a) for a in within):
            raise VdlaError(f"{self.name}: load of {buffer.name} must copy whole entries")
        item_bytes = np.dtype(source_buffer.dtype).itemsize
        outer.sort(key=target.of, reverse=True)
        loops, padding, start = [], [], 0
        expected = self.elements[buffer.scope]
        for axis in reversed(outer):
            if target.of(axis) != expected:
                raise VdlaError(f"{self.name}: load of {buffer.name} must fill it without gaps")
            expected *= axis.extent
        for position, axis in enumerate(outer):
            low, high = inside[axis.var]
            if high <= low:
                raise VdlaError(f"{self.name}: a load of padding only is not supported")
            # A guard cuts off the end of a loop. In the outermost loop, these entries are not
            # loaded; in an inner loop they are filled like padding, to keep the pitch.
            cut_only = position == 0 and low == 0 and high == axis.stop
            after = 0 if cut_only else axis.extent - high
            loops.append(Loop(high - low, (source.of(axis) * item_bytes,)))
            padding.append(Padding(low, after))
            start += low * source.of(axis)
        # Each block of output channels has a load of its own for its weights: the tensor core uses
        # them block by block.
        inner = zip(loops[1:], padding[1:], strict=True)
        entries = prod(loop.extent + pad.before + pad.after for loop, pad in inner)
        beats = entries * self.params.entry_bytes(buffer.scope) // self.params.bus_bytes
        apart = buffer.scope == "wgt" and len(loops) > 1 and beats >= MIN_INSN_CYCLES
        return loops, padding, start * item_bytes, entries, apart

    def keep_padding(
        self, scope: str, base: int, loops: list[Loop], padding: list[Padding], fill: int
    ) -> tuple[int, list[Padding]]:
        """The base and the padding of a load without the padding before and after its rows that an
        earlier load has left there: that is not written again.
        """
        filled = self.filled_of(scope)
        extents = [x.extent + p.before + p.after for x, p in zip(loops, padding, strict=True)]
        if all(pad == Padding() for pad in padding):
            filled[base : base + prod(extents)] = NO_PADDING
            return base, padding
        # Only the padding of the outermost dimension lies at the ends of the box. Other padding
        # lies between rows, and is written each time.
        rows = next((i for i, extent in enumerate(extents) if extent > 1), len(extents) - 1)
        row = prod(extents[rows + 1 :])
        entries = filled[base : base + prod(extents)]
        before, after = row * padding[rows].before, row * padding[rows].after
        first, last = entries[:before], entries[entries.size - after :]
        entries[before : entries.size - after] = NO_PADDING
        kept = Padding(
            0 if (first == fill).all() else padding[rows].before,
            0 if (last == fill).all() else padding[rows].after,
        )
        first[:], last[:] = fill, fill
        skipped = row * (padding[rows].before - kept.before)
        return base + skipped, [*padding[:rows], kept, *padding[rows + 1 :]]

    def emit_store(self, nest: _Nest, core: Store) -> None:
        assert isinstance(core.value, Read)
        source_buffer = core.value.source
        source = self.offset(source_buffer, core.value.indices)
        target = self.offset(core.buffer, core.indices)
        self.check_whole(source_buffer, source)
        moves, loops = self.shape(
            nest, [(source_buffer, source), (core.buffer, target)],
            lambda: self.store_shape(nest, core.buffer, source_buffer, source, target),
        )  # fmt: skip
        base = self.entry(source_buffer, source)
        for entries, size_bytes in moves:
            self.script.store(base + entries, core.buffer, target.constant + size_bytes, loops)

    def store_shape(
        self,
        nest: _Nest,
        buffer: Buffer,
        source_buffer: Buffer,
        source: _Offset,
        target: _Offset,
    ) -> tuple[list[tuple[int, int]], list[Loop]]:
        """For each instruction, how far it is from the first in entries and bytes; and the loops of
        all."""
        outer, within = self.split_entry(nest.axes, source, "out")
        if any(source.of(a) != target.of(a) for a in within):
            raise VdlaError(f"{self.name}: store of {buffer.name} must copy whole entries")
        outer.sort(key=source.of, reverse=True)
        # The innermost loops that follow one another without gaps make one instruction; those
        # outside are unrolled.
        whole, expected = len(outer), self.elements["out"]
        for axis in reversed(outer):
            if source.of(axis) != expected:
                break
            expected *= axis.stop
            whole -= 1
        loops = [Loop(axis.stop, (target.of(axis),)) for axis in outer[whole:]]
        moves = []
        for step in product(*(range(axis.stop) for axis in outer[:whole])):
            moved = list(zip(step, outer[:whole], strict=True))
            entries = sum(i * self.stride(source_buffer, source, a) for i, a in moved)
            moves.append((entries, sum(i * target.of(a) for i, a in moved)))
        return moves, loops

    def emit_gemm(self, nest: _Nest, core: TensorCall) -> None:
        def located(region: Region) -> tuple[Buffer, _Offset]:
            return region.buffer, self.offset(region.buffer, region.start)

        acc, offset = located(core.output)
        key = (acc, self.entry(acc, offset))
        if core.variant == "init":
            self.pending[key] = 0
            return
        init = self.pending.pop(key, None) is not None
        operands = [(acc, offset), *(located(region) for region in core.inputs)]
        if [buffer.scope for buffer, _ in operands] != ["acc", "inp", "wgt"]:
            raise VdlaError(
                f"{self.name}: {core.intrinsic.name} works on acc, inp, wgt, got "
                f"{[b.scope for b, _ in operands]}"
            )
        moves, rest = self.shape(nest, operands, lambda: self.gemm_shape(nest, operands))
        a, b, c = (self.entry(buffer, offset) for buffer, offset in operands)
        for i, j, k in moves:
            self.script.gemm((a + i, b + j, c + k), rest, init)

    def gemm_shape(
        self, nest: _Nest, operands: Sequence[tuple[Buffer, _Offset]]
    ) -> tuple[list[tuple[int, int, int]], list[Loop]]:
        """For each instruction, how far its operands are from those of the first, in entries; and
        the loops of all."""
        loops = [Loop(a.stop, tuple(self.stride(b, o, a) for b, o in operands)) for a in nest.axes]
        # One instruction for each block of output channels: it starts when its own weights are
        # there, and its results are on their way while the next block is computed.
        channels = [loop for loop in loops if loop.strides[0] and not loop.strides[1]]
        rest = [loop for loop in loops if loop not in channels]
        if prod(loop.extent for loop in rest) < MIN_INSN_CYCLES:
            channels, rest = [], loops
        moves = []
        for step in product(*(range(loop.extent) for loop in channels)):
            pairs = list(zip(step, channels, strict=True))
            i, j, k = (sum(n * loop.strides[m] for n, loop in pairs) for m in range(3))
            moves.append((i, j, k))
        return moves, rest

    def emit_vector(self, nest: _Nest, core: Store) -> None:
        target = self.offset(core.buffer, core.indices)
        key = (core.buffer, self.entry(core.buffer, target))
        value = core.value
        if isinstance(value, Const):
            self.pending[key] = value.value
            return
        if id(core) not in self.computed:
            self.computed[id(core)] = _Computed.by(core)
        computed = self.computed[id(core)]
        if (accumulation := computed.accumulation) is not None:
            work = self.vector_work(nest, core, accumulation, self.initial(key, accumulation))
            self.set_table(accumulation)
            if core.buffer in self.fusable:
                self.reductions[key] = work
            else:
                self.vector(work)
            return
        requant, arithmetic = computed.requantize, computed.arithmetic
        if arithmetic is None:
            raise self.no_pass(value)
        work = self.vector_work(nest, core, arithmetic, 0)
        self.set_table(arithmetic)
        if requant is None:
            self.vector(work)
            return
        source = arithmetic.a.source
        if source in self.fusable:
            work = work.after(self.reductions.pop((source, work.bases[1])))
        par = requant.parameters.source
        parameters = self.offset(par, requant.parameters.indices)
        steps = self.shape(
            nest, [(core.buffer, target), (par, parameters)],
            lambda: self.parameter_steps(nest, core.buffer, target, par, parameters),
        )  # fmt: skip
        for moved, step in work.steps(steps):
            base = self.entry(par, parameters) + step
            self.script.param(base, requant.zero_point, requant.lo, requant.hi)
            self.vector(moved, requant.post)

    def emit_bordered(self, nest: _Nest, core: Store, value: Select) -> None:
        """A nest of the vector unit that makes an image in tmp with a border: what is inside, and
        a number around it where that is not there already."""
        assert isinstance(value.b, Const)
        inside = self.box(nest, value.cond)
        if core.buffer.scope != "tmp" or inside is None:
            raise VdlaError(f"{self.name}: {core.buffer.name}: a border only is not supported")
        if id(core) not in self.insides:
            self.insides[id(core)] = Store(core.buffer, core.indices, value.a)
        own = [replace(a, start=inside[a.var][0], stop=inside[a.var][1]) for a in nest.axes]
        part = _Nest(own, self.insides[id(core)])
        self.emit(part)
        for at, (whole, mine) in enumerate(zip(nest.axes, own, strict=True)):
            for start, stop in (whole.start, mine.start), (mine.stop, whole.stop):
                if start < stop:
                    side = replace(whole, start=start, stop=stop)
                    axes = [*own[:at], side, *nest.axes[at + 1 :]]
                    self.fill(_Nest(axes, core), part, value.b.value)

    def fill(self, nest: _Nest, beside: _Nest, number: int) -> None:
        """Put a number into the entries of tmp that a nest writes, if it is not there. No operator
        copies an immediate, so it is added to 0 times a value that the nest ``beside`` reads."""
        core, inner = nest.core, beside.core
        assert isinstance(core, Store) and isinstance(inner, Store)
        read = next(
            n for n in walk(inner.value) if isinstance(n, Read) and n.source.scope in IMAGE_SOURCES
        )
        self.begin(beside)
        source = self.entry(read.source, self.offset(read.source, read.indices))
        begun = self.begin(nest)
        target = self.offset(core.buffer, core.indices)
        kept, _ = self.split_entry(begun.axes, target, "tmp")
        base = self.entry(core.buffer, target)
        steps = [(axis.stop, self.stride(core.buffer, target, axis)) for axis in kept]
        entries = _entries(base, steps)
        filled = self.filled_of("tmp")
        if (filled[entries] == number).all():
            return
        loops = tuple(Loop(n, (by, 0, 0)) for n, by in steps)
        zero = VectorWork("mul", 0, ("tmp", read.source.scope, "imm"), (base, source, 0), loops)
        self.vector(zero)
        if number:
            loops = tuple(Loop(n, (by, by, 0)) for n, by in steps)
            add = VectorWork("add", number, ("tmp", "tmp", "imm"), (base, base, 0), loops)
            self.vector(add)
        filled[entries] = number

    def vector(self, work: VectorWork, post: str = "none") -> None:
        """Append the instructions of a nest of the vector unit."""
        if work.memories[0] == "tmp" and "tmp" in self.filled:
            steps = [(loop.extent, loop.strides[0]) for loop in work.loops]
            self.filled["tmp"][_entries(work.bases[0], steps)] = NO_PADDING
        self.script.vector(work, post)

    def filled_of(self, scope: str) -> np.ndarray:
        """What the entries of a scratchpad are padded with."""
        if scope not in self.filled:
            self.filled[scope] = np.full(self.params.depth(scope), NO_PADDING, np.int64)
        return self.filled[scope]

    def set_table(self, arithmetic: Arithmetic) -> None:
        """Set the table that an operator looks up in."""
        if arithmetic.table is not None:
            self.script.table(self.bases[arithmetic.table])

    def no_pass(self, value: Expr) -> VdlaError:
        """The error for a value that the vector unit does not compute in one pass."""
        whole = value.a if isinstance(value, Cast) else value
        if saturated(value) is None and match_arithmetic(whole) is not None:
            return VdlaError(
                f"{self.name}: the vector unit saturates to int8, and {expr_text(value)} wraps; "
                "write te.clip(value, -128, 127).astype('int8')"
            )
        return VdlaError(
            f"{self.name}: the vector unit does not compute {expr_text(value)}; {ONE_PASS}"
        )

    def parameter_steps(
        self, nest: _Nest, buffer: Buffer, target: _Offset, par: Buffer, parameters: _Offset
    ) -> list[int]:
        """Entries by which the parameters advance with each loop over results."""
        kept, _ = self.split_entry(nest.axes, target, buffer.scope)
        return [self.stride(par, parameters, axis) for axis in kept]

    def initial(self, key: tuple[Buffer, int], accumulation: Arithmetic) -> int:
        """The constant that an accumulation starts from."""
        if key not in self.pending:
            raise VdlaError(f"{self.name}: {key[0].name} accumulates before it is initialised")
        initial = self.pending.pop(key)
        if initial and isinstance(accumulation.b, Read):
            raise VdlaError(
                f"{self.name}: {key[0].name}: a sum of products starts from 0, got {initial}"
            )
        return initial

    def vector_work(
        self, nest: _Nest, core: Store, arithmetic: Arithmetic, initial: int
    ) -> VectorWork:
        """The nest with bases and strides in entries. An accumulation without a second operand has
        the initial value as its immediate.
        """
        a, b = arithmetic.a, arithmetic.b
        reads = [(core.buffer, self.offset(core.buffer, core.indices))]
        for operand in (a, b):
            if isinstance(operand, Read):
                reads.append((operand.source, self.offset(operand.source, operand.indices)))
        self.check_whole(*reads[0])
        memories, loops, reduction, slides = self.shape(
            nest, reads, lambda: self.vector_shape(nest, reads, arithmetic.slides), arithmetic.op
        )
        bases = [self.entry(buffer, o) for buffer, o in reads]
        return VectorWork(
            op=arithmetic.op,
            imm=b.value if isinstance(b, Const) else initial,
            memories=memories,
            bases=(bases[0], bases[1], bases[2] if len(reads) > 2 else 0),
            loops=loops,
            reduction=reduction,
            slides=slides,
        )

    def vector_shape(
        self, nest: _Nest, reads: Sequence[tuple[Buffer, _Offset]], slides: Var | None
    ) -> tuple[tuple[str, str, str], tuple[Loop, ...], tuple[Loop, ...], Loop | None]:
        """Memories, loops and reduction of a :class:`~.stream.VectorWork`, and the loop that its
        window slides along."""
        result, offset = reads[0]
        outer, _ = self.split_entry(nest.axes, offset, result.scope)
        loops = [
            (Loop(x.stop, _three([self.stride(buffer, o, x) for buffer, o in reads])), x)
            for x in outer
        ]
        memories = [buffer.scope for buffer, _ in reads]
        return (
            (memories[0], memories[1], memories[2] if len(reads) > 2 else "imm"),
            tuple(loop for loop, x in loops if offset.of(x)),
            tuple(loop for loop, x in loops if not offset.of(x) and x.var is not slides),
            next((loop for loop, x in loops if x.var is slides), None),
        )


def _entries(base: int, steps: Sequence[tuple[int, int]]) -> np.ndarray:
    """The entries of a box: ``steps`` has how many there are along each dimension, and how far
    apart they are."""
    steps_of = (np.arange(count) * by for count, by in steps)
    return base + reduce(np.add.outer, steps_of, np.zeros((), np.int64))


def _read_buffers(core: Store | TensorCall) -> list[Buffer]:
    if isinstance(core, TensorCall):
        return [region.buffer for region in core.inputs]
    return [node.source for node in walk(core.value) if isinstance(node, Read)]


def _three(strides: list[int]) -> tuple[int, ...]:
    return tuple((*strides, 0)[:3])


def _conjunction(cond: Expr) -> list[Expr]:
    if isinstance(cond, Binary) and cond.op == "&":
        return [*_conjunction(cond.a), *_conjunction(cond.b)]
    return [cond]
