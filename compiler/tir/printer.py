"""Loop programs as readable text."""

from __future__ import annotations

from ..te.expr import Binary, Call, Cast, Const, Expr, Read, Select, Var
from .ir import Allocate, For, If, PrimFunc, Region, Seq, Stmt, Store, TensorCall

_PRECEDENCE = {"|": 1, "&": 2, "<": 3, "<=": 3, "==": 3, "<<": 4, ">>": 4, "+": 5, "-": 5,
               "*": 6, "/": 6, "//": 6, "%": 6}  # fmt: skip


def expr_text(expr: Expr, outer: int = 0) -> str:
    """One expression."""
    match expr:
        case Var(name):
            return name
        case Const(value, dtype):
            return str(value) if dtype in ("int32", "bool") else f"{dtype}({value})"
        case Binary("min" | "max", a, b):
            return f"{expr.op}({expr_text(a)}, {expr_text(b)})"
        case Binary(op, a, b):
            level = _PRECEDENCE[op]
            text = f"{expr_text(a, level)} {op} {expr_text(b, level + 1)}"
            return f"({text})" if level < outer else text
        case Select(cond, a, b):
            return f"select({expr_text(cond)}, {expr_text(a)}, {expr_text(b)})"
        case Cast(dtype, a):
            return f"{dtype}({expr_text(a)})"
        case Call(name, args):
            return f"{name}({', '.join(map(expr_text, args))})"
        case Read(source, indices):
            return f"{source.name}[{', '.join(map(expr_text, indices))}]"
    return repr(expr)


def print_func(func: PrimFunc) -> str:
    """A whole program; variables of the same name get a number."""
    params = ", ".join(f"{b.name}: {b.dtype}{list(b.shape)}" for b in func.params)
    return "\n".join([f"func {func.name}({params}):", *_lines(func.body, 1)]) + "\n"


def _region(region: Region) -> str:
    return f"{region.buffer.name}[{', '.join(map(expr_text, region.start))}]"


def _lines(stmt: Stmt, depth: int) -> list[str]:
    pad = "  " * depth
    match stmt:
        case Seq(stmts):
            return [line for s in stmts for line in _lines(s, depth)]
        case For():
            notes = "".join(f" @{key}={value}" for key, value in stmt.pragmas)
            kind = "" if stmt.kind == "serial" else stmt.kind + " "
            head = f"{pad}{kind}for {stmt.var.name} in {stmt.extent}:{notes}"
            return [head, *_lines(stmt.body, depth + 1)]
        case If():
            return [f"{pad}if {expr_text(stmt.cond)}:", *_lines(stmt.body, depth + 1)]
        case Allocate():
            b = stmt.buffer
            head = f"{pad}allocate {b.name}: {b.dtype}{list(b.shape)} in {b.scope}"
            return [head, *_lines(stmt.body, depth)]
        case Store():
            target = f"{stmt.buffer.name}[{', '.join(map(expr_text, stmt.indices))}]"
            return [f"{pad}{target} = {expr_text(stmt.value)}"]
        case TensorCall():
            operands = ", ".join(_region(r) for r in (stmt.output, *stmt.inputs))
            return [f"{pad}{stmt.intrinsic.name}.{stmt.variant}({operands})"]
    return [f"{pad}{stmt!r}"]
