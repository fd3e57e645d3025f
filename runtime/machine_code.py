"""Machine code for functions of numbers and arrays (``isa/native.py``).

A function has parameters of the types of ``isa/native.py`` and returns a number or nothing. It may
use numbers, elements of arrays, ``len``, ``shape``, ``min`` and ``max`` of two, ``for`` over a
``range``, ``while``, ``if``, ``break`` and ``continue``; a variable keeps its type. Integers have
64 bits and wrap. An index outside of its array raises IndexError, and so does a negative one.
"""

from __future__ import annotations

import ast
import ctypes
import hashlib
import inspect
import textwrap
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from functools import lru_cache
from pathlib import Path
from struct import Struct
from typing import Any

import llvmlite.binding as llvm
import numpy as np
from llvmlite import ir

from ..isa.native import Native
from .cache import cache_dir, keep_checked, read_checked
from .processor import host

#: Objects of llvmlite; its type annotations do not match its code.
Value = Any

_I1, _I32, _I64, _F64 = ir.IntType(1), ir.IntType(32), ir.IntType(64), ir.DoubleType()
_SCALARS = {"int": _I64, "float": _F64}
#: The letters that ``struct`` has for scalars.
_LETTERS = {_I64: "q", _F64: "d"}
#: Type of the elements and number of dimensions of each type of arrays.
_ARRAYS = {"Ints": (_I64, 1), "Shorts": (_I32, 1), "Table": (_I64, 2), "Floats": (_F64, 1)}
_DTYPES = {_I32: np.dtype(np.int32), _I64: np.dtype(np.int64), _F64: np.dtype(np.float64)}

_COMPARISONS = {
    ast.Lt: "<", ast.LtE: "<=", ast.Gt: ">", ast.GtE: ">=", ast.Eq: "==", ast.NotEq: "!=",
}  # fmt: skip
_INTEGER_OPERATORS = {
    ast.Add: "add", ast.Sub: "sub", ast.Mult: "mul", ast.BitAnd: "and_", ast.BitOr: "or_",
    ast.BitXor: "xor", ast.LShift: "shl", ast.RShift: "ashr",
}  # fmt: skip
_FLOAT_OPERATORS = {ast.Add: "fadd", ast.Sub: "fsub", ast.Mult: "fmul", ast.Div: "fdiv"}


def compile_native(function: Native) -> Callable[..., Any]:
    """The function as machine code of this processor, kept in ``cache_dir()``. It expects arrays
    that are contiguous and of the annotated types.
    """
    name, parameters = function.__name__, _parameters(_tree(function))
    returns = _returns(_tree(function))
    engine = _engine(function)
    run = ctypes.CFUNCTYPE(ctypes.c_int64, ctypes.c_void_p)(engine.get_function_address("entry"))
    # Each word has 8 bytes: the result; a scalar, or an array's address and extents.
    words = ["qqq" if kind in _ARRAYS else _LETTERS[_SCALARS[kind]] for _, kind in parameters]
    layout, result = Struct(f"q{''.join(words)}"), Struct(_LETTERS[returns])
    buffer = ctypes.c_char * layout.size

    def call(*args: Any) -> Any:
        values: list[Any] = [0]
        for (what, kind), value in zip(parameters, args, strict=True):
            if kind not in _ARRAYS:
                values.append(value)
                continue
            element, dims = _ARRAYS[kind]
            right = value.dtype == _DTYPES[element] and value.ndim == dims
            if not (right and value.flags.c_contiguous):
                raise TypeError(f"{name}: {what} is no contiguous array of {kind}")
            values += (value.__array_interface__["data"][0], *value.shape, 0)[:3]
        packed = buffer()
        layout.pack_into(packed, 0, *values)
        if run(packed):
            raise IndexError(f"{name}: an index is outside of its array")
        return result.unpack_from(packed)[0]

    call.engine = engine  # type: ignore[attr-defined]  # it owns the code
    return call


@lru_cache(maxsize=256)
def _source(function: Native) -> str:
    return textwrap.dedent(inspect.getsource(function.__wrapped__))


@lru_cache(maxsize=256)
def _tree(function: Native) -> ast.FunctionDef:
    tree = ast.parse(_source(function)).body[0]
    assert isinstance(tree, ast.FunctionDef)
    return tree


def _parameters(tree: ast.FunctionDef) -> list[tuple[str, str]]:
    """Names and types."""
    return [(arg.arg, ast.unparse(arg.annotation)) for arg in tree.args.args if arg.annotation]


