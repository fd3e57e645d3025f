"""Loop programs to LLVM IR: one function per loop program, exact down to the bit.

A function takes a pointer per parameter buffer and a last one to its workspace, scratch memory of
``Workspace.size`` bytes for allocations that are too large for the stack. Integers wrap, shifts
of the width or more shift everything out, ``//`` and ``%`` floor, floats are IEEE single or double
precision. ``common/float_functions.py`` says what some functions compute; the others are the C
library's. Only inside a loop with the pragma "contract", a product and a sum may be rounded once,
where that is faster.

Vectorized loops become vectors (``llvm_vector.py``) or carry a hint. Parallel loops are shared
among the processor's threads (``llvm_parallel.py``), where it has several. Virtual threads and
loops bound to threads run serially, which is one of the orders that they allow. Unrolled loops have
been expanded before (``tir/passes/unroll.py``), or are too long for that and stay loops.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from typing import Any

from llvmlite import ir

from ....isa.errors import VdlaError
from ....runtime.native import ALIGN_BYTES, align
from ...te import expr as E
from ...tir import ir as T
from ...tir.printer import expr_text
from ..common.float_functions import FUNCTIONS
from . import llvm_vector as vec
from . import micro_kernel_code as micro_kernels
from .llvm_functions import call_function
from .llvm_half import rounded_to
from .llvm_narrow import ROWS, NarrowRow, has_packs, narrow_rows, packed
from .llvm_parallel import call_in_parallel, declare_part
from .micro_kernels import TILE_REGISTERS
from .processor import Processor

#: Allocations up to this size live on the stack.
STACK_BYTES = 16 << 10
ELEMENT_BYTES = {"bool": 1} | {d: E.bits_of(d) // 8 for d in (*E.INT_DTYPES, *E.FLOAT_DTYPES)}

#: Objects of llvmlite, whose type annotations do not agree with its code.
Value = Any

_POINTER = ir.PointerType()
_I1, _I8, _I32, _I64 = (ir.IntType(bits) for bits in (1, 8, 32, 64))
_FLOATS = ir.VectorType(ir.FloatType(), 16)
#: The operand of an instruction of AVX-512 that rounds down, whatever the thread's mode is.
_ROUND_DOWN = 9
#: Operators that are instructions, by the name of llvmlite's function.
_INTEGER_OPS = {"+": "add", "-": "sub", "*": "mul", "&": "and_", "|": "or_"}
_FLOAT_OPS = {"+": "fadd", "-": "fsub", "*": "fmul", "/": "fdiv"}
_TYPES: dict[str, Any] = {
    "bool": _I1, "float32": ir.FloatType(), "float64": ir.DoubleType(),
} | {dtype: ir.IntType(E.bits_of(dtype)) for dtype in E.INT_DTYPES}  # fmt: skip


def buffer_bytes(buffer: T.Buffer) -> int:
    """Size of a buffer, in bytes."""
    return ELEMENT_BYTES[buffer.dtype] * buffer.shape[0] * buffer.strides[0]


@dataclass
class Workspace:
    """A stack of large allocations, laid out at compile time: ``size`` is the deepest it gets."""

    top: int = 0
    size: int = 0

    def push(self, size_bytes: int) -> int:
        """Offset of a new allocation, in bytes."""
        offset, self.top = self.top, self.top + align(size_bytes)
        self.size = max(self.size, self.top)
        return offset


def symbol(name: str) -> str:
    """A user's name, with only characters that LLVM can print and read."""
    return "".join(c if c.isascii() and (c.isalnum() or c in "._$-") else "_" for c in name)


def emit_function(
    func: T.PrimFunc, module: ir.Module, name: str, processor: Processor
) -> tuple[ir.Function, int]:
    """Add a loop program to a module; returns the function and the bytes of workspace it needs."""
    signature = ir.FunctionType(ir.VoidType(), [_POINTER] * (len(func.params) + 1))
    function = ir.Function(module, signature, symbol(name))
    for argument, buffer in zip(function.args, func.params, strict=False):
        argument.name = symbol(buffer.name)
        argument.add_attribute("noalias")
    function.args[-1].name = "workspace"
    function.args[-1].add_attribute("noalias")
    entry = function.append_basic_block("entry")
    start = function.append_basic_block("start")
    emitter = _Emitter(func.name, processor, ir.IRBuilder(start), ir.IRBuilder(entry), function)
    emitter.memory |= dict(zip(func.params, function.args, strict=False))
    with emitter.with_tiles(func.body):
        emitter.stmt(func.body)
    emitter.builder.ret_void()
    emitter.entry.branch(start)
    return function, emitter.workspace.size


