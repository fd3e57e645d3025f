"""Schedules: how a tensor is computed. Every primitive preserves the result; names and meanings are
TVM's.

A :class:`Schedule` has one :class:`Stage` per tensor. A stage starts with one loop per axis, data
axes outermost, and the primitives rearrange them; ``tir/lower.py`` turns the schedule into a loop
program.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

from ...isa.errors import VdlaError
from .expr import Expr, Read, Reduce, Var, rewrite, substitute, walk
from .tensor import IterVar, Tensor

SCOPES = ("global", "inp", "wgt", "par", "acc", "tmp", "out")
KINDS = ("serial", "unrolled", "vectorized", "parallel", "vthread")


@dataclass(frozen=True, eq=False)
class Split:
    """``parent = outer * factor + inner``; with ``nparts`` the factor follows from the extent."""

    parent: IterVar
    outer: IterVar
    inner: IterVar
    factor: int | None
    nparts: int | None = None

    def factor_for(self, extent: int) -> int:
        """Factor when the parent has this extent (a stage computed for a region has smaller
        extents).
        """
        return self.factor if self.factor is not None else -(-extent // self.nparts)  # type: ignore[operator]


@dataclass(frozen=True, eq=False)
class Fuse:
    """``fused = outer * extent(inner) + inner``."""

    outer: IterVar
    inner: IterVar
    fused: IterVar


@dataclass(eq=False)
class Stage:
    """How one tensor is computed: loops in order, their kinds, where the stage is attached, its
    memory scope.
    """

    tensor: Tensor
    body: Expr | None = None
    scope: str = "global"
    leaves: list[IterVar] = field(default_factory=list)
    relations: list[Split | Fuse] = field(default_factory=list)
    kinds: dict[IterVar, str] = field(default_factory=dict)
    pragmas: dict[IterVar, dict[str, Any]] = field(default_factory=dict)
    intrinsics: dict[IterVar, Any] = field(default_factory=dict)
    attach: tuple[Stage, IterVar] | None = None
    inlined: bool = False
    double_buffered: bool = False

    def __post_init__(self) -> None:
        if self.body is None:
            self.body = self.tensor.body
        self.leaves = [*self.tensor.axes, *self.reduce_axes]

    @property
    def reduce_axes(self) -> tuple[IterVar, ...]:
        """Reduction axes of what the stage computes now."""
        return self.body.axes if isinstance(self.body, Reduce) else ()

    def reads(self) -> list[Read]:
        """Every element access of the stage's expression."""
        return [] if self.body is None else [n for n in walk(self.body) if isinstance(n, Read)]

    @property
    def name(self) -> str:
        """The tensor's name."""
        return self.tensor.name

    def _position(self, axis: IterVar, what: str) -> int:
        if axis not in self.leaves:
            raise VdlaError(
                f"{what}: {axis!r} is no loop of stage {self.name} (its loops: {self.leaves!r}); "
                "it may have been split or fused"
            )
        return self.leaves.index(axis)

    # ---- loop structure ----

    def split(
        self, axis: IterVar, factor: int | None = None, nparts: int | None = None
    ) -> tuple[IterVar, IterVar]:
        """Split a loop in two; a factor that does not divide the extent leaves a guarded tail.

        ::

            for i in 10: ...      ->      for i.o in 3: for i.i in 4: if i.o*4 + i.i < 10: ...
        """
        position = self._position(axis, "split")
        if (factor is None) == (nparts is None):
            raise VdlaError(f"split of {axis!r} in {self.name}: give factor or nparts, one of both")
        if (factor or nparts or 0) < 1:
            raise VdlaError(
                f"split of {axis!r} in {self.name}: expected at least 1, got {factor=} {nparts=}"
            )
        size = factor if factor is not None else -(-axis.extent // nparts)  # type: ignore[operator]
        outer = IterVar(Var(axis.name + ".o"), -(-axis.extent // size), axis.kind)
        inner = IterVar(Var(axis.name + ".i"), size, axis.kind)
        self.leaves[position : position + 1] = [outer, inner]
        self.relations.append(Split(axis, outer, inner, factor, nparts))
        return outer, inner

    def fuse(self, outer: IterVar, inner: IterVar) -> IterVar:
        """Make one loop of two that are nested directly.

        ::

            for i in 3: for j in 4: ...      ->      for i.j.f in 12: ...  (i = f // 4, j = f % 4)
        """
        position = self._position(outer, "fuse")
        if self._position(inner, "fuse") != position + 1:
            raise VdlaError(
                f"fuse in {self.name}: {inner!r} must be directly inside {outer!r}; reorder first"
            )
        if outer.kind != inner.kind:
            raise VdlaError(
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
            raise VdlaError(f"reorder in {self.name}: a loop is named twice in {axes!r}")
        for place, axis in zip(places, axes, strict=True):
            self.leaves[place] = axis

    def tile(
        self, x: IterVar, y: IterVar, x_factor: int, y_factor: int
    ) -> tuple[IterVar, IterVar, IterVar, IterVar]:
        """Split two loops and put the outer ones outside.

        ::

            for x: for y: ...      ->      for x.o: for y.o: for x.i: for y.i: ...
        """
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

    def vectorize(self, axis: IterVar) -> None:
        """Execute a loop as one vector operation: ``for i in 4: y[i] = f(x[i])`` -> ``y[0:4] =
        f(x[0:4])``. Innermost data loops only.
        """
        if axis.kind == "reduce":
            raise VdlaError(
                f"vectorize in {self.name}: {axis!r} is a reduction; split or rfactor it"
            )
        self._set_kind(axis, "vectorized")

    def parallel(self, axis: IterVar) -> None:
        """Let iterations of a data loop run at the same time: ``for i`` -> ``parallel for i``."""
        if axis.kind == "reduce":
            raise VdlaError(
                f"parallel in {self.name}: {axis!r} is a reduction; iterations are not independent"
            )
        self._set_kind(axis, "parallel")

    def vthread(self, axis: IterVar) -> None:
        """Make a data loop's iterations virtual threads: each gets buffers of its own for what is
        computed inside, and their statements are interleaved into one stream, so that one thread's
        copies hide behind another's arithmetic.

        ::

            for v in 2: load(v); gemm(v)      ->      load(0); load(1); gemm(0); gemm(1)
        """
        if axis.kind == "reduce":
            raise VdlaError(
                f"vthread in {self.name}: {axis!r} is a reduction; iterations are not independent"
            )
        self._set_kind(axis, "vthread")

    def pragma(self, axis: IterVar, key: str, value: Any = True) -> None:
        """Attach a note for a back end to a loop."""
        self._position(axis, "pragma")
        self.pragmas.setdefault(axis, {})[key] = value

    def tensorize(self, axis: IterVar, intrinsic: Any) -> None:
        """Replace a loop and all inside it by a tensor intrinsic, after matching them against its
        declared behaviour.

        ::

            for oc: for ic: acc[oc] += inp[ic]*wgt[oc,ic]      ->      gemm(acc, inp, wgt)
        """
        self._position(axis, "tensorize")
        self.intrinsics[axis] = intrinsic

    # ---- placement ----

    def compute_at(self, consumer: Stage, axis: IterVar) -> None:
        """Compute what a consumer needs inside its loop ``axis``, into a buffer of just that size.

        ::

            for i: p[i] = ...                  for i.o: for i.i in 4: p[i.i] = ...
            for i: c[i] = f(p[i])      ->               for i.i in 4: c[i.o*4+i.i] = f(p[i.i])
        """
        consumer._position(axis, f"compute_at of {self.name}")
        if self.tensor.body is None:
            raise VdlaError(f"compute_at: {self.name} is a placeholder; nothing computes it")
        if consumer is self:
            raise VdlaError(f"compute_at: {self.name} cannot be computed inside itself")
        self.attach, self.inlined = (consumer, axis), False

    def double_buffer(self) -> None:
        """Let iterations of the loop that the tensor is computed at alternate between two buffers,
        so that the next one is filled while this one is read.

        ::

            for i: b = ...; use(b)      ->      for i: b[i % 2] = ...; use(b[i % 2])
        """
        if self.attach is None:
            raise VdlaError(f"double_buffer of {self.name}: compute it at a loop first")
        self.double_buffered = True

    def compute_root(self) -> None:
        """Compute the whole tensor before its consumers (the default)."""
        self.attach, self.inlined = None, False

    def compute_inline(self) -> None:
        """Put the defining expression in place of every use: ``p[i]=f(i); c[i]=g(p[i])`` ->
        ``c[i]=g(f(i))``.
        """
        if self.tensor.body is None or self.tensor.reduce_axes:
            raise VdlaError(f"compute_inline: {self.name} is a placeholder or a reduction")
        self.inlined = True

    def set_scope(self, scope: str) -> None:
        """Keep the tensor in a memory of the target."""
        if scope not in SCOPES:
            raise VdlaError(
                f"set_scope of {self.name}: expected one of {', '.join(SCOPES)}, got {scope!r}"
            )
        self.scope = scope


@dataclass(eq=False)
class Schedule:
    """Stages in dependency order (producers first) of the computation of ``outputs``."""

    outputs: list[Tensor]
    stages: list[Stage]

    def __getitem__(self, tensor: Tensor) -> Stage:
        for stage in self.stages:
            if stage.tensor is tensor:
                return stage
        raise VdlaError(
            f"schedule: tensor {tensor.name} has no stage here "
            f"(stages: {[s.name for s in self.stages]}); after "
            "cache_read or cache_write use the tensors that stages hold now"
        )

    def cache_read(self, tensor: Tensor, scope: str, readers: list[Tensor]) -> Tensor:
        """Copy a tensor into a memory scope and let the readers read the copy.

        ::

            c[i] = f(x[i])      ->      x.scope[i] = x[i];  c[i] = f(x.scope[i])
        """
        indices = tuple(IterVar(Var(f"ax{i}"), n) for i, n in enumerate(tensor.shape))
        copy = Tensor(
            f"{tensor.name}.{scope}", tensor.shape, tensor.dtype, indices,
            Read(tensor, tuple(axis.var for axis in indices)),
        )  # fmt: skip
        self._replace_reads({tensor: copy}, [self[reader] for reader in readers])
        first = min(self.stages.index(self[r]) for r in readers)
        stage = Stage(copy)
        stage.set_scope(scope)
        self.stages.insert(first, stage)
        return copy

    def cache_write(self, tensor: Tensor, scope: str) -> Tensor:
        """Compute into a memory scope and copy the result out; schedule the returned tensor's loops
        for the computation.

        ::

            y[i] = f(i)      ->      y.scope[i] = f(i);  y[i] = y.scope[i]
        """
        stage = self[tensor]
        if stage.relations or stage.attach:
            raise VdlaError(
                f"cache_write of {tensor.name}: apply it before other primitives of the stage"
            )
        axes = tuple(IterVar(Var(a.name), a.extent) for a in tensor.axes)
        assert stage.body is not None
        renamed = {a.var: b.var for a, b in zip(tensor.axes, axes, strict=True)}
        body = substitute(stage.body, renamed)
        local = Tensor(f"{tensor.name}.{scope}", tensor.shape, tensor.dtype, axes, body)
        local_stage = Stage(local)
        local_stage.set_scope(scope)
        position = self.stages.index(stage)
        copy = Stage(tensor, Read(local, tuple(axis.var for axis in tensor.axes)), stage.scope)
        self.stages[position : position + 1] = [local_stage, copy]
        return local

    def _replace_reads(self, mapping: dict[Tensor, Tensor], stages: list[Stage]) -> None:
        def leaf(node: Expr) -> Expr | None:
            if isinstance(node, Read) and node.source in mapping:
                return Read(mapping[node.source], node.indices)
            return None

        for stage in stages:
            if stage.body is None:
                raise VdlaError(f"cache_read: reader {stage.name} is a placeholder")
            stage.body = rewrite(stage.body, leaf)


def create_schedule(outputs: Tensor | list[Tensor]) -> Schedule:
    """The default schedule: every tensor computed as a whole, one loop per axis.

    Rewriting primitives change stages, never tensors: one description can have many schedules.
    """
    outputs = outputs if isinstance(outputs, list) else [outputs]
    ordered: list[Tensor] = []

    def visit(tensor: Tensor) -> None:
        if tensor not in ordered:
            for source in tensor.inputs:
                visit(source)
            ordered.append(tensor)

    for output in outputs:
        visit(output)
    return Schedule(outputs, [Stage(tensor) for tensor in ordered])
