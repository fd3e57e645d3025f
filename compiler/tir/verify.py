"""The verifier of loop programs: what every pass may rely on and must preserve.

Every variable is bound by one loop, buffers exist where they are used, dtypes agree, loop kinds
are known, and every access is inside its buffer, by the loops' extents and the guards around it.
``tir/scopes.py`` checks whether a target has the memories and thread axes that a program names.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field, replace

from ..te import expr as E
from ..te.affine import Affine, affine, from_affine, interval, is_of_loops, prove, simplify_index
from ..te.errors import ScheduleError
from ..te.stage import LOOP_KINDS, is_thread_axis
from . import ir as T
from .printer import expr_text

#: The memory where parameters are, which all threads share.
MAIN_MEMORY = "global"
#: Operators that take integers only.
_INTEGER_OPS = ("//", "%", ">>", "<<")


def verify(func: T.PrimFunc) -> None:
    """Return if the program is sound.

    Raises
    ------
    ScheduleError
        Naming the function, the loops around the fault, the buffer and what is wrong.
    """
    verifier = _Verifier()
    for buffer in func.params:
        verifier.check_buffer(buffer, _Place(func.name))
    verifier.visit(func.body, _Place(func.name, buffers=frozenset(func.params)))


@dataclass(frozen=True)
class _Place:
    """What is known at a statement: loops around it, ranges of variables, conditions that hold.
    ``threads`` are the thread axes of loops around it, with the buffers that exist outside each.
    """

    name: str
    loops: tuple[str, ...] = ()
    ranges: dict[E.Expr, tuple[int, int]] = field(default_factory=dict)
    facts: tuple[E.Expr, ...] = ()
    threads: dict[str, frozenset[T.Buffer]] = field(default_factory=dict)
    buffers: frozenset[T.Buffer] = frozenset()
    in_launch: bool = False

    def error(self, what: str) -> ScheduleError:
        where = f" in loops {' > '.join(self.loops)}" if self.loops else ""
        return ScheduleError(f"{self.name}{where}: {what}")

    def knowing(self, cond: E.Expr) -> _Place:
        """The place inside a guard; a conjunction is several facts."""
        return replace(self, facts=(*self.facts, *E.conjuncts(cond)))

    def holds(self, cond: E.Expr) -> bool:
        """Whether a comparison is certain here, by the ranges and the guards."""
        if prove(cond, self.ranges):
            return True
        if not (isinstance(cond, E.Binary) and cond.op in ("<", "<=")):
            return False
        bounds = self.bounds(_slack(cond))
        return bounds is not None and bounds[0] >= 0

    def bounds(self, expr: E.Expr) -> tuple[int, int] | None:
        """Smallest and largest value, by ranges and, at each end, up to two guards."""
        ranges = dict(self.ranges)
        for node in E.walk(simplify_index(expr)):
            match node:
                case E.Binary("//", inner, E.Const(d)) if d > 0:
                    found = self.bounds(inner)
                    if found is not None:
                        ranges[node] = found[0] // d, found[1] // d
        known = [_slack(f) for f in self.facts if isinstance(f, E.Binary) and f.op in ("<", "<=")]
        lows = list(_least(expr, known, ranges))
        highs = [-low for low in _least(E.binary("-", 0, expr), known, ranges)]
        for low, high in self._bounds_undivided(expr):
            lows.append(low)
            highs.append(high)
        return (max(lows), min(highs)) if lows and highs else None

    def _bounds_undivided(self, expr: E.Expr) -> Iterator[tuple[int, int]]:
        """Bounds by guards on a dividend, for each quotient of the expression.

        With the guard ``4 * i + j < 6``, ``2 * i + j // 2`` is at most 2, because it equals
        ``(4 * i + j) // 2``. :func:`affine` takes ``2 * i`` out of this quotient; here it goes back
        in, so that the guard applies to the whole dividend.
        """
        form = affine(expr)
        for quotient, factor in form.terms:
            match quotient:
                case E.Binary("//", inner, E.Const(divisor)) if divisor > 0 and is_of_loops(
                    quotient
                ):
                    beside = tuple(
                        (term, coefficient // factor * divisor)
                        for term, coefficient in form.terms
                        if term != quotient and coefficient % factor == 0 and is_of_loops(term)
                    )
                    if not beside:
                        continue
                    inside = {quotient, *(term for term, _ in beside)}
                    rest = tuple(pair for pair in form.terms if pair[0] not in inside)
                    dividend = self.bounds(inner + from_affine(Affine(0, beside)))
                    added = self.bounds(from_affine(Affine(form.constant, rest)))
                    if dividend and added:
                        ends = sorted(factor * (end // divisor) for end in dividend)
                        yield ends[0] + added[0], ends[1] + added[1]


def _least(
    expr: E.Expr, known: list[E.Expr], ranges: dict[E.Expr, tuple[int, int]]
) -> Iterator[int]:
    """Numbers that an integer is never less than, by ranges and by ``known`` expressions, which are
    never negative. These may be of a multiple: with the guard ``4 * i + j < 10``, ``2 * i`` is at
    most 4, because twice that is at most 9.
    """
    for scale in sorted(_scales(expr, known)):
        for weaker in _weakened(expr * scale, known):
            if (found := interval(weaker, ranges)) is not None:
                yield -(-found[0] // scale)


def _scales(expr: E.Expr, known: list[E.Expr]) -> set[int]:
    """1, and multiples of an expression that have a variable as often as a known one has it."""
    mine = affine(expr).coefficients
    pairs = [(c, mine[t]) for e in known for t, c in affine(e).coefficients.items() if t in mine]
    return {1, *(its // own for its, own in pairs if its % own == 0 and its // own > 1)}


def _weakened(expr: E.Expr, known: list[E.Expr], depth: int = 2) -> Iterator[E.Expr]:
    """Expressions that are never greater than ``expr``: less multiples of up to ``depth`` of the
    ``known`` expressions, which are never negative, such that each cancels a variable."""
    yield expr
    if depth == 0:
        return
    mine = affine(expr).coefficients
    for position, slack in enumerate(known):
        its = affine(slack).coefficients
        multiples = {mine[t] // c for t, c in its.items() if t in mine and mine[t] % c == 0}
        for multiple in sorted(m for m in multiples if m > 0):
            yield from _weakened(expr - slack * multiple, known[position + 1 :], depth - 1)


def _slack(cond: E.Binary) -> E.Expr:
    """An index expression that is not negative exactly where ``a < b`` or ``a <= b`` holds."""
    return E.binary("-", cond.b, E.binary("+", cond.a, 1 if cond.op == "<" else 0))


class _Verifier:
    def __init__(self) -> None:
        self.bound: set[E.Var] = set()

    def visit(self, stmt: T.Stmt, place: _Place) -> None:
        match stmt:
            case T.Seq(stmts):
                for inner in stmts:
                    self.visit(inner, place)
            case T.For():
                self.visit(stmt.body, self._enter(stmt, place))
            case T.If(cond, body):
                self.expect(cond, "bool", "a guard", place)
                if prove(cond, place.ranges) is not False:
                    self.visit(body, place.knowing(cond))
            case T.Allocate(buffer=buffer, body=body):
                self.check_buffer(buffer, place)
                if buffer in place.buffers:
                    raise place.error(f"buffer {buffer.name} exists already where it is allocated")
                self.visit(body, replace(place, buffers=place.buffers | {buffer}))
            case T.Store(buffer, indices, value):
                self.check_access(buffer, indices, (1,) * len(indices), place)
                self.expect(value, buffer.dtype, f"the value stored to {buffer.name}", place)
            case T.TensorCall():
                self._call(stmt, place)
            case T.Prefetch(buffer, indices):
                self.check_indices(buffer, indices, place)
            case T.Launch():
                self.visit(stmt.body, self._launched(stmt, place))
            case T.Barrier() if not place.in_launch:
                raise place.error("a barrier outside of any launch")
            case T.SignalsReady() if place.in_launch:
                pass
            case T.SignalExpects(buffer, slot) | T.SignalArrived(buffer, slot) if place.in_launch:
                self.check_indices(buffer, (slot,), place)
            case T.Mark():
                if not place.in_launch:
                    raise place.error("asynchronous copies outside of any launch")
            case _:
                raise place.error(f"statement expected, got {stmt!r}")

    def _enter(self, loop: T.For, place: _Place) -> _Place:
        name = loop.var.name
        if loop.var in self.bound:
            raise place.error(f"variable {name} is bound by two loops; every loop needs its own")
        if type(loop.extent) is not int or loop.extent < 1:
            raise place.error(f"loop {name} expects an extent of at least 1, got {loop.extent!r}")
        if loop.kind not in LOOP_KINDS and not is_thread_axis(loop.kind):
            raise place.error(
                f"loop {name} is of kind {loop.kind!r}, expected {', '.join(LOOP_KINDS)} or a "
                "thread axis such as blockIdx.x"
            )
        if loop.kind == "vectorized":
            for inner in T.walk_stmt(loop.body):
                if isinstance(inner, T.For | T.TensorCall):
                    what = inner.var if isinstance(inner, T.For) else inner.intrinsic
                    raise place.error(
                        f"vectorized loop {name} holds loop {what.name}; vectorize innermost loops"
                    )
        if is_thread_axis(loop.kind) and place.in_launch:
            raise place.error(f"loop {name} is bound to {loop.kind} inside a launch")
        if loop.kind in place.threads and not self._cooperates(loop, place):
            raise place.error(f"loop {name} is bound to {loop.kind}, as a loop around it is")
        self.bound.add(loop.var)
        ranges = place.ranges | {loop.var: (0, loop.extent - 1)}
        threads = place.threads
        if is_thread_axis(loop.kind) and loop.kind not in threads:
            threads = threads | {loop.kind: place.buffers}
        return replace(place, loops=(*place.loops, name), ranges=ranges, threads=threads)

    def _cooperates(self, loop: T.For, place: _Place) -> bool:
        """Whether a loop bound to the same axis as a loop around it fills buffers that each
        iteration of the outer loop has for itself, in a memory that threads may share.
        """
        stored = T.stored_buffers(loop.body)
        outside = place.threads[loop.kind]
        return all(b.scope != MAIN_MEMORY and b not in outside for b in stored)

    def _launched(self, launch: T.Launch, place: _Place) -> _Place:
        if place.in_launch or place.loops:
            raise place.error(f"launch {launch.name} is inside a loop or another launch")
        for thread in launch.threads:
            if thread.var in self.bound:
                raise place.error(f"variable {thread.var.name} is bound twice")
            self.bound.add(thread.var)
        ranges: dict[E.Expr, tuple[int, int]] = {t.var: (0, t.extent - 1) for t in launch.threads}
        return replace(place, loops=(launch.name,), ranges=ranges, in_launch=True)

    def _call(self, call: T.TensorCall, place: _Place) -> None:
        operands, behaviour = call.intrinsic.operands, call.intrinsic.behaviour
        reduces = isinstance(behaviour.body, E.Reduce)
        variants = ("init", "update") if reduces else ("full",)
        name = f"{call.intrinsic.name}.{call.variant}"
        if call.variant not in variants:
            raise place.error(f"{name}: expected variant {' or '.join(variants)}")
        wanted = () if call.variant == "init" else operands
        if len(call.inputs) != len(wanted):
            raise place.error(f"{name}: expected {len(wanted)} inputs, got {len(call.inputs)}")
        pairs = [(call.output, behaviour), *zip(call.inputs, wanted, strict=True)]
        for region, tensor in pairs:
            if region.buffer.dtype != tensor.dtype:
                raise place.error(
                    f"{name}: operand {tensor.name} is {tensor.dtype}, "
                    f"{region.buffer.name} is {region.buffer.dtype}"
                )
            if not call.intrinsic.zeros_outside or region.buffer.scope != MAIN_MEMORY:
                self._region(region, tensor.shape, place)

    def _region(self, region: T.Region, shape: tuple[int, ...], place: _Place) -> None:
        lead = len(region.start) - len(shape)
        if lead < 0:
            raise place.error(f"{region.buffer.name} has fewer dimensions than a box {shape}")
        self.check_access(region.buffer, region.start, (1,) * lead + shape, place)

    # ---- buffers and accesses ----

    def check_buffer(self, buffer: T.Buffer, place: _Place) -> None:
        """Known dtype, a memory with a name, positive extents."""
        if buffer.dtype not in E.DTYPES:
            raise place.error(f"buffer {buffer.name} is of unknown dtype {buffer.dtype!r}")
        if not buffer.scope.isidentifier():
            raise place.error(
                f"buffer {buffer.name} is in {buffer.scope!r}, expected the name of a memory"
            )
        if not buffer.shape or any(type(n) is not int or n < 1 for n in buffer.shape):
            raise place.error(f"buffer {buffer.name} has no positive extents: {buffer.shape!r}")

    def check_access(
        self, buffer: T.Buffer, start: tuple[E.Expr, ...], box: tuple[int, ...], place: _Place
    ) -> None:
        """A box of elements lies inside its buffer, which exists."""
        self.check_indices(buffer, start, place)
        for dim, (index, count, extent) in enumerate(zip(start, box, buffer.shape, strict=True)):
            bounds = interval(index, place.ranges)
            if bounds and 0 <= bounds[0] and bounds[1] <= extent - count:
                continue  # whatever guards say
            if not (place.holds(index >= 0) and place.holds(index <= extent - count)):
                what = "" if count == 1 else f" .. {count - 1} more"
                raise place.error(
                    f"index {dim} of {buffer.name}, {expr_text(index)}{what}, cannot be shown to "
                    f"lie in 0 .. {extent - 1}"
                )

    def check_indices(self, buffer: T.Buffer, indices: tuple[E.Expr, ...], place: _Place) -> None:
        """The buffer exists, and has one sound integer index for each dimension."""
        if buffer not in place.buffers:
            raise place.error(f"buffer {buffer.name} is used outside its allocation")
        if len(indices) != len(buffer.shape):
            raise place.error(
                f"{buffer.name} has {len(buffer.shape)} dimensions, got {len(indices)} indices"
            )
        for dim, index in enumerate(indices):
            self.check(index, place)
            if index.dtype not in E.INT_DTYPES:
                raise place.error(f"index {dim} of {buffer.name} is {index.dtype}, not an integer")

    # ---- expressions ----

    def expect(self, expr: E.Expr, dtype: str, what: str, place: _Place) -> None:
        """The expression is sound and of this dtype."""
        self.check(expr, place)
        if expr.dtype != dtype:
            raise place.error(f"{what} is {expr.dtype}, expected {dtype}: {expr_text(expr)}")

    def check(self, expr: E.Expr, place: _Place) -> None:
        """Variables are bound, reads inside their buffers, dtypes agree."""
        match expr:
            case E.Var():
                if expr not in place.ranges:
                    raise place.error(f"variable {expr.name} is used outside its loop")
                return
            case E.Read(source, indices):
                if not isinstance(source, T.Buffer):
                    raise place.error(f"{source!r} is read, which is no buffer")
                self.check_access(source, indices, (1,) * len(indices), place)
                return
            case E.Select(cond, a, b):
                self.expect(cond, "bool", "a condition", place)
                if prove(cond, place.ranges) is not False:
                    self.check(a, place.knowing(cond))
                self.expect(b, a.dtype, "the other side of a select", place)
                return
            case E.Binary("&", a, b) if expr.dtype == "bool":
                self.expect(a, "bool", "a condition", place)
                self.expect(b, "bool", "a condition", place.knowing(a))
                return
        for child in E.children(expr):
            self.check(child, place)
        self._check_dtype(expr, place)

    def _check_dtype(self, expr: E.Expr, place: _Place) -> None:
        match expr:
            case E.Binary(op, a, b):
                compares = op in ("<", "<=", "==")
                if a.dtype in E.HALF_DTYPES:
                    raise place.error(
                        f"{op} of {a.dtype}, which is only stored; convert to float32 first: "
                        f"{expr_text(expr)}"
                    )
                if a.dtype != b.dtype or expr.dtype != ("bool" if compares else a.dtype):
                    raise place.error(f"dtypes of {op} do not agree: {expr_text(expr)}")
                if op in _INTEGER_OPS and a.dtype not in E.INT_DTYPES:
                    raise place.error(f"{op} of {a.dtype}: {expr_text(expr)}")
            case E.Cast(dtype) | E.Const(_, dtype) if dtype not in E.DTYPES:
                raise place.error(f"unknown dtype {dtype!r}: {expr!r}")
            case E.Cast(dtype, a) if "float32" not in (dtype, a.dtype) and (
                {dtype, a.dtype} & {*E.HALF_DTYPES}
            ):
                raise place.error(
                    f"{a.dtype} is converted to {dtype}, expected by way of float32: "
                    f"{expr_text(expr)}"
                )
            case E.Call(name, args, dtype):
                found = tuple(a.dtype for a in args)
                if name not in E.INTRINSICS or (found, dtype) not in E.INTRINSICS[name]:
                    raise place.error(f"no function {name}({', '.join(found)}) -> {dtype}")
            case E.Const() | E.Cast():
                pass
            case _:
                raise place.error(f"expression expected, got {expr!r}")