def _returns(tree: ast.FunctionDef) -> ir.Type:
    """The type of the result; a function that returns nothing returns 0."""
    return _F64 if tree.returns is not None and ast.unparse(tree.returns) == "float" else _I64


def _engine(function: Native) -> llvm.ExecutionEngine:
    machine = host().target_machine(opt=2)
    known = (*_sources(function), _own_source(), host().key, str(llvm.llvm_version_info))
    digest = hashlib.sha256("\0".join(known).encode()).hexdigest()[:24]
    kept = cache_dir() / f"native_{function.__name__}_{digest}.o"
    code = read_checked(kept)
    if code is None:
        code = machine.emit_object(_optimised(function, machine))
        keep_checked(kept, code)
    engine = llvm.create_mcjit_compiler(llvm.parse_assembly(""), machine)
    engine.add_object_file(llvm.object_file.ObjectFileRef.from_data(code))
    engine.finalize_object()
    return engine


@lru_cache(maxsize=1)
def _own_source() -> str:
    return Path(__file__).read_text("utf-8")


def _sources(function: Native) -> Iterator[str]:
    """All that the machine code of a function depends on: texts and numbers."""
    yield _source(function)
    names = function.__wrapped__.__code__.co_names
    values = {name: function.__wrapped__.__globals__.get(name) for name in names}
    yield str({name: int(v) for name, v in values.items() if isinstance(v, int)})
    for callee in function.callees:
        yield from _sources(callee)


def _optimised(function: Native, machine: llvm.TargetMachine) -> llvm.ModuleRef:
    module = ir.Module(function.__name__)
    module.triple, module.data_layout = machine.triple, str(machine.target_data)
    _entry(module, function)
    parsed = llvm.parse_assembly(str(module))
    parsed.verify()
    builder = llvm.create_pass_builder(machine, llvm.create_pipeline_tuning_options(2))
    builder.getModulePassManager().run(parsed, builder)
    return parsed


def _entry(module: ir.Module, function: Native) -> None:
    """``entry(int64 *words)``: word 0 is for the result, then come the arguments. It returns
    whether an index was outside."""
    inner, tree = _define(module, function), _tree(function)
    entry = ir.Function(module, ir.FunctionType(_I64, [_I64.as_pointer()]), "entry")
    b = ir.IRBuilder(entry.append_basic_block())

    def word(index: int) -> Value:
        return b.gep(entry.args[0], [_I64(index)])

    failed = b.alloca(_I64)
    b.store(_I64(0), failed)
    args: list[Value] = [failed]
    at = 1
    for _, kind in _parameters(tree):
        if kind in _ARRAYS:
            args.append(b.inttoptr(b.load(word(at)), _ARRAYS[kind][0].as_pointer()))
            args += [b.load(word(at + 1)), b.load(word(at + 2))]
            at += 3
        else:
            loaded = b.load(word(at))
            args.append(b.bitcast(loaded, _F64) if _SCALARS[kind] is _F64 else loaded)
            at += 1
    result = b.call(inner, args)
    b.store(b.bitcast(result, _I64) if result.type is _F64 else result, word(0))
    b.ret(b.load(failed))


def _define(module: ir.Module, function: Native) -> ir.Function:
    """The function in a module: where to note that an index was outside, then its arguments, arrays
    as pointer and two extents.
    """
    name, tree = f"native_{function.__name__}", _tree(function)
    if name in module.globals:
        return module.globals[name]
    types: list[ir.Type] = [_I64.as_pointer()]
    for _, kind in _parameters(tree):
        if kind in _ARRAYS:
            types += [_ARRAYS[kind][0].as_pointer(), _I64, _I64]
        else:
            types.append(_SCALARS[kind])
    defined = ir.Function(module, ir.FunctionType(_returns(tree), types), name)
    defined.linkage = "internal"
    _Body(module, defined, function, tree).write()
    return defined


@dataclass(frozen=True)
class _Array:
    """An array: pointer to its elements, extents, type of its elements."""

    pointer: Value
    extents: tuple[Value, ...]


