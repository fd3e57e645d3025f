"""Kernels as text: one printer of the thread-level program, in CUDA C++ or OpenCL C.

The text computes what the program says, down to the bit: integers wrap, shifts of the width or more
shift everything out, ``//`` and ``%`` floor, floats are IEEE. Inside a loop with the pragma
"contract", a product and a sum of floats are one fused multiply-add, which the text says; nothing
else may be contracted.
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

import numpy as np

from ....isa.errors import VdlaError
from ...te.affine import affine, interval, is_of_loops
from ...te.expr import (
    FLOAT_DTYPES,
    HALF_DTYPES,
    INT_DTYPES,
    Binary,
    Call,
    Cast,
    Const,
    Expr,
    Read,
    Select,
    Var,
    bits_of,
    integer_range,
    substitute,
)
from ...tir.ir import (
    MARKS,
    Allocate,
    Buffer,
    For,
    If,
    Launch,
    Region,
    Seq,
    SignalArrived,
    SignalExpects,
    SignalsReady,
    Stmt,
    Store,
    TensorCall,
    walk_stmt,
)
from ...tir.passes.bulk import BulkIntrin
from ...tir.passes.pipeline import ASYNC
from ...tir.printer import expr_text
from .dialects import Dialect
from .functions import TYPES, functions_for, is_taken
from .scopes import FRAGMENTS, SHARED_ALIGN, SHARED_BYTES, WARPGROUP
from .tensor_cores import WarpIntrin, first_register, register_count
from .vectors import Vector, loads_of, vector_of

_PRECEDENCE = {"||": 1, "&&": 2, "|": 3, "&": 5, "==": 6, "<": 7, "<=": 7, "<<": 8, ">>": 8, "+": 9,
               "-": 9, "*": 10, "/": 10, "%": 10}  # fmt: skip
_TERNARY, _CAST, _ATOM = 0, 11, 12
_FUNCTIONS_OF_ARGS = ("requantize_tflite", "scaled_down", "scaled_floor")

_WORD = re.compile(r"\w+")

#: A text and how strongly its outermost operator binds.
_Text = tuple[str, int]


def c_name(name: str) -> str:
    """A name of the model as an identifier of C."""
    found = "".join(c if c.isascii() and c.isalnum() else "_" for c in name)
    found = found if found[:1].isalpha() else f"k_{found}"
    return f"{found}_" if is_taken(found) else found


def element_count(buffer: Buffer) -> int:
    """Elements of a buffer, padding included."""
    return buffer.shape[0] * buffer.strides[0]


def element_bytes(dtype: str) -> int:
    """Bytes of an element in memory."""
    return 1 if dtype == "bool" else bits_of(dtype) // 8


def shared_places(launch: Launch) -> tuple[dict[Buffer, int], int]:
    """Where the buffers in shared memory begin, and how many bytes they take."""
    places, end = dict[Buffer, int](), 0
    held = [s.buffer for s in walk_stmt(launch.body)
            if isinstance(s, Allocate) and s.buffer.scope == "shared"]  # fmt: skip
    for buffer in sorted(held, key=lambda b: not b.swizzled):
        align = SHARED_ALIGN if buffer.swizzled else 16
        places[buffer] = start = -(-end // align) * align
        end = start + element_count(buffer) * element_bytes(buffer.dtype)
    return places, end


def boxes_of(launch: Launch) -> list[Box]:
    """The boxes that the copy engine brings, each once."""
    found: dict[tuple[Buffer, tuple[int, ...]], Box] = {}
    for call in walk_stmt(launch.body):
        if isinstance(call, TensorCall) and isinstance(call.intrinsic, BulkIntrin):
            box = Box.of(call)
            found.setdefault((box.buffer, box.shape), box)
    return list(found.values())


@dataclass(frozen=True)
class Box:
    """Parts of a tensor of one shape, as a parameter of a kernel; their rows are swizzled."""

    buffer: Buffer
    shape: tuple[int, ...]

    @staticmethod
    def of(call: TensorCall) -> Box:
        return Box(call.inputs[0].buffer, call.intrinsic.operands[0].shape)

    @property
    def row_bytes(self) -> int:
        """Bytes of a row."""
        return self.shape[-1] * element_bytes(self.buffer.dtype)


def print_kernel(launch: Launch, params: Sequence[Buffer], written: set[Buffer], name: str,
                 dialect: Dialect) -> str:  # fmt: skip
    """The text of one kernel. ``params`` are its parameters, of which it stores to ``written``;
    :func:`boxes_of` it follow."""
    return _Printer(launch, dialect).kernel(params, written, name)


def print_module(kernels: Sequence[str], dialect: Dialect) -> str:
    """A file: what stands before all kernels, the functions that they call, and the kernels."""
    body = "\n".join(kernels)
    body = f"{functions_for(body)}\n{body}"
    used = {*_WORD.findall(body)}
    prelude = [
        line
        for line in dialect.prelude.splitlines()
        if not line.startswith("#define") or line.split()[1].partition("(")[0] in used
    ]
    return "\n".join((*prelude, "", body))


@dataclass
class _Printer:
    """``ranges`` are those of the variables in scope, ``names`` what they are called."""

    launch: Launch
    dialect: Dialect
    names: dict[object, str] = field(default_factory=dict)
    taken: set[str] = field(default_factory=set)
    ranges: dict[Expr, tuple[int, int]] = field(default_factory=dict)
    contract: bool = False
    #: What has been loaded at once: its text, of an element by a loop's variable.
    loaded: dict[Expr, tuple[str, Var]] = field(default_factory=dict)

    def kernel(self, params: Sequence[Buffer], written: set[Buffer], name: str) -> str:
        sizes = {t.axis: t.extent for t in self.launch.threads}
        x, y, z = (sizes.get(f"threadIdx.{axis}", 1) for axis in "xyz")
        head = self.dialect.kernel.format(threads=x * y * z, x=x, y=y, z=z)
        arguments = []
        for buffer in params:
            shape = self.dialect.pointer if buffer in written else self.dialect.constant_pointer
            text = shape.format(type=TYPES[buffer.dtype], name=self.fresh(buffer, buffer.name))
            arguments.append(text)
        for box in boxes_of(self.launch):
            name_of_map = self.fresh(box, f"{box.buffer.name}_map")
            arguments.append(f"const __grid_constant__ TensorMap {name_of_map}")
        lines = [f"// {self.launch.name}", f"{head} {name}({', '.join(arguments)}) {{"]
        for thread in self.launch.threads:
            level, _, axis = thread.axis.partition(".")
            form = self.dialect.index if level == "threadIdx" else self.dialect.block_index
            index = form.format(axis=axis, number="xyz".index(axis))
            self.names[thread.var] = short = ("t" if level == "threadIdx" else "b") + axis
            lines.append(f"  const i32 {short} = (i32){index};")
            self.ranges[thread.var] = (0, thread.extent - 1)
        lines += [f"  {line}" for line in self.shared()]
        lines += self.lines(self.launch.body, 1)
        return "\n".join([*lines, "}"]) + "\n"

    def shared(self) -> list[str]:
        """The declarations of what the threads of a block share. Beyond what a kernel has without
        asking they are parts of memory that the launch asks for."""
        places, size = shared_places(self.launch)
        if size <= SHARED_BYTES:
            return [f"{self.dialect.shared(b)} {self.declared(b)}" for b in places]
        if size > self.dialect.shared_bytes:
            raise VdlaError(
                f"kernel {self.launch.name}: {self.dialect.name} has {self.dialect.shared_bytes} "
                f"bytes of shared memory for a block, expected knobs that need less than {size}"
            )
        lines = [f"extern __shared__ __align__({SHARED_ALIGN}) u8 shared_bytes[];  // {size}"]
        for buffer, place in places.items():
            name, kind = self.fresh(buffer, buffer.name), TYPES[buffer.dtype]
            lines.append(f"{kind}* {name} = ({kind}*)(shared_bytes + {place});")
        return lines

    def fresh(self, thing: object, name: str) -> str:
        """A name that nothing in the kernel has."""
        base = c_name(name)
        found, number = base, 0
        while found in self.taken:
            number += 1
            found = f"{base}_{number}"
        self.taken.add(found)
        self.names[thing] = found
        return found

    def declared(self, buffer: Buffer) -> str:
        name = self.fresh(buffer, buffer.name)
        if buffer.scope in FRAGMENTS:
            kind = TYPES[buffer.dtype] if buffer.scope.endswith("_sums") else "u32"
            return f"{kind} {name}[{register_count(buffer)}];"
        return f"{TYPES[buffer.dtype]} {name}[{element_count(buffer)}];"

    # ---- statements ----

    def lines(self, stmt: Stmt, depth: int) -> list[str]:
        pad = "  " * depth
        match stmt:
            case Seq(stmts):
                return [line for s in stmts for line in self.lines(s, depth)]
            case For():
                return self.loop(stmt, depth)
            case If(cond, body):
                head = f"{pad}if ({self.value(cond)[0]}) {{"
                return [head, *self.lines(body, depth + 1), f"{pad}}}"]
            case Allocate(buffer=buffer, body=body):
                if buffer.scope == "shared":
                    return self.lines(body, depth)
                return [f"{pad}{self.declared(buffer)}", *self.lines(body, depth)]
            case Store(buffer, indices, value):
                target = self.element(buffer, indices)
                return [f"{pad}{target} = {self.value(value)[0]};"]
            case _ if isinstance(stmt, MARKS):
                return [pad + line for line in self.dialect.of_mark(stmt)]
            case SignalsReady(buffer):
                count = buffer.shape[0]
                return [f"{pad}signals_ready(&{self.names[buffer]}[0], {count});"]
            case SignalExpects(buffer, slot, size_bytes):
                return [f"{pad}signal_expects(&{self.element(buffer, (slot,))}, {size_bytes});"]
            case SignalArrived(buffer, slot, parity):
                signal = self.element(buffer, (slot,))
                return [f"{pad}signal_arrived(&{signal}, {self.index(parity)});"]
            case TensorCall(BulkIntrin()):
                return [f"{pad}{self.bulk_call(stmt)}"]
            case TensorCall(WarpIntrin() as intrinsic, variant, output, inputs):
                return [f"{pad}{self.tensor_call(intrinsic, variant, output, inputs)}"]
        raise VdlaError(f"kernel {self.launch.name}: no text for statement {stmt!r}")

    def bulk_call(self, call: TensorCall) -> str:
        """The engine stores swizzled rows from a place on that is the same without."""
        source, signal = call.inputs
        at = ", ".join(self.index(_narrow(start)) for start in reversed(source.start))
        target = self.index(_place(call.output.buffer, call.output.start))
        return (
            f"bulk_copy_{len(source.start)}d(&{self.names[call.output.buffer]}[{target}], "
            f"&{self.names[Box.of(call)]}, &{self.element(signal.buffer, signal.start)}, {at});"
        )

    def tensor_call(
        self, intrinsic: WarpIntrin, variant: str, output: Region, inputs: tuple[Region, ...]
    ) -> str:
        if not self.dialect.tensor_cores:
            raise VdlaError(
                f"kernel {self.launch.name}: {self.dialect.name} has no tensor cores, expected "
                f"other knobs than those that need {intrinsic.name}"
            )
        if variant == "init":
            kind = "f32" if output.buffer.dtype == "float32" else "i32"
            if intrinsic.threads == WARPGROUP:
                return f"clear_group_{kind}({self.fragment(output)}, {output.buffer.shape[-1]});"
            return f"clear_fragment_{kind}({self.fragment(output)});"
        function, regions = intrinsic.function, (output, *inputs)
        if any(r.buffer.swizzled for r in inputs) and not intrinsic.asynchronous:
            function = function.replace("fragment", "swizzled")
        arguments = [self.operand(intrinsic, r, r is output) for r in regions]
        return f"{function}({', '.join(arguments)});"

    def operand(self, intrinsic: WarpIntrin, region: Region, is_stored: bool) -> str:
        if region.buffer.scope in FRAGMENTS:
            return self.fragment(region)
        if region.buffer.swizzled:
            matrix = self.swizzled_tile(region)
            return f"matrix_of({matrix})" if intrinsic.asynchronous else matrix
        tile = self.tile(region, is_stored)
        is_group = is_stored and intrinsic.threads == WARPGROUP
        return f"{tile}, {intrinsic.behaviour.shape[1]}" if is_group else tile

    def swizzled_tile(self, region: Region) -> str:
        """A tile of swizzled rows: the buffer, the tile's first byte as if they were not, the bytes
        of a row."""
        buffer = region.buffer
        first = self.index(_place(buffer, region.start) * element_bytes(buffer.dtype))
        return f"{self.names[buffer]}, {first}, {buffer.row_bytes}"

    def fragment(self, region: Region) -> str:
        return f"&{self.names[region.buffer]}[{self.index(first_register(region))}]"

    def tile(self, region: Region, is_stored: bool) -> str:
        """A tile of shared memory: its first element, and its row in bytes, or in elements where it
        is stored to."""
        row = region.buffer.strides[-2]
        row *= 1 if is_stored else element_bytes(region.buffer.dtype)
        return f"&{self.element(region.buffer, region.start)}, {row}"

    def vector(self, loop: For, vector: Vector, depth: int) -> list[str]:
        """A loop over elements side by side as one access of 4, 8 or 16 bytes; nothing where the
        language has none."""
        if vector.guard is not None:
            inner = self.vector(loop, replace(vector, guard=None), depth + 1)
            pad = "  " * depth
            return [f"{pad}if ({self.value(vector.guard)[0]}) {{", *inner, f"{pad}}}"]
        pad, store, read = "  " * depth, vector.store, vector.source
        to = f"&{self.first(loop, store.buffer, store.indices)}"
        if read is None:
            return self.computed_vector(loop, vector, to, depth)
        source = f"&{self.first(loop, read.source, read.indices)}"
        exists = "1" if vector.exists is None else self.value(vector.exists)[0]
        if self.is_async(loop, vector):
            return [f"{pad}copy_async_{vector.size}({to}, {source}, {exists});"]
        copy = self.dialect.copy(vector.size, to, source, store.buffer, read.source)
        if vector.exists is None:
            return [pad + copy]
        clear = self.dialect.clear(vector.size, to, store.buffer)
        return [f"{pad}if ({exists}) {copy}", f"{pad}else {clear}"]

    def is_async(self, loop: For, vector: Vector) -> bool:
        """Whether a copy is asynchronous: where it may be, from main memory to shared memory."""
        assert vector.source is not None
        scopes = vector.source.source.scope, vector.store.buffer.scope
        may = ASYNC in loop.pragmas and self.dialect.copies_async
        return may and scopes == ("global", "shared")

    def first(self, loop: For, buffer: Buffer, indices: Sequence[Expr]) -> str:
        """The element of a loop's first iteration."""
        return self.element(buffer, tuple(substitute(i, {loop.var: Const(0)}) for i in indices))

    def computed_vector(self, loop: For, vector: Vector, to: str, depth: int) -> list[str]:
        """Values that are computed one by one, and stored at once."""
        pad, store = "  " * depth, vector.store
        outside, before = dict(self.loaded), set(self.taken)
        loads = [self.load(read, loop, f"{pad}  ") for read in loads_of(vector, loop)]
        name, var = self.fresh(vector, "values"), self.fresh(loop.var, loop.var.name)
        self.ranges[loop.var] = (0, loop.extent - 1)
        lines = [
            f"{pad}{{",
            *(line for lines in loads for line in lines),
            f"{pad}  {self.dialect.aligned} {TYPES[store.buffer.dtype]} {name}[{loop.extent}];",
            f"{pad}  {self.dialect.unroll}",
            f"{pad}  for (i32 {var} = 0; {var} < {loop.extent}; ++{var}) {{",
            f"{pad}    {name}[{var}] = {self.value(store.value)[0]};",
            f"{pad}  }}",
            f"{pad}  {self.dialect.copy(vector.size, to, name, store.buffer, None)}",
            f"{pad}}}",
        ]
        self.taken, self.loaded = before, outside
        return lines

    def load(self, read: Read, loop: For, pad: str) -> list[str]:
        """Elements side by side at once, to an array of the thread's own."""
        kind, size = TYPES[read.source.dtype], loop.extent * element_bytes(read.source.dtype)
        name = self.fresh(read, f"{self.names[read.source]}_values")
        self.loaded[read] = f"{name}[{{}}]", loop.var
        source = f"&{self.first(loop, read.source, read.indices)}"
        return [
            f"{pad}{self.dialect.aligned} {kind} {name}[{loop.extent}];",
            pad + self.dialect.copy(size, name, source, None, read.source),
        ]

    def loop(self, loop: For, depth: int) -> list[str]:
        pad, outside = "  " * depth, self.contract
        if loop.kind == "vectorized":
            found = vector_of(loop)
            if found is not None:
                return self.vector(loop, found, depth)
        self.contract |= ("contract", True) in loop.pragmas
        name = self.fresh(loop.var, loop.var.name)
        self.ranges[loop.var] = (0, loop.extent - 1)
        head = [f"{pad}for (i32 {name} = 0; {name} < {loop.extent}; ++{name}) {{"]
        if loop.kind in ("unrolled", "vectorized"):
            head.insert(0, pad + self.dialect.unroll)
        body = self.lines(loop.body, depth + 1)
        self.taken.discard(name)  # the loops that follow may have the same name
        self.contract = outside
        return [*head, *body, f"{pad}}}"]

    # ---- expressions ----

    def element(self, buffer: Buffer, indices: Sequence[Expr]) -> str:
        place = self.index(_place(buffer, indices))
        if buffer.swizzled:
            place = f"swizzled({place}, {buffer.swizzle_mask})"
        return f"{self.names[buffer]}[{place}]"

    def index(self, expr: Expr) -> str:
        """An index, which is small enough for int: terms and their coefficients."""
        form = affine(expr)
        text = ""
        for term, coefficient in form.terms:
            factor = self.inside(term, _PRECEDENCE["*"])
            part = factor if abs(coefficient) == 1 else f"{factor} * {abs(coefficient)}"
            sign = "-" if coefficient < 0 else "+"
            text = f"{text} {sign} {part}" if text else (f"-{part}" if sign == "-" else part)
        if not text:
            return str(form.constant)
        if form.constant:
            text += f" {'-' if form.constant < 0 else '+'} {abs(form.constant)}"
        return text

    def inside(self, expr: Expr, level: int) -> str:
        """An expression, in parentheses where it binds weaker."""
        text, binds = self.value(expr)
        return text if binds >= level else f"({text})"

    def infix(self, op: str, a: Expr, b: Expr) -> _Text:
        level = _PRECEDENCE[op]
        return f"{self.inside(a, level)} {op} {self.inside(b, level + 1)}", level

    def called(self, name: str, *args: Expr) -> _Text:
        return f"{name}({', '.join(self.value(a)[0] for a in args)})", _ATOM

    def value(self, expr: Expr) -> _Text:
        match expr:
            case Var():
                return self.names[expr], _ATOM
            case Const(value, dtype):
                return _constant(value, dtype)
            case Read() if expr in self.loaded:
                form, var = self.loaded[expr]
                return form.format(self.names[var]), _ATOM
            case Read(source, indices):
                return self.element(source, indices), _ATOM
            case Select(cond, a, b):
                chosen = self.inside(a, 1), self.inside(b, 1)
                return f"{self.inside(cond, 1)} ? {chosen[0]} : {chosen[1]}", _TERNARY
            case Cast(dtype, a):
                return self.cast(dtype, a)
            case Call(name, args):
                return self.call(expr, name, args)
            case Binary("+", a, Binary("*", b, c)) if self.contract and a.dtype in FLOAT_DTYPES:
                return self.called(f"fma_f{a.dtype[5:]}", b, c, a)
            case Binary(op, a, b) if a.dtype in FLOAT_DTYPES:
                if op in ("min", "max"):
                    return self.called(f"{op}_f{a.dtype[5:]}", a, b)
                return self.infix(op, a, b)
            case Binary():
                return self.integer(expr)
        raise VdlaError(f"kernel {self.launch.name}: no text for {expr_text(expr)}")

    def integer(self, expr: Binary) -> _Text:
        """An operation on integers or conditions, which wraps."""
        op, a, b, dtype = expr.op, expr.a, expr.b, expr.a.dtype
        if dtype == "bool":
            return self.infix({"&": "&&", "|": "||"}.get(op, op), a, b) if op in (
                "&", "|", "==", "<", "<=") else self.called(f"{op}_u8", a, b)  # fmt: skip
        kind = TYPES[dtype]
        match op:
            case "<" | "<=" | "==" | "&" | "|":
                return self.infix(op, a, b)
            case "min" | "max":
                return self.called(f"{op}_{kind}", a, b)
            case "//" | "%":
                return self.divided(expr)
            case ">>" if isinstance(b, Const) and 0 <= b.value < bits_of(dtype):
                return self.infix(op, a, b)
            case "<<" | ">>":
                return self.called(f"sh{'l' if op == '<<' else 'r'}_{kind}", a, b)
        if is_of_loops(expr) or not self.may_wrap(expr):
            return self.infix(op, a, b)
        if dtype == "uint32" or dtype == "uint64":
            return self.infix(op, a, b)
        if bits_of(dtype) < 32:
            text, _ = self.infix(op, a, b)
            return f"({kind})({text})", _CAST
        level = _PRECEDENCE[op]
        wide = f"u{bits_of(dtype)}"
        left, right = (f"({wide}){self.inside(e, _CAST)}" for e in (a, b))
        return f"({kind})({left} {op} {right})", max(level, _CAST)

    def may_wrap(self, expr: Binary) -> bool:
        """Whether a sum or product may not fit its type."""
        if expr.dtype not in ("int32", "int64"):
            return True
        found = _values(expr, self.ranges)
        low, high = integer_range(expr.dtype)
        return found is None or found[0] < low or found[1] > high

    def divided(self, expr: Binary) -> _Text:
        kind = TYPES[expr.a.dtype]
        if not isinstance(expr.b, Const) or expr.b.value <= 0:
            raise VdlaError(
                f"kernel {self.launch.name}: operator {expr.op} expects a positive constant "
                f"divisor, got {expr_text(expr)}"
            )
        bounds = interval(expr.a, self.ranges) if is_of_loops(expr.a) else None
        if kind[0] == "u" or (bounds is not None and bounds[0] >= 0):
            return self.infix("/" if expr.op == "//" else "%", expr.a, expr.b)
        return self.called(f"floor_{'div' if expr.op == '//' else 'mod'}_{kind}", expr.a, expr.b)

    def cast(self, dtype: str, a: Expr) -> _Text:
        kind = TYPES[dtype]
        if dtype in HALF_DTYPES:
            return self.called(f"{dtype}_of", a)
        if a.dtype in HALF_DTYPES:
            return self.called(f"of_{a.dtype}", a)
        if a.dtype in FLOAT_DTYPES and dtype in INT_DTYPES:
            helper = "to_small" if _is_small(a) else "to_i64"
            text, _ = self.called(f"{helper}_f{a.dtype[5:]}", a)
            return f"({kind}){text}", _CAST
        if dtype == "bool":
            zero = Const(0.0 if a.dtype in FLOAT_DTYPES else 0, a.dtype)
            level = _PRECEDENCE["=="]
            return f"{self.inside(a, level)} != {self.inside(zero, level + 1)}", level
        return f"({kind}){self.inside(a, _CAST)}", _CAST

    def call(self, expr: Call, name: str, args: tuple[Expr, ...]) -> _Text:
        dtype = expr.dtype
        match name:
            case "requantize" | "rescale":
                text, binds = self.called("requantize", *args)
                return (f"(i32){text}", _CAST) if dtype == "int32" else (text, binds)
            case _ if name in _FUNCTIONS_OF_ARGS:
                return self.called(name, *args)
            case "popcount":
                text, _ = self.called(f"popcount_{max(32, bits_of(dtype))}", *args)
                return f"({TYPES[dtype]}){text}", _CAST
            case "reinterpret":
                return self.called(f"reinterpret_{TYPES[dtype]}", *args)
            case "divide" | "remainder" if dtype in INT_DTYPES:
                return self.called(f"{name}_{TYPES[dtype]}", *args)
        named = {"round": "rint", "remainder": "fmod"}.get(name, name)
        return self.called(f"{named}_f{dtype[5:]}", *args)


