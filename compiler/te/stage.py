"""Stages: how one tensor is computed. Every primitive preserves the result; names and meanings are
TVM's.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

from .errors import ScheduleError
from .expr import Expr, Extern, Read, Reduce, Var, walk
from .intrinsic import TensorIntrin
from .relations import Fuse, Relation, Split
from .tensor import IterVar, Tensor

#: How a loop runs. A loop that is bound to a thread axis has the axis' name in place of a kind.
LOOP_KINDS = ("serial", "unrolled", "vectorized", "parallel", "vthread")


def is_thread_axis(name: str) -> bool:
    """Whether a name can be that of a thread axis: identifiers with points between them."""
    parts = name.split(".")
    return len(parts) > 1 and all(part.isidentifier() for part in parts)


@dataclass(frozen=True, eq=False)
class Prefetching:
    """A tensor that is prefetched into the cache, ``offset`` iterations of ``axis`` before it is
    read.
    """

    tensor: Tensor
    axis: IterVar
    offset: int


@dataclass(eq=False)
class Stage:
    """How one tensor is computed: loops in order, their kinds, where the stage is attached, its
    memory scope.
    """

    tensor: Tensor
    body: Expr | None = None
    scope: str = "global"
    leaves: list[IterVar] = field(default_factory=list)
    relations: list[Relation] = field(default_factory=list)
    kinds: dict[IterVar, str] = field(default_factory=dict)
    pragmas: dict[IterVar, dict[str, Any]] = field(default_factory=dict)
    intrinsics: dict[IterVar, Any] = field(default_factory=dict)
    prefetches: list[Prefetching] = field(default_factory=list)
    alignments: dict[IterVar, tuple[int, int]] = field(default_factory=dict)
    swizzled: bool = False
    attach: tuple[Stage, IterVar] | None = None
    inlined: bool = False
    double_buffered: bool = False
    stages: int = 1
    covers: dict[IterVar, int] = field(default_factory=dict)
    _reads: tuple[Expr | None, list[Read]] = field(default=(None, []), repr=False)

    def __post_init__(self) -> None:
        if self.body is None:
            self.body = self.tensor.body
        self.leaves = self._first_leaves()

    def _first_leaves(self) -> list[IterVar]:
        whole = isinstance(self.body, Extern)
        return [] if whole else [*self.tensor.axes, *self.reduce_axes]

    @property
    def reduce_axes(self) -> tuple[IterVar, ...]:
        """Reduction axes of the stage's present expression."""
        return self.body.axes if isinstance(self.body, Reduce) else ()

    def reads(self) -> list[Read]:
        """Every element access of the stage's expression."""
        body, found = self._reads
        if body is not self.body:  # a primitive has changed it
            body = self.body
            found = [] if body is None else [n for n in walk(body) if isinstance(n, Read)]
            self._reads = body, found
        return found

    @property
    def name(self) -> str:
        """The tensor's name."""
        return self.tensor.name

    @property
    def untouched(self) -> bool:
        """Whether no primitive has changed the loops of the stage, its buffer or its expression."""
        changes = (self.relations, self.kinds, self.pragmas, self.intrinsics, self.prefetches,
                   self.alignments, self.swizzled, self.covers, self.inlined)  # fmt: skip
        return not any(changes) and self.leaves == self._first_leaves()

    def _position(self, axis: IterVar, what: str) -> int:
        if axis not in self.leaves:
            raise ScheduleError(
                f"{what}: {axis!r} is no loop of stage {self.name} (its loops: {self.leaves!r}); "
                "it may have been split or fused"
            )
        return self.leaves.index(axis)

    # ---- loop structure ----

    def split(
        self, axis: IterVar, factor: int | None = None, nparts: int | None = None
    ) -> tuple[IterVar, IterVar]:
        """Split a loop in two. Either the inner loop has the extent ``factor``, or the outer loop
        has ``nparts`` iterations, fewer where some would be empty. If the extent does not divide
        evenly, the tail is guarded.

        ::

            for i in 10: ...      ->      for i.o in 3: for i.i in 4: if i.o*4 + i.i < 10: ...
        """
        self._check_split(axis, factor, nparts)
        position = self.leaves.index(axis)
        size = factor if factor is not None else -(-axis.extent // nparts)  # type: ignore[operator]
        outer = IterVar(Var(axis.name + ".o"), -(-axis.extent // size), axis.kind)
        inner = IterVar(Var(axis.name + ".i"), size, axis.kind)
        self.leaves[position : position + 1] = [outer, inner]
        self.relations.append(Split(axis, outer, inner, factor, nparts))
        return outer, inner

    def _check_split(self, axis: IterVar, factor: int | None, nparts: int | None = None) -> None:
        self._position(axis, "split")
        if (factor is None) == (nparts is None):
            raise ScheduleError(
                f"split of {axis!r} in {self.name}: give factor or nparts, one of both"
            )
        size = factor if factor is not None else nparts
        if type(size) is not int or size < 1:
            raise ScheduleError(
                f"split of {axis!r} in {self.name}: expected at least 1, got {factor=} {nparts=}"
            )

    def fuse(self, outer: IterVar, inner: IterVar) -> IterVar:
        """Make one loop of two that are nested directly.

        ::

            for i in 3: for j in 4: ...      ->      for i.j.f in 12: ...  (i = f // 4, j = f % 4)
        """
        position = self._position(outer, "fuse")
        if self._position(inner, "fuse") != position + 1:
            raise ScheduleError(
                f"fuse in {self.name}: {inner!r} must be directly inside {outer!r}; reorder first"
            )
        if outer.kind != inner.kind:
            raise ScheduleError(
                f"fuse in {self.name}: {outer!r} and {inner!r} are a data and a reduction loop"
            )
        fused = IterVar(
            Var(f"{outer.name}.{inner.name}.f"), outer.extent * inner.extent, outer.kind
        )
        self.leaves[position : position + 2] = [fused]
        self.relations.append(Fuse(outer, inner, fused))
        return fused

    def reorder(self, *axes: IterVar) -> None:
        """Put the given loops in the given order, in the places that they hold now.

        ::

            for i: for j: for k: ...   reorder(k, i)   ->      for k: for j: for i: ...
        """
        places = sorted(self._position(axis, "reorder") for axis in axes)
        if len(set(axes)) != len(axes):
            raise ScheduleError(f"reorder in {self.name}: a loop is named twice in {axes!r}")
        for place, axis in zip(places, axes, strict=True):
            self.leaves[place] = axis

    def tile(
        self, x: IterVar, y: IterVar, x_factor: int, y_factor: int
    ) -> tuple[IterVar, IterVar, IterVar, IterVar]:
        """Split two loops and put the outer ones outside.

        ::

            for x: for y: ...      ->      for x.o: for y.o: for x.i: for y.i: ...
        """
        self._check_split(x, x_factor)
        self._check_split(y, y_factor)
        if x is y:
            raise ScheduleError(f"tile in {self.name}: expected two loops, got {x!r} twice")
        xo, xi = self.split(x, x_factor)
        yo, yi = self.split(y, y_factor)
        self.reorder(xo, yo, xi, yi)
        return xo, yo, xi, yi

    # ---- loop kinds ----

    def _set_kind(self, axis: IterVar, kind: str) -> None:
        self._position(axis, kind)
        self.kinds[axis] = kind

    def unroll(self, axis: IterVar) -> None:
        """Replicate the body for every value: ``for i in 2: f(i)`` -> ``f(0); f(1)``."""
        self._set_kind(axis, "unrolled")

    def _set_data_kind(self, axis: IterVar, kind: str, what: str) -> None:
        self._position(axis, what)
        if axis.kind == "reduce":
            raise ScheduleError(
                f"{what} in {self.name}: {axis!r} is a reduction, its iterations are not "
                "independent; rfactor it first"
            )
        self.kinds[axis] = kind

    def vectorize(self, axis: IterVar) -> None:
        """Execute a loop as one vector operation: ``for i in 4: y[i] = f(x[i])`` -> ``y[0:4] =
        f(x[0:4])``. Innermost data loops only.
        """
        self._set_data_kind(axis, "vectorized", "vectorize")

    def parallel(self, axis: IterVar) -> None:
        """Let iterations of a data loop run at the same time: ``for i`` -> ``parallel for i``."""
        self._set_data_kind(axis, "parallel", "parallel")

    def vthread(self, axis: IterVar) -> None:
        """Make a data loop's iterations virtual threads. Each gets buffers of its own for the
        tensors computed inside, and their statements are interleaved into one stream, so that one
        thread's copies hide behind another's arithmetic.

        ::

            for v in 2: load(v); gemm(v)      ->      load(0); load(1); gemm(0); gemm(1)
        """
        self._set_data_kind(axis, "vthread", "vthread")

    def bind(self, axis: IterVar, thread: str) -> None:
        """Bind a data loop to a thread axis of the target: its iterations are the axis' threads. An
        axis is bound to only one loop of a nest.

        ::

            for i.o in 3: for i.i in 4: ...      ->      blockIdx.x for i.o in 3:
                                                           threadIdx.x for i.i in 4: ...
        """
        if not is_thread_axis(thread):
            raise ScheduleError(
                f"bind of {axis!r} in {self.name}: expected the name of a thread axis, such as "
                f"blockIdx.x, got {thread!r}"
            )
        taken = next((a for a, k in self.kinds.items() if k == thread and a in self.leaves), axis)
        if taken is not axis:
            raise ScheduleError(
                f"bind of {axis!r} in {self.name}: {thread} is bound to {taken!r} already"
            )
        self._set_data_kind(axis, thread, "bind")

    def pragma(self, axis: IterVar, key: str, value: Any = True) -> None:
        """Attach a hint for code generators to a loop: ``for i`` -> ``for i @key=value``."""
        self._position(axis, "pragma")
        self.pragmas.setdefault(axis, {})[key] = value

    def tensorize(self, axis: IterVar, intrinsic: TensorIntrin) -> None:
        """Replace a loop and all inside it by a tensor intrinsic, after matching them against its
        declared behaviour.

        ::

            for oc: for ic: acc[oc] += inp[ic]*wgt[oc,ic]      ->      gemm(acc, inp, wgt)
        """
        self._position(axis, "tensorize")
        if not isinstance(intrinsic, TensorIntrin):
            raise ScheduleError(
                f"tensorize of {self.name}: expected a TensorIntrin, which says what it computes, "
                f"got {intrinsic!r}"
            )
        self.intrinsics[axis] = intrinsic

    def prefetch(self, tensor: Tensor, axis: IterVar, offset: int = 1) -> None:
        """Prefetch the elements of ``tensor`` that are read inside a loop, ``offset`` iterations
        ahead: one request per cache line. Requests beyond the tensor's end read nothing.

        ::

            for i: y[i] = f(x[i, :])      ->      for i: prefetch x[i + 1, :]; y[i] = f(x[i, :])
        """
        self._position(axis, f"prefetch of {tensor.name}")
        if type(offset) is not int or offset < 1:
            raise ScheduleError(
                f"prefetch of {tensor.name} at {axis!r} in {self.name}: expected an offset of at "
                f"least 1 iteration, got {offset!r}"
            )
        self.prefetches.append(Prefetching(tensor, axis, offset))

    # ---- placement ----

    def compute_at(self, consumer: Stage, axis: IterVar) -> None:
        """Compute the tensor inside a consumer's loop ``axis``: only the elements that are needed
        there, into a buffer of just that size.

        ::

            for i: p[i] = ...                  for i.o: for i.i in 4: p[i.i] = ...
            for i: c[i] = f(p[i])      ->               for i.i in 4: c[i.o*4+i.i] = f(p[i.i])
        """
        consumer._position(axis, f"compute_at of {self.name}")
        if self.tensor.body is None:
            raise ScheduleError(f"compute_at: {self.name} is a placeholder; nothing computes it")
        if consumer is self:
            raise ScheduleError(f"compute_at: {self.name} cannot be computed inside itself")
        self._check_movable("compute_at")
        self.attach, self.inlined = (consumer, axis), False

    def _check_movable(self, what: str) -> None:
        if isinstance(self.body, Extern) or self.tensor.state is not None:
            kind = "loop program of its own" if self.tensor.state is None else "scan"
            raise ScheduleError(f"{what}: {self.name} is a {kind}; it is computed whole, at root")

    def double_buffer(self) -> None:
        """Let iterations of the loop at which the tensor is computed alternate between two buffers,
        so that one is filled while the other is read.

        ::

            for i: b = ...; use(b)      ->      for i: b[i % 2] = ...; use(b[i % 2])
        """
        if self.attach is None:
            raise ScheduleError(f"double_buffer of {self.name}: compute it at a loop first")
        self.double_buffered = True

    def cover(self, axis: IterVar, count: int) -> None:
        """Compute multiples of ``count`` indices of a data axis, where consumers need fewer, as far
        as the tensor goes: whole tiles for an intrinsic.

        ::

            for i in 5: p[i] = ...      ->      for i in 8: p[i] = ...
        """
        if axis not in self.tensor.axes:
            raise ScheduleError(
                f"cover of {self.name}: expected one of {list(self.tensor.axes)!r}, got {axis!r}"
            )
        if type(count) is not int or count < 1:
            raise ScheduleError(f"cover of {self.name}: expected 1 or more, got {count!r}")
        self.covers[axis] = count

    def pipeline(self, stages: int) -> None:
        """Let a kernel fill ``stages`` buffers in turn, all but one of them ahead of the iteration
        that reads them. Copies in loops with the pragma "async" arrive meanwhile.

        ::

            for i: b = x[i]; use(b)      ->      b[0] = x[0]
                                                 for i: b[(i + 1) % 2] = x[i + 1]; use(b[i % 2])
        """
        if self.attach is None:
            raise ScheduleError(f"pipeline of {self.name}: compute it at a loop first")
        if type(stages) is not int or stages < 2:
            raise ScheduleError(f"pipeline of {self.name}: expected 2 or more, got {stages!r}")
        self.stages = stages

    def compute_root(self) -> None:
        """Compute the whole tensor before its consumers (the default).

        ::

            for i: p = ...; c[i] = f(p)      ->      for i: p[i] = ...
                                                     for i: c[i] = f(p[i])
        """
        self.attach, self.inlined = None, False

    def compute_inline(self) -> None:
        """Put the defining expression in place of every use: ``p[i]=f(i); c[i]=g(p[i])`` ->
        ``c[i]=g(f(i))``.
        """
        if self.body is None or self.reduce_axes:
            raise ScheduleError(f"compute_inline: {self.name} is a placeholder or a reduction")
        self._check_movable("compute_inline")
        self.attach, self.inlined = None, True

    def storage_align(self, axis: IterVar, factor: int, offset: int = 0) -> None:
        """Pad the tensor's buffer, so that the stride of a data axis is ``offset`` elements more
        than a multiple of ``factor``.

        ::

            allocate b[4, 6]      ->      allocate b[4, 6] with strides [8, 1]  (axis 0, factor 8)
        """
        what = f"storage_align of {self.name}"
        if axis not in self.tensor.axes[:-1]:
            raise ScheduleError(
                f"{what}: expected one of its axes {self.tensor.axes[:-1]!r}, got {axis!r}; "
                "elements of the last one lie side by side"
            )
        if type(factor) is not int or type(offset) is not int or not 0 <= offset < factor:
            raise ScheduleError(
                f"{what}: expected 0 <= offset < factor, got {factor=!r} {offset=!r}"
            )
        self.alignments[axis] = (factor, offset)

    def swizzle(self) -> None:
        """Let rows of 32, 64 or 128 bytes have their pieces of 16 bytes in another order each, so
        that threads which read a column of such pieces do not wait for each other.

        ::

            allocate b[8, 64]      ->      allocate b[8, 64], swizzled
        """
        self.swizzled = True

    def set_scope(self, scope: str) -> None:
        """Keep the tensor in one of the target's memories: ``allocate b in global`` -> ``allocate b
        in inp``.
        """
        if not scope.isidentifier():
            raise ScheduleError(
                f"set_scope of {self.name}: expected the name of a memory, such as global, got "
                f"{scope!r}"
            )
        self.scope = scope