class _Body:
    """Writes the statements of a function."""

    def __init__(
        self, module: ir.Module, defined: ir.Function, function: Native, tree: ast.FunctionDef
    ):
        self.module, self.defined, self.tree = module, defined, tree
        self.scope = function.__wrapped__.__globals__
        self.variables: dict[str, Value] = {}
        self.arrays: dict[str, _Array] = {}
        #: The places to go to of ``continue`` and ``break``, innermost loop last.
        self.loops: list[tuple[Value, Value]] = []
        self.entry = defined.append_basic_block("variables")
        self.b: Any = ir.IRBuilder(defined.append_basic_block("body"))
        self.body = self.b.block
        self.failed = defined.args[0]

    def write(self) -> None:
        """Write all of it."""
        args = iter(self.defined.args[1:])
        for name, kind in _parameters(self.tree):
            if kind in _ARRAYS:
                pointer, *extents = (next(args) for _ in range(3))
                self.arrays[name] = _Array(pointer, tuple(extents[: _ARRAYS[kind][1]]))
            else:
                self.assign(name, next(args))
        self.statements(self.tree.body)
        if not self.b.block.is_terminated:
            self.b.ret(ir.Constant(_returns(self.tree), 0))
        ir.IRBuilder(self.entry).branch(self.body)

    def error(self, node: ast.AST, what: str) -> TypeError:
        return TypeError(f"{self.tree.name}, {ast.unparse(node)!r}: {what}")

    # ---- statements ----

    def statements(self, body: list[ast.stmt]) -> None:
        for statement in body:
            if self.b.block.is_terminated:
                return
            self.statement(statement)

    def statement(self, node: ast.stmt) -> None:
        match node:
            case ast.Expr(ast.Constant()) | ast.Pass():
                pass
            case ast.Expr(value):
                self.value(value)
            case ast.Assign([ast.Tuple(names)], ast.Tuple(values)):
                for target, value in zip(names, [self.value(v) for v in values], strict=True):
                    assert isinstance(target, ast.Name)
                    self.assign(target.id, value)
            case ast.Assign([ast.Name(name)], value):
                self.assign(name, self.value(value))
            case ast.Assign([ast.Subscript() as place], value):
                stored, address = self.value(value), self.address(place)
                self.b.store(self.fitting(stored, address, node), address)
            case ast.AugAssign(ast.Name(name) as target, operator, value):
                read = ast.Name(target.id, ast.Load())
                self.assign(name, self.binary(node, operator, self.value(read), self.value(value)))
            case ast.AugAssign(ast.Subscript() as place, operator, value):
                address = self.address(place)
                changed = self.binary(node, operator, self.element(address), self.value(value))
                self.b.store(self.fitting(changed, address, node), address)
            case ast.If(test, body, orelse):
                with self.b.if_else(self.condition(test)) as (then, otherwise):
                    with then:
                        self.statements(body)
                    with otherwise:
                        self.statements(orelse)
                self.after_branches()
            case ast.While(test, body, []):
                self.loop(lambda: self.condition(test), body, lambda: None)
            case ast.For(ast.Name(name), ast.Call(ast.Name("range"), args, []), body, []):
                self.count(name, args, body)
            case ast.Break():
                self.b.branch(self.loops[-1][1])
            case ast.Continue():
                self.b.branch(self.loops[-1][0])
            case ast.Return(value):
                self.b.ret(self.value(value) if value else ir.Constant(_I64, 0))
            case _:
                raise self.error(node, "not in the part of Python that is compiled")

    def after_branches(self) -> None:
        """A block that both branches have left cannot be reached."""
        block = self.b.block
        if not any(
            block in getattr(other.terminator, "operands", ()) for other in self.defined.blocks
            if other.is_terminated
        ):  # fmt: skip
            self.b.unreachable()

    def assign(self, name: str, value: Value) -> None:
        """Set a variable, which is made where it is first set."""
        if value.type is _I1:
            value = self.b.zext(value, _I64)
        if name not in self.variables:
            self.variables[name] = ir.IRBuilder(self.entry).alloca(value.type, name=name)
        slot = self.variables[name]
        self.b.store(self.fitting(value, slot, ast.Name(name)), slot)

    def fitting(self, value: Value, slot: Value, node: ast.AST) -> Value:
        """A value as its place wants it: an integer becomes a float."""
        wanted = slot.type.pointee
        if value.type is _I1:
            value = self.b.zext(value, _I64)
        if wanted is _F64 and value.type is _I64:
            return self.b.sitofp(value, _F64)
        if wanted is _I32 and value.type is _I64:
            return self.b.trunc(value, _I32)
        if value.type is not wanted:
            raise self.error(node, "a float where an integer was")
        return value

    def count(self, name: str, args: list[ast.expr], body: list[ast.stmt]) -> None:
        """``for name in range(...)``. As in Python, the limit is computed once, and the body cannot
        change how often it runs."""
        step = self.value(args[2]) if len(args) == 3 else _I64(1)
        first = self.value(args[0]) if len(args) > 1 else _I64(0)
        limit = self.value(args[1] if len(args) > 1 else args[0])
        counter = ir.IRBuilder(self.entry).alloca(_I64)
        self.b.store(first, counter)

        def more() -> Value:
            now = self.b.load(counter)
            self.assign(name, now)
            upwards = self.b.icmp_signed(">", step, _I64(0))
            up, down = (self.b.icmp_signed(sign, now, limit) for sign in "<>")
            return self.b.select(upwards, up, down)

        def next_one() -> None:
            self.b.store(self.b.add(self.b.load(counter), step), counter)

        self.loop(more, body, next_one)

    def loop(
        self, more: Callable[[], Value], body: list[ast.stmt], next_one: Callable[[], None]
    ) -> None:
        test, inside, again, done = (
            self.defined.append_basic_block(name) for name in ("test", "inside", "again", "done")
        )
        self.b.branch(test)
        self.b.position_at_end(test)
        self.b.cbranch(more(), inside, done)
        self.b.position_at_end(inside)
        self.loops.append((again, done))
        self.statements(body)
        self.loops.pop()
        if not self.b.block.is_terminated:
            self.b.branch(again)
        self.b.position_at_end(again)
        next_one()
        self.b.branch(test)
        self.b.position_at_end(done)

    # ---- values ----

    def condition(self, node: ast.expr) -> Value:
        value = self.value(node)
        return value if value.type is _I1 else self.b.icmp_signed("!=", value, _I64(0))

    def value(self, node: ast.expr) -> Value:
        match node:
            case ast.Constant(bool() as number):
                return _I1(int(number))
            case ast.Constant(int() as number):
                return _I64(number)
            case ast.Constant(float() as number):
                return _F64(number)
            case ast.Name(name) if name in self.variables:
                return self.b.load(self.variables[name])
            case ast.Name(name) if isinstance(self.scope.get(name), int):
                return _I64(int(self.scope[name]))
            case ast.Subscript(ast.Attribute(ast.Name(name), "shape"), ast.Constant(int() as dim)):
                return self.arrays[name].extents[dim]
            case ast.Subscript():
                return self.element(self.address(node))
            case ast.BinOp(left, operator, right):
                return self.binary(node, operator, self.value(left), self.value(right))
            case ast.UnaryOp(ast.USub(), operand):
                value = self.value(operand)
                return self.b.fneg(value) if value.type is _F64 else self.b.neg(value)
            case ast.UnaryOp(ast.Not(), operand):
                return self.b.not_(self.condition(operand))
            case ast.Compare(left, [operator], [right]):
                return self.compare(operator, self.value(left), self.value(right))
            case ast.BoolOp(operator, values):
                return self.short_circuit(isinstance(operator, ast.And), values)
            case ast.IfExp(test, body, orelse):
                return self.conditional(test, body, orelse)
            case ast.Call(ast.Name(name), args, []):
                return self.call(node, name, args)
        raise self.error(node, "not in the part of Python that is compiled")

    def element(self, address: Value) -> Value:
        """An element of an array."""
        value = self.b.load(address)
        return self.b.sext(value, _I64) if value.type is _I32 else value

    def same_kind(self, left: Value, right: Value) -> tuple[Value, Value]:
        """Both as floats if one is."""
        left, right = (self.b.zext(v, _I64) if v.type is _I1 else v for v in (left, right))
        if left.type is right.type:
            return left, right
        left, right = (v if v.type is _F64 else self.b.sitofp(v, _F64) for v in (left, right))
        return left, right

    def binary(self, node: ast.AST, operator: ast.operator, left: Value, right: Value) -> Value:
        left, right = self.same_kind(left, right)
        if isinstance(operator, ast.Div):
            left, right = (v if v.type is _F64 else self.b.sitofp(v, _F64) for v in (left, right))
        if left.type is _F64:
            if type(operator) not in _FLOAT_OPERATORS:
                raise self.error(node, "no such operator of floats")
            return getattr(self.b, _FLOAT_OPERATORS[type(operator)])(left, right)
        match operator:
            case ast.FloorDiv():
                return self.divided(left, right)
            case ast.Mod():
                return self.b.sub(left, self.b.mul(self.divided(left, right), right))
        if type(operator) not in _INTEGER_OPERATORS:
            raise self.error(node, "no such operator of integers")
        return getattr(self.b, _INTEGER_OPERATORS[type(operator)])(left, right)

    def divided(self, left: Value, right: Value) -> Value:
        """The quotient, rounded down."""
        quotient, rest = self.b.sdiv(left, right), self.b.srem(left, right)
        signs_differ = self.b.icmp_signed("<", self.b.xor(left, right), _I64(0))
        down = self.b.and_(signs_differ, self.b.icmp_signed("!=", rest, _I64(0)))
        return self.b.sub(quotient, self.b.zext(down, _I64))

    def compare(self, operator: ast.cmpop, left: Value, right: Value) -> Value:
        left, right = self.same_kind(left, right)
        sign = _COMPARISONS[type(operator)]
        if left.type is _F64:
            return self.b.fcmp_ordered(sign, left, right)
        return self.b.icmp_signed(sign, left, right)

    def short_circuit(self, is_and: bool, values: list[ast.expr]) -> Value:
        done = self.defined.append_basic_block("decided")
        found: list[tuple[Value, Value]] = []
        for value in values:
            condition = self.condition(value)
            found.append((condition, self.b.block))
            if value is not values[-1]:
                more = self.defined.append_basic_block("undecided")
                self.b.cbranch(condition, *((more, done) if is_and else (done, more)))
                self.b.position_at_end(more)
        self.b.branch(done)
        self.b.position_at_end(done)
        result = self.b.phi(_I1)
        for condition, block in found:
            result.add_incoming(condition, block)
        return result

    def conditional(self, test: ast.expr, body: ast.expr, orelse: ast.expr) -> Value:
        with self.b.if_else(self.condition(test)) as (then, otherwise):
            with then:
                first, first_block = self.value(body), self.b.block
            with otherwise:
                second, second_block = self.value(orelse), self.b.block
        if first.type is not second.type:
            raise self.error(test, "both values must have one type")
        result = self.b.phi(first.type)
        result.add_incoming(first, first_block)
        result.add_incoming(second, second_block)
        return result

    def call(self, node: ast.Call, name: str, args: list[ast.expr]) -> Value:
        match name, args:
            case "len", [ast.Name(array)]:
                return self.arrays[array].extents[0]
            case (("min" | "max"), [left, right]):
                a, b = self.same_kind(self.value(left), self.value(right))
                # As in Python, the first of equal values.
                takes = self.compare(ast.Lt() if name == "min" else ast.Gt(), b, a)
                return self.b.select(takes, b, a)
            case _ if isinstance(self.scope.get(name), Native):
                callee = self.scope[name]
                given: list[Value] = [self.failed]
                for (_, kind), arg in zip(_parameters(_tree(callee)), args, strict=True):
                    if kind in _ARRAYS:
                        assert isinstance(arg, ast.Name)
                        array = self.arrays[arg.id]
                        given += [
                            array.pointer,
                            *array.extents,
                            *[_I64(1)] * (2 - len(array.extents)),
                        ]
                    else:
                        given.append(self.value(arg))
                return self.b.call(_define(self.module, callee), given)
        raise self.error(node, "not in the part of Python that is compiled")

    def address(self, node: ast.Subscript) -> Value:
        """Where an element lies."""
        if not (isinstance(node.value, ast.Name) and node.value.id in self.arrays):
            raise self.error(node, "no array")
        array = self.arrays[node.value.id]
        parts = node.slice.elts if isinstance(node.slice, ast.Tuple) else [node.slice]
        if len(parts) != len(array.extents):
            raise self.error(node, f"expected {len(array.extents)} indices")
        place: Value = _I64(0)
        inside: Value = _I1(1)
        for part, extent in zip(parts, array.extents, strict=True):
            index = self.value(part)
            inside = self.b.and_(inside, self.b.icmp_unsigned("<", index, extent))
            place = self.b.add(self.b.mul(place, extent), index)
        with self.b.if_then(self.b.not_(inside), likely=False):
            self.b.store(_I64(1), self.failed)
            self.b.ret(ir.Constant(_returns(self.tree), 0))
        return self.b.gep(array.pointer, [place])