@dataclass
class _Emitter:
    """``variables`` holds loop counters as int64; ``entry`` builds the block for allocations on the
    stack; ``vector`` is the loop whose iterations are being emitted as one vector, if any; ``sums``
    holds the sums of index terms that a block has already computed, by block and terms;
    ``tile_depth`` is the number of channels in a tile of AMX, 0 where the function uses no tiles;
    ``tiles`` has the numbers of the tiles of buffers that are in tiles."""

    name: str
    processor: Processor
    builder: Value
    entry: Value
    function: Value
    memory: dict[T.Buffer, Value] = field(default_factory=dict)
    variables: dict[E.Var, Value] = field(default_factory=dict)
    workspace: Workspace = field(default_factory=Workspace)
    sums: dict[tuple, Value] = field(default_factory=dict)
    contract: bool = False
    vector: T.For | None = None
    tile_depth: int = 0
    tiles: dict[T.Buffer, list[int]] = field(default_factory=dict)

    # ---- statements ----

    def stmt(self, stmt: T.Stmt) -> None:
        match stmt:
            case T.Seq(stmts):
                self._sequence(stmts)
            case T.For():
                outside = self.contract
                self.contract |= ("contract", True) in stmt.pragmas
                self._loop(stmt)
                self.contract = outside
            case T.If():
                with self.builder.if_then(self.value(stmt.cond)):
                    self.stmt(stmt.body)
            case T.Allocate():
                self._allocate(stmt)
            case T.Store():
                self._store(stmt)
            case T.TensorCall():
                self._tensor_call(stmt)
            case T.Prefetch():
                address = self._address(stmt.buffer, stmt.indices, inside=False)
                self._call("llvm.prefetch.p0", ir.VoidType(), address, _I32(0), _I32(3), _I32(1))
            case _:
                raise VdlaError(f"{self.name}: the CPU has no code for statement {stmt!r}")

    def _sequence(self, stmts: tuple[T.Stmt, ...]) -> None:
        """Emit statements in order; rows that can be narrowed together are stored together."""
        done, packs = 0, has_packs(self.processor)
        while done < len(stmts):
            rows = narrow_rows(stmts[done : done + ROWS]) if packs else None
            if rows is None:
                self.stmt(stmts[done])
            else:
                self._store_rows(rows)
            done += 1 if rows is None else ROWS

    def _store_rows(self, rows: Sequence[NarrowRow]) -> None:
        vectors = [self._lanes(row.loop, lambda row=row: self.value(row.value)) for row in rows]
        first = rows[0]
        to = self._lanes(first.loop, lambda: self._address(first.store.buffer, first.store.indices))
        self.builder.store(packed(self.builder, vectors, first), to, align=1)

    def _tensor_call(self, call: T.TensorCall) -> None:
        """Emit the processor's instruction; intrinsics that it lacks have become loops before."""
        behaviour, operands = call.intrinsic.behaviour, call.intrinsic.operands
        regions = zip((call.output, *call.inputs), (behaviour, *operands), strict=False)
        found = (self._operand(region, tensor.shape) for region, tensor in regions)
        micro_kernels.MICRO_KERNELS[call.intrinsic].emit(self.builder, *found)

    def _operand(self, region: T.Region, shape: Sequence[int]) -> micro_kernels.Operand:
        """An operand of a tensor intrinsic: a tile, or where it begins in memory."""
        buffer = region.buffer
        if buffer.scope in TILE_REGISTERS:
            return micro_kernels.Operand(tile=self._tile(region))
        row_bytes = ELEMENT_BYTES[buffer.dtype] * buffer.strides[-len(shape)]
        return micro_kernels.Operand(self._address(buffer, region.start), row_bytes)

    def _tile(self, region: T.Region) -> int:
        """The number of the tile that is a region."""
        place, terms = vec.split_offset(region.buffer, region.start, None)
        size = micro_kernels.tile_elements(region.buffer.scope, self.tile_depth)
        if terms or place % size:
            name, start = region.buffer.name, ", ".join(map(expr_text, region.start))
            raise VdlaError(
                f"{self.name}: expected a tile that is known when the code is made, got "
                f"{name}[{start}]; unroll the loops over tiles"
            )
        return self.tiles[region.buffer][place // size]

    def _store(self, stmt: T.Store) -> None:
        value = self.value(stmt.value)
        address = self._address(stmt.buffer, stmt.indices)
        if stmt.buffer.dtype == "bool":
            value = self.builder.zext(value, _I8)
        self.builder.store(value, address, align=ELEMENT_BYTES[stmt.buffer.dtype])

    def _loop(self, loop: T.For) -> None:
        """Tested at the end: extents are constants of at least 1."""
        if loop.kind == "vectorized" and self._vector_loop(loop):
            return
        if loop.kind == "parallel" and self.processor.threads > 1:
            self._parallel_loop(loop)
        else:
            self._counted_loop(loop, _I64(0), _I64(loop.extent))

    def _counted_loop(self, loop: T.For, first: Value, end: Value) -> None:
        builder = self.builder
        before = builder.block
        body = builder.append_basic_block(loop.var.name)
        builder.branch(body)
        builder.position_at_end(body)
        counter = builder.phi(_I64, loop.var.name)
        counter.add_incoming(first, before)
        self.variables[loop.var] = counter
        self.stmt(loop.body)
        following = builder.add(counter, _I64(1), flags=("nuw", "nsw"))
        counter.add_incoming(following, builder.block)
        after = builder.append_basic_block("after." + loop.var.name)
        again = builder.icmp_unsigned("<", following, end)
        branch = builder.cbranch(again, body, after)
        hint = _loop_hint(loop)
        if hint is not None:
            branch.set_metadata("llvm.loop", self._loop_metadata(*hint))
        builder.position_at_end(after)

    def _parallel_loop(self, loop: T.For) -> None:
        """Emit the loop as a function of its own, which gets all buffers and loop counters as
        arguments. Parallel loops inside it run serially."""
        module, buffers, counters = self.function.module, list(self.memory), list(self.variables)
        part = declare_part(module, f"{self.function.name}.part", len(buffers), len(counters))
        entry, start = (part.append_basic_block(name) for name in ("entry", "start"))
        inner = _Emitter(
            self.name, replace(self.processor, threads=1), ir.IRBuilder(start), ir.IRBuilder(entry),
            part, contract=self.contract,
        )  # fmt: skip
        inner.memory |= dict(zip(buffers, part.args, strict=False))
        inner.variables |= dict(zip(counters, part.args[len(buffers) :], strict=False))
        with inner.with_tiles(loop.body):
            inner._counted_loop(loop, *part.args[-3:-1])
        inner.builder.ret_void()
        inner.entry.branch(start)
        size, threads, mark = inner.workspace.size, self.processor.threads, self.workspace.top
        offset = self.workspace.push(size * threads)
        self.workspace.top = mark
        base = self.builder.gep(self.function.args[-1], [_I64(offset)], source_etype=_I8)
        captured = [*(self.memory[b] for b in buffers), *(self.variables[v] for v in counters)]
        call_in_parallel(
            self.builder, self.entry, part, captured, (base, size), loop.extent, threads
        )
        if self.tile_depth and inner.tile_depth:  # this thread was one of them
            micro_kernels.configure_tiles(self.builder, self.tile_depth)

    def _vector_loop(self, loop: T.For) -> bool:
        """Emit a loop as vectors; False where vectors cannot compute its statements."""
        stores = vec.find_stores(loop)
        if stores is None:
            return False
        for store in stores:
            self._lanes(loop, lambda store=store: self._store(store))
        return True

    def _lanes(self, loop: T.For, emit: Callable[[], Value]) -> Value:
        """Emit a value for all iterations of a loop at once."""
        self.vector, self.variables[loop.var] = loop, _I64(0)
        found = emit()
        self.vector = None
        return found

    def _scalar(self, expr: E.Expr) -> Value:
        """Emit an expression as the one value that it has for all iterations of a vector loop."""
        vector, self.vector = self.vector, None
        found = self.value(expr)
        self.vector = vector
        return found

    def _loop_metadata(self, *hint: Value) -> Value:
        """A loop's metadata: a node of its own whose first operand is itself."""
        module = self.function.module
        wish = module.add_metadata(list(hint))
        loop_id = ir.MDValue(module, [wish], name=str(len(module.metadata)))
        loop_id.operands = (loop_id, wish)
        return loop_id

    @contextmanager
    def with_tiles(self, body: T.Stmt) -> Iterator[None]:
        """Emit what the tiles of a thread need before and after ``body``, if that uses any."""
        self.tile_depth = micro_kernels.tile_depth(body, self.processor.threads)
        if self.tile_depth:
            micro_kernels.configure_tiles(self.builder, self.tile_depth)
        yield
        if self.tile_depth:
            micro_kernels.release_tiles(self.builder)

    def _allocate_tiles(self, stmt: T.Allocate) -> None:
        """Give a buffer the first tiles that are free."""
        buffer, registers = stmt.buffer, TILE_REGISTERS[stmt.buffer.scope]
        taken = {tile for tiles in self.tiles.values() for tile in tiles}
        free = [tile for tile in registers if tile not in taken]
        size = micro_kernels.tile_elements(buffer.scope, self.tile_depth)
        needed = -(-math.prod(buffer.shape) // size)
        if needed > len(free):
            raise VdlaError(
                f"{self.name}: expected at most {len(free)} tiles in {buffer.scope}, "
                f"{buffer.name}{list(buffer.shape)} needs {needed}; compute fewer together"
            )
        self.tiles[buffer] = free[:needed]
        self.stmt(stmt.body)
        del self.tiles[buffer]

    def _allocate(self, stmt: T.Allocate) -> None:
        if self.tile_depth and stmt.buffer.scope in TILE_REGISTERS:
            self._allocate_tiles(stmt)
            return
        buffer, size_bytes = stmt.buffer, buffer_bytes(stmt.buffer)
        mark = self.workspace.top
        if size_bytes <= STACK_BYTES:
            address: Value = self.entry.alloca(
                ir.ArrayType(_I8, size_bytes), name=symbol(buffer.name)
            )
            address.align, address.type = ALIGN_BYTES, _POINTER
        else:
            offset = self.workspace.push(size_bytes)
            base = self.function.args[-1]
            address = self.entry.gep(
                base, [_I64(offset)], name=symbol(buffer.name), source_etype=_I8
            )
        self.memory[buffer] = address
        self.stmt(stmt.body)
        self.workspace.top = mark

    def _address(self, buffer: T.Buffer, indices: tuple[E.Expr, ...], inside: bool = True) -> Value:
        """Address of an element. If not ``inside``, it may lie beyond the buffer's end."""
        if buffer not in self.memory:
            raise VdlaError(
                f"{self.name}: buffer {buffer.name} is neither parameter nor allocated here"
            )
        lane = self.vector.var if self.vector else None
        constant, terms = vec.split_offset(buffer, indices, lane)
        offset: Value = _I64(constant)
        if terms:
            offset = self.builder.add(self._sum(tuple(terms.items())), offset, flags=("nsw",))
        element = _I8 if buffer.dtype == "bool" else _TYPES[buffer.dtype]
        return self.builder.gep(
            self.memory[buffer], [offset], inbounds=inside, source_etype=element
        )

    def _sum(self, terms: tuple[tuple[E.Expr, int], ...]) -> Value:
        """The sum of an index's terms times their coefficients. Statements in one block, as those
        of unrolled loops, compute equal sums once, unless the terms read memory, which the
        statements may write."""
        key = (self.builder.block, terms)
        if key in self.sums:
            return self.sums[key]
        total: Value = None
        for term, coefficient in terms:
            step = self.builder.mul(self._index(term), _I64(coefficient), flags=("nsw",))
            total = step if total is None else self.builder.add(total, step, flags=("nsw",))
        if all(_is_total(term) for term, _ in terms):
            self.sums[key] = total
        return total

    def _index(self, expr: E.Expr) -> Value:
        """An index in int64. Indices of loops lie within their buffers, so that nothing wraps; what
        is computed from elements wraps as its dtype does."""
        match expr:
            case E.Var():
                return self._variable(expr)
            case E.Const(value):
                return _I64(int(value))
            case E.Binary("+" | "-" | "*" | "//" | "%" | "min" | "max", a, b) if _is_total(expr):
                return self._int_binary(expr.op, self._index(a), self._index(b), expr)
        return self._cast(self._scalar(expr), expr.dtype, "int64")

    def _variable(self, var: E.Var) -> Value:
        if var not in self.variables:
            raise VdlaError(f"{self.name}: variable {var!r} is bound by no loop around its use")
        return self.variables[var]

    # ---- expressions ----

    def value(self, expr: E.Expr) -> Value:
        """An expression as a value of its dtype, or as a vector of them."""
        if self.vector and vec.is_invariant(expr, self.vector.var):
            return vec.splat(self.builder, self._scalar(expr), self.vector.extent)
        match expr:
            case E.Var():
                return self.builder.trunc(self._variable(expr), _TYPES[expr.dtype])
            case E.Const(value, dtype):
                number = float(value) if dtype in E.FLOAT_DTYPES else int(value)
                return ir.Constant(_TYPES[dtype], number)
            case E.Binary("&", a, b) if expr.dtype == "bool" and not _is_total(b):
                return self._choose(a, lambda: self.value(b), lambda: _I1(0))
            case E.Binary("|", a, b) if expr.dtype == "bool" and not _is_total(b):
                return self._choose(a, lambda: _I1(1), lambda: self.value(b))
            case E.Binary("+", a, E.Binary("*", b, c)) if (
                self.contract and a.dtype in E.FLOAT_DTYPES
            ):
                return self._multiply_add(self.value(b), self.value(c), self.value(a))
            case E.Binary(op, a, b):
                left, right = self.value(a), self.value(b)
                if a.dtype in E.FLOAT_DTYPES:
                    return self._float_binary(op, left, right)
                return self._int_binary(op, left, right, expr)
            case E.Select(cond, a, b):
                if _is_total(a) and _is_total(b):
                    return self.builder.select(self._scalar(cond), self.value(a), self.value(b))
                return self._choose(cond, lambda: self.value(a), lambda: self.value(b))
            case E.Cast("float32", E.Cast("float16" | "bfloat16" as half, a)) if (
                a.dtype == "float32"
            ):
                return rounded_to(self.builder, self.value(a), half)
            case E.Cast(dtype, a) if a.dtype in E.FLOAT_DTYPES and dtype in E.INT_DTYPES:
                return self._to_integer(self.value(a), a.dtype, dtype, E.clamps_to_int32(a))
            case E.Cast(dtype, a):
                return self._cast(self.value(a), a.dtype, dtype)
            case E.Read(source, indices):
                return self._load(source, indices)
            case E.Call("requantize", args, dtype):
                acc, multiplier, shift = (self.value(a) for a in args)
                return self._requantize(acc, multiplier, shift, dtype)
            case E.Call("rescale", args):
                return self._rescale(*(self.value(a) for a in args))
            case E.Call("scaled_down", args):
                return self._scaled_down(*(self.value(a) for a in args))
            case E.Call("scaled_floor", args):
                return self._scaled_floor(*(self.value(a) for a in args))
            case E.Call("requantize_tflite", args):
                return self._requantize_tflite(*(self.value(a) for a in args))
            case E.Call("popcount", (a,), dtype):
                bits = self.value(a)
                lanes = f"v{bits.type.count}" if isinstance(bits.type, ir.VectorType) else ""
                return self._call(f"llvm.ctpop.{lanes}i{E.bits_of(dtype)}", bits.type, bits)
            case E.Call("reinterpret", (a,), dtype):
                bits = self.value(a)
                return self.builder.bitcast(bits, vec.like(bits, _TYPES[dtype]))
            case E.Call("divide" | "remainder", (a, b), dtype) if dtype in E.INT_DTYPES:
                return self._divide(expr.name, self.value(a), self.value(b), dtype)
            case E.Call("remainder", (a, b)):
                return self.builder.frem(self.value(a), self.value(b))
            case E.Call(name, args) if name in (*E.FLOAT_FUNCTIONS, "pow"):
                return self._function(name, expr.dtype, *(self.value(a) for a in args))
        raise VdlaError(f"{self.name}: the CPU has no code for expression {expr!r}")

    def _load(self, source: T.Buffer, indices: tuple[E.Expr, ...]) -> Value:
        address = self._address(source, indices)
        if self.vector:
            kind = ir.VectorType(_TYPES[source.dtype], self.vector.extent)
            return self.builder.load(address, align=ELEMENT_BYTES[source.dtype], typ=kind)
        if source.dtype != "bool":
            return self.builder.load(address, typ=_TYPES[source.dtype])
        return self.builder.icmp_unsigned("!=", self.builder.load(address, typ=_I8), _I8(0))

    def _choose(
        self, cond: E.Expr, then: Callable[[], Value], otherwise: Callable[[], Value]
    ) -> Value:
        """One of two values; the other one is not computed."""
        builder = self.builder
        with builder.if_else(self._scalar(cond)) as (if_true, if_false):
            with if_true:
                a, a_end = then(), builder.block
            with if_false:
                b, b_end = otherwise(), builder.block
        result = builder.phi(a.type)
        result.add_incoming(a, a_end)
        result.add_incoming(b, b_end)
        return result

    def _int_binary(self, op: str, a: Value, b: Value, expr: E.Binary) -> Value:
        builder = self.builder
        unsigned = expr.a.dtype == "bool" or expr.a.dtype[0] == "u"
        compare = builder.icmp_unsigned if unsigned else builder.icmp_signed
        if (found := self._simple_binary(op, a, b, _INTEGER_OPS, compare)) is not None:
            return found
        match op:
            case ">>":
                bits = a.type.width
                inside = builder.icmp_unsigned("<", b, a.type(bits))
                if unsigned:
                    shifted = builder.lshr(a, builder.select(inside, b, a.type(0)))
                    return builder.select(inside, shifted, a.type(0))
                return builder.ashr(a, builder.select(inside, b, a.type(bits - 1)))
            case "<<":
                inside = builder.icmp_unsigned("<", b, a.type(a.type.width))
                shifted = builder.shl(a, builder.select(inside, b, a.type(0)))
                return builder.select(inside, shifted, a.type(0))
            case "//" | "%":
                if unsigned and isinstance(expr.b, E.Const) and expr.b.value > 0:
                    return builder.udiv(a, b) if op == "//" else builder.urem(a, b)
                return self._floor_division(op, a, expr.b)
        raise VdlaError(f"{self.name}: the CPU has no integer operator {op!r}")

    def _floor_division(self, op: str, a: Value, divisor: E.Expr) -> Value:
        if not isinstance(divisor, E.Const) or divisor.value <= 0:
            raise VdlaError(
                f"{self.name}: operator {op} expects a positive constant divisor, got {divisor!r}"
            )
        # No comparison: LLVM 22 makes wrong code of some vectors of bits for AVX-512.
        builder, by = self.builder, a.type(divisor.value)
        rest = builder.srem(a, by)
        if op == "%":  # a negative rest is a large unsigned number
            kind = vec.suffix_of(a.type)
            return self._call(f"llvm.umin.{kind}", a.type, rest, builder.add(rest, by))
        return builder.add(builder.sdiv(a, by), builder.ashr(rest, a.type(a.type.width - 1)))

    def _float_binary(self, op: str, a: Value, b: Value) -> Value:
        found = self._simple_binary(op, a, b, _FLOAT_OPS, self.builder.fcmp_ordered)
        if found is None:
            raise VdlaError(f"{self.name}: the CPU has no operator {op!r} of floats")
        return found

    def _simple_binary(
        self, op: str, a: Value, b: Value, instructions: dict[str, str], compare: Callable
    ) -> Value | None:
        """An operator that is an instruction, or a comparison and at most a choice."""
        if op in instructions:
            return getattr(self.builder, instructions[op])(a, b)
        match op:
            case "<" | "<=" | "==":
                return compare(op, a, b)
            case "min":
                return self.builder.select(compare("<", b, a), b, a)
            case "max":
                return self.builder.select(compare("<", a, b), b, a)
        return None

    def _multiply_add(self, a: Value, b: Value, c: Value) -> Value:
        """``a * b + c``, rounded once where that is faster."""
        return self._call(f"llvm.fmuladd.{vec.suffix_of(a.type)}", a.type, a, b, c)

    def _cast(self, value: Value, source: str, target: str) -> Value:
        builder, kind = self.builder, vec.like(value, _TYPES[target])
        from_float, to_float = source in E.FLOAT_DTYPES, target in E.FLOAT_DTYPES
        unsigned = source == "bool" or source[0] == "u"
        if source == target:
            return value
        if from_float and to_float:
            wider = target == "float64"
            return builder.fpext(value, kind) if wider else builder.fptrunc(value, kind)
        if from_float and target == "bool":
            return builder.fcmp_unordered("!=", value, value.type(0.0))
        if from_float:
            return self._to_integer(value, source, target, small=False)
        if to_float:
            return builder.uitofp(value, kind) if unsigned else builder.sitofp(value, kind)
        if target == "bool":
            return builder.icmp_unsigned("!=", value, value.type(0))
        before = 1 if source == "bool" else E.bits_of(source)
        if E.bits_of(target) < before:
            return builder.trunc(value, kind)
        if E.bits_of(target) == before:
            return value
        return builder.zext(value, kind) if unsigned else builder.sext(value, kind)

    def _to_integer(self, value: Value, source: str, target: str, small: bool) -> Value:
        """Values beyond int64 saturate and NaN becomes 0, as in the interpreter; plain fptosi would
        be undefined for them. A ``small`` value fits int32."""
        builder, rounded = self.builder, self._function("round", source, value)
        if small:
            is_number = builder.fcmp_ordered("==", rounded, rounded)
            safe = builder.select(is_number, rounded, vec.constant_of(value.type, 0.0))
            return self._cast(builder.fptosi(safe, vec.like(value, _I32)), "int32", target)
        whole = vec.like(value, _I64)
        name = f"llvm.fptosi.sat.{vec.suffix_of(whole)}.{vec.suffix_of(value.type)}"
        return self._cast(self._call(name, whole, rounded), "int64", target)

    def _divide(self, name: str, a: Value, b: Value, dtype: str) -> Value:
        """Truncating division or its remainder, 0 where the divisor is 0. The processor would trap
        on that divisor, and on the least number divided by -1, so it never divides by either."""
        builder = self.builder
        by_zero = builder.icmp_unsigned("==", b, b.type(0))
        if dtype[0] == "u":
            safe = builder.select(by_zero, b.type(1), b)
            found = builder.udiv(a, safe) if name == "divide" else builder.urem(a, safe)
            return builder.select(by_zero, a.type(0), found)
        negates = builder.icmp_signed("==", b, b.type(-1))
        safe = builder.select(builder.or_(by_zero, negates), b.type(1), b)
        if name == "divide":
            found = builder.select(negates, builder.sub(a.type(0), a), builder.sdiv(a, safe))
        else:
            found = builder.srem(a, safe)  # by 1 where the divisor is -1: 0, as it should be
        return builder.select(by_zero, a.type(0), found)

    def _requantize(self, acc: Value, multiplier: Value, shift: Value, dtype: str) -> Value:
        """``acc * multiplier / 2**shift``, half to even: add half less one, and one more where the
        quotient is odd, then shift. The sum fits int64 for every product of two int32.
        """
        builder, wide = self.builder, vec.like(acc, _I64)
        one, none = vec.constant_of(wide, 1), vec.constant_of(wide, 0)
        product = builder.mul(builder.sext(acc, wide), builder.sext(multiplier, wide))
        count = builder.zext(builder.and_(shift, vec.constant_of(shift.type, 63)), wide)
        half = builder.lshr(builder.shl(one, count), one)
        odd = builder.and_(builder.ashr(product, count), one)
        nudge = builder.add(builder.sub(half, one), odd)
        rounded = builder.ashr(builder.add(product, nudge), count)
        whole = builder.icmp_unsigned("==", count, none)
        result = builder.select(whole, product, rounded)
        return self._cast(result, "int64", dtype)

    def _rescale(self, acc: Value, multiplier: Value, shift: Value) -> Value:
        """:meth:`_requantize` to a result of int32. ``acc * (multiplier / 2**shift) + 1.5 * 2**52``
        is rounded once, half to even, to a whole number, whose low bits are the result's.
        """
        if not self.processor.fuses_multiply_add:
            return self._requantize(acc, multiplier, shift, "int32")
        builder, wide, real = self.builder, vec.like(acc, _I64), vec.like(acc, ir.DoubleType())
        exponent = builder.sub(vec.constant_of(wide, 1023), builder.zext(shift, wide))
        power = builder.bitcast(builder.shl(exponent, vec.constant_of(wide, 52)), real)
        scale = builder.fmul(builder.sitofp(multiplier, real), power)
        whole = self._call(
            f"llvm.fma.{vec.suffix_of(real)}", real, builder.sitofp(acc, real), scale,
            vec.constant_of(real, 1.5 * 2.0**52),
        )  # fmt: skip
        if not isinstance(wide, ir.VectorType):
            return builder.trunc(builder.bitcast(whole, wide), acc.type)
        halves = builder.bitcast(whole, ir.VectorType(_I32, 2 * acc.type.count))
        low = ir.Constant(acc.type, list(range(0, 2 * acc.type.count, 2)))
        return builder.shuffle_vector(halves, halves, low)

    def _scaled_floor(self, x: Value, factor: Value, offset: Value) -> Value:
        total = self._scaled_down(x, factor, offset)
        if not self._rounds_down(total):
            return self.builder.fptosi(self._function("floor", "float32", total), x.type)
        name, all_lanes = "llvm.x86.avx512.mask.cvtps2dq.512", ir.IntType(16)(-1)
        return self._call(
            name, x.type, total, vec.constant_of(x.type, 0), all_lanes, _I32(_ROUND_DOWN)
        )

    def _scaled_down(self, x: Value, factor: Value, offset: Value) -> Value:
        """``float32(x) * factor + offset`` rounded down. Without an instruction for that, float64
        is used: the product is exact, and the sum's rounding error can be computed (``lost``). The
        nearest float32 of the sum is lowered by one step where it is above the exact sum."""
        builder, single = self.builder, self.builder.sitofp(x, factor.type)
        if self._rounds_down(single):
            name = "llvm.x86.avx512.vfmadd.ps.512"
            return self._call(name, single.type, single, factor, offset, _I32(_ROUND_DOWN))
        real, bits = vec.like(x, ir.DoubleType()), x.type
        wide_factor, wide_offset = (builder.fpext(v, real) for v in (factor, offset))
        product = builder.fmul(builder.fpext(single, real), wide_factor)
        total = builder.fadd(product, wide_offset)
        added = builder.fsub(total, product)
        lost = builder.fadd(
            builder.fsub(product, builder.fsub(total, added)), builder.fsub(wide_offset, added)
        )
        nearest = builder.fptrunc(total, factor.type)
        above = builder.fsub(builder.fpext(nearest, real), total)
        is_above = builder.fcmp_ordered(">", above, lost)
        zero = vec.constant_of(
            factor.type, -0.0
        )  # unlike +0.0, its bits plus 1 are the next float below
        is_zero = builder.fcmp_ordered("==", nearest, zero)
        raw = builder.bitcast(builder.select(is_zero, zero, nearest), bits)
        negative = builder.icmp_signed("<", raw, vec.constant_of(bits, 0))
        step = builder.select(negative, vec.constant_of(bits, 1), vec.constant_of(bits, -1))
        return builder.bitcast(builder.select(is_above, builder.add(raw, step), raw), factor.type)

    def _rounds_down(self, value: Value) -> bool:
        """Whether the processor has instructions that round down, for vectors of a value's type."""
        return self.processor.has("avx512f") and value.type == _FLOATS

    def _requantize_tflite(self, acc: Value, multiplier: Value, shift: Value) -> Value:
        """``acc << -shift`` if shift < 0; times the multiplier / 2**31, ties up, saturating; over
        ``2**shift`` if shift > 0, ties away from zero.
        """
        builder = self.builder
        negative = builder.icmp_signed("<", shift, _I32(0))
        lift = builder.and_(builder.neg(shift), _I32(31))
        left = builder.select(negative, lift, _I32(0))
        right = builder.select(negative, _I32(0), builder.and_(shift, _I32(31)))
        lifted = builder.sext(builder.shl(acc, left), _I64)
        product = builder.mul(lifted, builder.sext(multiplier, _I64))
        high = builder.ashr(builder.add(product, _I64(1 << 30)), _I64(31))
        top = _I64((1 << 31) - 1)
        high = builder.select(builder.icmp_signed(">", high, top), top, high)
        count = builder.zext(right, _I64)
        mask = builder.sub(builder.shl(_I64(1), count), _I64(1))
        below_zero = builder.zext(builder.icmp_signed("<", high, _I64(0)), _I64)
        threshold = builder.add(builder.lshr(mask, _I64(1)), below_zero)
        up = builder.icmp_signed(">", builder.and_(high, mask), threshold)
        return builder.add(builder.ashr(high, count), builder.zext(up, _I64))

    def _function(self, name: str, dtype: str, *args: Value) -> Value:
        """A function of floats. Those of ours need fused multiply-adds; processors without them
        call the C library, element by element."""
        kind = args[0].type
        if name in vec.LLVM_FUNCTIONS:
            return self._call(f"llvm.{vec.LLVM_FUNCTIONS[name]}.{vec.suffix_of(kind)}", kind, *args)
        if dtype == "float32" and name in FUNCTIONS and self.processor.fuses_multiply_add:
            return call_function(self.builder, name, *args)
        name += "f" if dtype == "float32" else ""
        if not isinstance(kind, ir.VectorType):
            return self._call(name, kind, *args)
        found = ir.Constant(kind, ir.Undefined)
        for lane in map(_I32, range(kind.count)):
            elements = (self.builder.extract_element(arg, lane) for arg in args)
            element = self._call(name, kind.element, *elements)
            found = self.builder.insert_element(found, element, lane)
        return found

    def _call(self, name: str, result: ir.Type, *args: Value) -> Value:
        return vec.call_named(self.builder, name, result, *args)


def _loop_hint(loop: T.For) -> tuple[Value, ...] | None:
    """The hint that LLVM gets about a loop, if any."""
    if loop.kind == "vectorized":
        return "llvm.loop.vectorize.enable", _I1(1)
    if ("keep_loop", True) in loop.pragmas:
        return ("llvm.loop.unroll.disable",)
    return None


def _is_total(expr: E.Expr) -> bool:
    """Whether an expression can be evaluated safely even where its value is not needed."""
    return not any(isinstance(node, E.Read) for node in E.walk(expr))
