"""Double buffers: iterations of a loop alternate between two copies of a buffer, so that one is
filled while the other is read.

::

    for i in n:                            for i in n:
      allocate b[k] (double)       ->        allocate b[2, k]
      load(b); use(b)                        load(b[i % 2]); use(b[i % 2])
"""

from __future__ import annotations

from dataclasses import replace

from ...te.expr import Var
from ..ir import Allocate, For, PrimFunc, Stmt, index_copies, map_parts


def double_buffer(func: PrimFunc) -> PrimFunc:
    """Give every buffer that is marked ``double`` its two copies; without a loop around it, one
    copy is enough."""
    return replace(func, body=_visit(func.body, None))


def _visit(stmt: Stmt, loop: Var | None) -> Stmt:
    match stmt:
        case For():
            return replace(stmt, body=_visit(stmt.body, stmt.var))
        case Allocate(buffer, body, double):
            body = _visit(body, loop)
            if not double or loop is None:
                return replace(stmt, body=body, double=False)
            pair = replace(buffer, shape=(2, *buffer.shape))
            return Allocate(pair, index_copies(body, {buffer: pair}, loop % 2))
    return map_parts(stmt, lambda part: _visit(part, loop))
