"""Weights have as many buffers as there is room for, so that they are loaded far ahead.

::

    for t in 12:                               allocate w[6, n]
      allocate w[n]                            for t in 12:
      load(w); gemm(w)                  ->       load(w[t % 6]); gemm(w[t % 6])

Weights depend on no results. While the tensor core waits for what it multiplies them by, the bus
can bring the weights of several tiles, and it has less to bring afterwards.
"""

from __future__ import annotations

from dataclasses import replace
from fractions import Fraction
from math import prod

from ....te.expr import Const, Expr
from ....tir.ir import Allocate, For, If, PrimFunc, Seq, Stmt, index_copies, seq
from ..machine import Machine
from ..scopes import memory_scopes


def weights_ahead(func: PrimFunc, machine: Machine, eighths: int | Fraction) -> PrimFunc:
    """Give buffers of weights the copies that so many ``eighths`` of ``wgt`` have room for, where
    these are more than they have without."""
    return replace(func, body=_Copies(machine, eighths).visit(func.body, ()))


class _Copies:
    def __init__(self, machine: Machine, eighths: int | Fraction):
        self.scope = memory_scopes(machine.params)["wgt"]
        self.room = int(machine.params.wgt_depth * eighths // 8)

    def visit(self, stmt: Stmt, loops: tuple[For, ...]) -> Stmt:
        """A statement inside of ``loops``."""
        match stmt:
            case For():
                return replace(stmt, body=self.visit(stmt.body, (*loops, stmt)))
            case If():
                return replace(stmt, body=self.visit(stmt.body, loops))
            case Seq(stmts):
                return seq([self.visit(s, loops) for s in stmts])
            case Allocate(buffer, body, double):
                body = self.visit(body, loops)
                threads = prod(loop.extent for loop in loops if loop.kind == "vthread")
                turns = [loop for loop in loops if loop.kind != "vthread"]
                if buffer.scope != "wgt" or not turns:
                    return replace(stmt, body=body)
                room = self.room // (threads * self.scope.entries_of(buffer))
                count = min(room, prod(loop.extent for loop in turns))
                if count <= (2 if double else 1):
                    return replace(stmt, body=body)
                copies = replace(buffer, shape=(count, *buffer.shape))
                return Allocate(copies, index_copies(body, {buffer: copies}, _turn(turns) % count))
        return stmt


def _turn(loops: list[For]) -> Expr:
    """The number of the iteration of these loops."""
    turn: Expr = Const(0)
    for loop in loops:
        turn = turn * loop.extent + loop.var
    return turn
