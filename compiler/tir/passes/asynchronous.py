"""Instructions that go on while their threads do: what must stand before and behind them.

::

                                                    products begin
    for part: wgmma(sums, left, right)      ->      for part: wgmma(sums, left, right)
                                                    products started; products arrived
    barrier                                         stores seen by products; barrier

A row of such instructions is a group of its own. Its thread waits for it at once, or, in a loop
that stores to their operands only behind a barrier that follows them, for the group of the
iteration before: then the tensor cores always have work. It waits for the last group behind the
loop. Such instructions see shared memory another way than threads do, so that what a thread stored
needs a fence before the barrier that they start behind.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

from .. import ir as T


def await_products(func: T.PrimFunc) -> T.PrimFunc:
    """Apply the pass to every launch."""
    return T.map_launches(func, lambda it: _awaited(it.body, False, _stored_by_threads(it)))


def is_product(stmt: T.Stmt) -> bool:
    """Whether a statement is an asynchronous instruction. One that sets sums to zero is none."""
    return (
        isinstance(stmt, T.TensorCall) and stmt.intrinsic.asynchronous and stmt.variant == "update"
    )


def _has_products(stmt: T.Stmt) -> bool:
    return any(map(is_product, T.walk_stmt(stmt)))


def _stored_by_threads(launch: T.Launch) -> bool:
    """Whether threads store to what products read, and not the copy engine alone."""
    read = {r.buffer for s in T.walk_stmt(launch) if isinstance(s, T.TensorCall) and is_product(s)
            for r in s.inputs}  # fmt: skip
    return any(isinstance(s, T.Store) and s.buffer in read for s in T.walk_stmt(launch))


def _awaited(stmt: T.Stmt, follow: bool, fences: bool) -> T.Stmt:
    """The statement with its marks; ``follow``: whether products follow it."""
    if _all_products(stmt):
        return T.seq([T.ProductsBegin(), stmt, T.ProductsStarted(), T.ProductsArrived(0)])
    match stmt:
        case T.For(body=T.Seq(stmts)) if _may_go_on(stmts):
            body = [
                replace(s, but=1) if isinstance(s, T.ProductsArrived) else s
                for part in stmts
                for s in _parts(_awaited(part, True, fences))
            ]
            return T.seq([replace(stmt, body=T.seq(body)), T.ProductsArrived(0)])
        case T.Barrier():
            return T.seq([T.ProxyFence(), stmt]) if follow and fences else stmt
        case T.Seq(stmts):
            after = [follow or any(map(_has_products, stmts[n + 1 :])) for n in range(len(stmts))]
            return T.seq([_awaited(s, f, fences) for s, f in zip(stmts, after, strict=True)])
        case T.For():
            follow = follow or _has_products(stmt)
    return T.map_parts(stmt, lambda part: _awaited(part, follow, fences))


def _may_go_on(stmts: Sequence[T.Stmt]) -> bool:
    """Whether the products of an iteration may go on until those of the next one have started: one
    statement of the loop is all products, a barrier is behind it, and what stores to their operands
    is behind that; nothing else uses their sums."""
    rows = [n for n, s in enumerate(stmts) if _all_products(s)]
    barriers = [n for n, s in enumerate(stmts) if isinstance(s, T.Barrier)]
    if len(rows) != 1 or len(barriers) != 1 or barriers[0] < rows[0]:
        return False
    calls = [s for s in T.walk_stmt(stmts[rows[0]]) if isinstance(s, T.TensorCall)]
    operands = {region.buffer for call in calls for region in call.inputs}
    sums = {call.output.buffer for call in calls}
    others = [s for n, s in enumerate(stmts) if n != rows[0]]
    early = any(operands & {*T.used_buffers(s)} for s in stmts[: barriers[0]] if s in others)
    return not early and not any(sums & {*T.used_buffers(s)} for s in others)


def _parts(stmt: T.Stmt) -> tuple[T.Stmt, ...]:
    return stmt.stmts if isinstance(stmt, T.Seq) else (stmt,)


def _all_products(stmt: T.Stmt) -> bool:
    parts = T.substatements(stmt)
    return is_product(stmt) or (bool(parts) and all(map(_all_products, parts)))