def _place(buffer: Buffer, indices: Sequence[Expr]) -> Expr:
    """Where an element is in a buffer that is not swizzled."""
    total: Expr = Const(0)
    for index, stride in zip(indices, buffer.strides, strict=True):
        total = total + _narrow(index) * stride
    return total


def _narrow(index: Expr) -> Expr:
    """An index in int32: indices lie within their buffers."""
    return index if index.dtype == "int32" else Cast("int32", index)


def _constant(value: Any, dtype: str) -> _Text:
    if dtype == "bool":
        return ("1" if value else "0"), _ATOM
    if dtype in HALF_DTYPES:
        return f"0x{np.dtype(dtype).type(value).view(np.uint16):04x}", _ATOM
    if dtype not in FLOAT_DTYPES:
        return _integer_constant(int(value), dtype)
    number = np.dtype(dtype).type(value)
    if not np.isfinite(number):
        if dtype == "float64":
            text = "0.0 / 0.0" if np.isnan(number) else f"{'-' if number < 0 else ''}1.0 / 0.0"
            return f"({text})", _ATOM
        return f"float_of(0x{number.view(np.uint32):08x}u)", _ATOM
    text = repr(float(number)) if dtype == "float64" else f"{np.format_float_positional(number)}f"
    if dtype == "float32" and not 1e-4 <= abs(number) < 1e7 and number:
        text = f"{np.format_float_scientific(number)}f"
    return text, (_ATOM if not text.startswith("-") else _PRECEDENCE["*"])


