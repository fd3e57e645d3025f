"""Vectorized loops as vector values: one instruction per operator where a loop's shape allows it.

A loop fits when its extent is that of a vector, and each statement in it stores elements that lie
side by side, computed from elements that lie side by side or are the same for all iterations.
"""

from __future__ import annotations

from functools import cache
from typing import Any

from llvmlite import ir

from ...te import expr as E
from ...te.affine import affine
from ...tir.ir import Buffer, For, Seq, Stmt, Store
from ..common.float_functions import FUNCTIONS

#: Objects of llvmlite, whose type annotations do not agree with its code.
Value = Any

#: Extents of vector loops: LLVM splits what is wider than the processor's registers.
VECTOR_EXTENTS = (4, 8, 16, 32)
_OPERATORS = ("+", "-", "*", "/", "min", "max", "&", "|")
_DTYPES = (*E.FLOAT_DTYPES, *E.INT_DTYPES)
#: Functions that are instructions of common processors.
LLVM_FUNCTIONS = {
    "round": "rint", "floor": "floor", "ceil": "ceil", "trunc": "trunc", "sqrt": "sqrt",
}  # fmt: skip


def is_ours(call: E.Call) -> bool:
    """Whether a call is of a function of ``targets/common/float_functions.py``."""
    return call.name in FUNCTIONS and call.dtype == "float32"


def calls_library(expr: E.Expr) -> bool:
    """Whether an expression calls the C library."""
    return any(
        isinstance(node, E.Call)
        and node.name in ("pow", *E.FLOAT_FUNCTIONS)
        and node.name not in LLVM_FUNCTIONS
        and not is_ours(node)
        for node in E.walk(expr)
    )


def find_stores(loop: For) -> tuple[Store, ...] | None:
    """The stores of a vectorized loop if vectors can compute all of them, in order."""
    body: tuple[Stmt, ...] = loop.body.stmts if isinstance(loop.body, Seq) else (loop.body,)
    stores = tuple(stmt for stmt in body if isinstance(stmt, Store))
    if loop.extent not in VECTOR_EXTENTS or len(stores) < len(body):
        return None
    written = {store.buffer for store in stores}
    fits = all(_fits_store(store, loop.var, len(stores) > 1, written) for store in stores)
    return stores if fits else None


def _fits_store(store: Store, var: E.Var, several: bool, written: set) -> bool:
    if store.buffer.dtype not in _DTYPES or _step(store.indices, var) != 1:
        return False
    for node in E.walk(store.value):
        if not isinstance(node, E.Read) or node.source not in written:
            continue
        if several or node.indices != store.indices:
            return False  # what one iteration stores, another may read
    return fits_vectors(store.value, var)


def fits_vectors(expr: E.Expr, var: E.Var) -> bool:
    """Whether vectors can compute an expression for all values of a variable at once."""
    if expr.dtype not in _DTYPES:
        return False
    if is_invariant(expr, var):
        return True
    match expr:
        case E.Read(_, indices):
            return _step(indices, var) == 1
        case E.Binary(op, a, b):
            return op in _OPERATORS and fits_vectors(a, var) and fits_vectors(b, var)
        case E.Cast(_, a):
            return fits_vectors(a, var)
        case E.Call(name, args) if name in LLVM_FUNCTIONS or is_ours(expr):
            return all(fits_vectors(arg, var) for arg in args)
        case E.Call(name, args) if name in ("requantize", "rescale", "scaled_down", "scaled_floor"):
            return all(fits_vectors(arg, var) for arg in args)
        case E.Call("popcount", args):
            return all(fits_vectors(arg, var) for arg in args)
        case E.Select(cond, a, b):
            return is_invariant(cond, var) and fits_vectors(a, var) and fits_vectors(b, var)
    return False


def is_invariant(expr: E.Expr, var: E.Var) -> bool:
    """Whether an expression has one value for all iterations."""
    return not any(node is var for node in E.walk(expr))


def _step(indices: tuple[E.Expr, ...], var: E.Var) -> int | None:
    """By how many elements an access moves from one iteration to the next; None if that is not a
    constant step along the last dimension."""
    *outer, last = indices
    form = affine(last)
    opaque = [term for term, _ in form.terms if term is not var]
    if any(not is_invariant(expr, var) for expr in (*outer, *opaque)):
        return None
    return form.coefficients.get(var, 0)


def split_offset(
    buffer: Buffer, indices: tuple[E.Expr, ...], lane: E.Var | None
) -> tuple[int, dict[E.Expr, int]]:
    """Where an element lies in its buffer, in elements: a constant, and terms with coefficients.
    For a vector it is the place of the first lane."""
    constant, terms = 0, dict[E.Expr, int]()
    for index, stride in zip(indices, buffer.strides, strict=True):
        form = affine(index)
        constant += stride * form.constant
        for term, coefficient in form.terms:
            if term is not lane:
                terms[term] = terms.get(term, 0) + stride * coefficient
    return constant, terms


def splat(builder: ir.IRBuilder, scalar, lanes: int):
    """A vector of one value."""
    undefined, places = _splat_operands(scalar.type, lanes)
    first = builder.insert_element(undefined, scalar, ir.IntType(32)(0))
    return builder.shuffle_vector(first, undefined, places)


@cache
def _splat_operands(kind: ir.Type, lanes: int) -> tuple[ir.Constant, ir.Constant]:
    """An undefined vector, and indices that all select the first element. They are cached because
    each object builds its own text, which is long."""
    undefined = ir.Constant(ir.VectorType(kind, lanes), ir.Undefined)
    return undefined, ir.Constant(ir.VectorType(ir.IntType(32), lanes), [0] * lanes)


def add_products(builder: ir.IRBuilder, sums, x, w):
    """Add the products of four uint8 in ``x`` and four int8 in ``w`` to each lane of ``sums``, of
    16."""
    return call_named(builder, "llvm.x86.avx512.vpdpbusd.512", sums.type, sums, x, w)


def call_named(builder: ir.IRBuilder, name: str, result: ir.Type, *args: Value) -> Value:
    """Call a function by its name, which is declared where the module does not have it."""
    module = builder.module
    known = module.globals.get(name)
    kind = ir.FunctionType(result, [arg.type for arg in args])
    return builder.call(known or ir.Function(module, kind, name), args)


# ---- types ----


def like(value: Value, kind: Value) -> Value:
    """A type, or a vector of it where the value is a vector."""
    lanes = value.type.count if isinstance(value.type, ir.VectorType) else 0
    return ir.VectorType(kind, lanes) if lanes else kind


def suffix_of(kind: Value) -> str:
    """A type as it is written in the names of LLVM's intrinsics, such as ``v16f32``."""
    lanes = f"v{kind.count}" if isinstance(kind, ir.VectorType) else ""
    element = kind.element if lanes else kind
    match element:
        case ir.IntType():
            return f"{lanes}i{element.width}"
        case ir.FloatType():
            return f"{lanes}f32"
    return f"{lanes}f64"


def constant_of(kind: Value, number: float) -> Value:
    """A constant of a type, in every lane."""
    return kind([number] * kind.count) if isinstance(kind, ir.VectorType) else kind(number)
