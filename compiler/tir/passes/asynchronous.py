"""Instructions that go on while their threads do: what must stand before and behind them.

::

                                                    products begin
    for part: wgmma(sums, left, right)      ->      for part: wgmma(sums, left, right)
                                                    products started; products arrived
    barrier                                         stores seen by products; barrier

A row of such instructions is a group of its own, and its thread waits for it at once: the warps of
other groups keep the tensor cores busy meanwhile. Such instructions see shared memory another way
than threads do, so that what a thread stored needs a fence before the barrier that they start
behind.
"""

from __future__ import annotations

from dataclasses import replace

from ..ir import (
    Allocate,
    Barrier,
    For,
    If,
    Launch,
    PrimFunc,
    ProductsArrived,
    ProductsBegin,
    ProductsStarted,
    ProxyFence,
    Seq,
    Stmt,
    Store,
    TensorCall,
    map_stmt,
    seq,
    substatements,
    walk_stmt,
)


def await_products(func: PrimFunc) -> PrimFunc:
    """Apply the pass to every launch with asynchronous instructions."""

    def on_stmt(stmt: Stmt) -> Stmt | None:
        if not isinstance(stmt, Launch) or not _has_products(stmt):
            return None
        return replace(stmt, body=_awaited(stmt.body, False, _stored_by_threads(stmt)))

    return replace(func, body=map_stmt(func.body, lambda expr: expr, on_stmt=on_stmt))


def is_product(stmt: Stmt) -> bool:
    """Whether a statement is an asynchronous instruction. One that sets sums to zero is none."""
    return isinstance(stmt, TensorCall) and stmt.intrinsic.asynchronous and stmt.variant == "update"


def _has_products(stmt: Stmt) -> bool:
    return any(map(is_product, walk_stmt(stmt)))


def _stored_by_threads(launch: Launch) -> bool:
    """Whether threads store to what products read, and not the copy engine alone."""
    read = {r.buffer for s in walk_stmt(launch) if isinstance(s, TensorCall) and is_product(s)
            for r in s.inputs}  # fmt: skip
    return any(isinstance(s, Store) and s.buffer in read for s in walk_stmt(launch))


def _awaited(stmt: Stmt, follow: bool, fences: bool) -> Stmt:
    """The statement with its marks; ``follow``: whether products follow it."""
    if _all_products(stmt):
        return seq([ProductsBegin(), stmt, ProductsStarted(), ProductsArrived(0)])
    match stmt:
        case Barrier():
            return seq([ProxyFence(), stmt]) if follow and fences else stmt
        case Seq(stmts):
            after = [follow or any(map(_has_products, stmts[n + 1 :])) for n in range(len(stmts))]
            return seq([_awaited(s, f, fences) for s, f in zip(stmts, after, strict=True)])
        case For():
            again = follow or _has_products(stmt)
            return replace(stmt, body=_awaited(stmt.body, again, fences))
        case If() | Allocate():
            return replace(stmt, body=_awaited(stmt.body, follow, fences))
    return stmt


def _all_products(stmt: Stmt) -> bool:
    parts = substatements(stmt)
    return is_product(stmt) or (bool(parts) and all(map(_all_products, parts)))