def _integer_constant(value: int, dtype: str) -> _Text:
    bits = bits_of(dtype)
    if value == -(1 << (bits - 1)) and bits >= 32:
        return f"(({TYPES[dtype]})((u{bits})1 << {bits - 1}))", _ATOM
    if bits == 64:
        text = f"({TYPES[dtype]}){abs(value)}" + ("u" if dtype[0] == "u" else "")
        if not -(2**31) < value < 2**31:
            text = f"(({TYPES[dtype]})0x{abs(value):x}ul)"
        return (text, _CAST) if value >= 0 else (f"-{text}", _PRECEDENCE["*"])
    text = f"{value}u" if dtype == "uint32" else str(value)
    return text, (_ATOM if value >= 0 else _PRECEDENCE["*"])


def _values(expr: Expr, ranges: Mapping[Expr, tuple[int, int]]) -> tuple[int, int] | None:
    """Bounds of an integer expression: of loops, and of products and sums of narrow elements."""
    if is_of_loops(expr):
        return interval(expr, ranges)
    match expr:
        case Const(value):
            return int(value), int(value)
        case Cast(_, a) if a.dtype in INT_DTYPES and expr.dtype in INT_DTYPES:
            found = _values(a, ranges) or integer_range(a.dtype)
            low, high = integer_range(expr.dtype)
            return found if low <= found[0] and found[1] <= high else None
        case Read(source) if source.dtype in INT_DTYPES:
            return integer_range(source.dtype)
        case Binary("+" | "-" | "*" as op, a, b):
            left, right = _values(a, ranges), _values(b, ranges)
            if left is None or right is None:
                return None
            if op == "+":
                return left[0] + right[0], left[1] + right[1]
            if op == "-":
                return left[0] - right[1], left[1] - right[0]
            ends = [x * y for x in left for y in right]
            return min(ends), max(ends)
        case Select(_, a, b):
            left, right = _values(a, ranges), _values(b, ranges)
            if left is None or right is None:
                return None
            return min(left[0], right[0]), max(left[1], right[1])
    return None


def _is_small(expr: Expr) -> bool:
    """Whether an expression clamps a float to values within int32."""
    match expr:
        case Binary("min", Binary("max", _, Const(low)), Const(high)):
            return -(2**30) <= low and high <= 2**30
    return False
