"""Loop programs as readable text."""

from __future__ import annotations

from collections.abc import Mapping

from ..te.expr import Binary, Call, Cast, Const, Expr, Read, Select, Var
from . import ir as T

_PRECEDENCE = {"|": 1, "&": 2, "<": 3, "<=": 3, "==": 3, "<<": 4, ">>": 4, "+": 5, "-": 5,
               "*": 6, "/": 6, "//": 6, "%": 6}  # fmt: skip

_Names = Mapping[Var, str]


def expr_text(expr: Expr, outer: int = 0, names: _Names | None = None) -> str:
    """One expression, in parentheses if it binds weaker than ``outer``; ``names`` replace those of
    variables.
    """
    names = names or {}

    def text(inner: Expr, level: int = 0) -> str:
        return expr_text(inner, level, names)

    match expr:
        case Var(name):
            return names.get(expr, name)
        case Const(value, dtype):
            return str(value) if dtype in ("int32", "bool") else f"{dtype}({value})"
        case Binary("min" | "max", a, b):
            return f"{expr.op}({text(a)}, {text(b)})"
        case Binary("+", a, Const(value, "int32")) if value < 0:
            return text(Binary("-", a, Const(-value), "int32"), outer)
        case Binary(op, a, b):
            level = _PRECEDENCE[op]
            infix = f"{text(a, level)} {op} {text(b, level + 1)}"
            return f"({infix})" if level < outer else infix
        case Select(cond, a, b):
            return f"select({text(cond)}, {text(a)}, {text(b)})"
        case Cast(dtype, a):
            return f"{dtype}({text(a)})"
        case Call(name, args):
            return f"{name}({', '.join(map(text, args))})"
        case Read(source, indices):
            return f"{source.name}[{', '.join(map(text, indices))}]"
    return repr(expr)


def print_func(func: T.PrimFunc) -> str:
    """A whole program. A loop inside another one of the same name gets a number: i, i.1, i.2."""
    params = ", ".join(f"{b.name}: {b.dtype}{list(b.shape)}" for b in func.params)
    return "\n".join([f"func {func.name}({params}):", *_lines(func.body, 1, {})]) + "\n"


def _lines(stmt: T.Stmt, depth: int, names: _Names) -> list[str]:
    pad = "  " * depth

    def text(expr: Expr) -> str:
        return expr_text(expr, names=names)

    def element(name: str, indices: tuple[Expr, ...]) -> str:
        return f"{name}[{', '.join(map(text, indices))}]"

    match stmt:
        case T.Seq(stmts):
            return [line for s in stmts for line in _lines(s, depth, names)]
        case T.For():
            name = _fresh(stmt.var.name, names)
            notes = "".join(f" @{key}={value}" for key, value in stmt.pragmas)
            kind = "" if stmt.kind == "serial" else stmt.kind + " "
            head = f"{pad}{kind}for {name} in {stmt.extent}:{notes}"
            return [head, *_lines(stmt.body, depth + 1, {**names, stmt.var: name})]
        case T.If():
            return [f"{pad}if {text(stmt.cond)}:", *_lines(stmt.body, depth + 1, names)]
        case T.Allocate():
            b = stmt.buffer
            double = ", double" if stmt.double else ""
            double += f", {stmt.stages} stages" if stmt.stages > 1 else ""
            strides = f", strides {list(b.strides)}" if b.alignments else ""
            strides += ", swizzled" if b.swizzled else ""
            head = f"{pad}allocate {b.name}: {b.dtype}{list(b.shape)} in {b.scope}{strides}{double}"
            return [head, *_lines(stmt.body, depth, names)]
        case T.Store():
            return [f"{pad}{element(stmt.buffer.name, stmt.indices)} = {text(stmt.value)}"]
        case T.Launch():
            bound = ", ".join(f"{t.axis} in {t.extent}" for t in stmt.threads) or "one thread"
            axes = {t.var: t.axis for t in stmt.threads}
            head = f"{pad}launch {stmt.name} with {bound}:"
            return [head, *_lines(stmt.body, depth + 1, {**names, **axes})]
        case T.Mark():
            but = getattr(stmt, "but", 0)
            return [f"{pad}{stmt.words}" + (f" but {but}" if but else "")]
        case T.SignalsReady(buffer):
            return [f"{pad}signals {buffer.name} ready"]
        case T.SignalExpects(buffer, slot, size_bytes):
            return [f"{pad}{element(buffer.name, (slot,))} expects {size_bytes} bytes"]
        case T.SignalArrived(buffer, slot, parity):
            at = element(buffer.name, (slot,))
            return [f"{pad}{at} arrived, phase {text(parity)}"]
        case T.Prefetch():
            return [f"{pad}prefetch {element(stmt.buffer.name, stmt.indices)}"]
        case T.TensorCall():
            regions: tuple[T.Region, ...] = (stmt.output, *stmt.inputs)
            operands = ", ".join(element(r.buffer.name, r.start) for r in regions)
            return [f"{pad}{stmt.intrinsic.name}.{stmt.variant}({operands})"]
    return [f"{pad}{stmt!r}"]


def _fresh(name: str, names: _Names) -> str:
    taken, number, fresh = set(names.values()), 0, name
    while fresh in taken:
        number += 1
        fresh = f"{name}.{number}"
    return fresh
