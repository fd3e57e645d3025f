"""Kernels as text: one printer of the thread-level program, in CUDA C++ or OpenCL C.

The text computes what the program says, down to the bit: integers wrap, shifts of the width or more
shift everything out, ``//`` and ``%`` floor, floats are IEEE. Inside a loop with the pragma
"contract", a product and a sum of floats are one fused multiply-add, which the text says; nothing
else may be contracted.
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace

from ....isa.errors import VdlaError
from ...te import expr as E
from ...te.affine import Affine, affine, from_affine
from ...tir import ir as T
from ...tir.passes.bulk import BulkIntrin
from ...tir.passes.pipeline import ASYNC
from .dialects import Dialect
from .expressions import PRECEDENCE, Expressions, narrow, place_in
from .functions import TYPES, functions_for, is_taken
from .overlays import find_alignment, shared_memory
from .scopes import FRAGMENTS, SHARED_ALIGN, SHARED_BYTES, WARPGROUP, element_bytes, element_count
from .tensor_cores import WarpIntrin, first_register, register_count
from .vectors import Vector, find_copy, find_loads, find_vector

_WORD = re.compile(r"\w+")


def c_name(name: str) -> str:
    """A name of the model as an identifier of C."""
    found = "".join(c if c.isascii() and c.isalnum() else "_" for c in name)
    found = found if found[:1].isalpha() else f"k_{found}"
    return f"{found}_" if is_taken(found) else found


def find_boxes(launch: T.Launch) -> list[Box]:
    """The boxes that the copy engine brings, each once."""
    found: dict[tuple[T.Buffer, tuple[int, ...]], Box] = {}
    for call in T.walk_stmt(launch.body):
        if isinstance(call, T.TensorCall) and isinstance(call.intrinsic, BulkIntrin):
            box = Box.of(call)
            found.setdefault((box.buffer, box.shape), box)
    return list(found.values())


@dataclass(frozen=True)
class Box:
    """Parts of a tensor of one shape, as a parameter of a kernel; their rows are swizzled."""

    buffer: T.Buffer
    shape: tuple[int, ...]

    @staticmethod
    def of(call: T.TensorCall) -> Box:
        return Box(call.inputs[0].buffer, call.intrinsic.operands[0].shape)

    @property
    def row_bytes(self) -> int:
        """Bytes of a row."""
        return self.shape[-1] * element_bytes(self.buffer.dtype)


def print_kernel(launch: T.Launch, params: Sequence[T.Buffer], written: set[T.Buffer], name: str,
                 dialect: Dialect) -> str:  # fmt: skip
    """The text of one kernel. ``params`` are its parameters, of which it stores to ``written``;
    :func:`find_boxes` it follow."""
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


class _Printer(Expressions):
    """Prints the statements of a kernel."""

    def kernel(self, params: Sequence[T.Buffer], written: set[T.Buffer], name: str) -> str:
        sizes = {t.axis: t.extent for t in self.launch.threads}
        x, y, z = (sizes.get(f"threadIdx.{axis}", 1) for axis in "xyz")
        head = self.dialect.kernel.format(threads=x * y * z, x=x, y=y, z=z)
        arguments = []
        for buffer in params:
            shape = self.dialect.pointer if buffer in written else self.dialect.constant_pointer
            text = shape.format(type=TYPES[buffer.dtype], name=self.fresh(buffer, buffer.name))
            arguments.append(text)
        for box in find_boxes(self.launch):
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
        found = shared_memory(self.launch)
        size = found.size_bytes
        if size > self.dialect.shared_bytes:
            raise VdlaError(
                f"kernel {self.launch.name}: {self.dialect.name} has {self.dialect.shared_bytes} "
                f"bytes of shared memory for a block, expected knobs that need less than {size}"
            )
        if size <= SHARED_BYTES and not found.overlaid:
            return [
                f"{self.dialect.shared.format(align=find_alignment(b))} {self.declared(b)}"
                for b in found.places
            ]
        whole = f"{self.dialect.shared.format(align=SHARED_ALIGN)} u8 shared_bytes"
        lines = [f"{whole}[{size}];" if size <= SHARED_BYTES else f"extern {whole}[];  // {size}"]
        for buffer, place in found.places.items():
            pointer = self.dialect.shared_pointer.format(type=TYPES[buffer.dtype])
            name = self.fresh(buffer, buffer.name)
            lines.append(f"{pointer} {name} = ({pointer})(shared_bytes + {place});")
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

    def declared(self, buffer: T.Buffer) -> str:
        name = self.fresh(buffer, buffer.name)
        if buffer.scope in FRAGMENTS:
            kind = TYPES[buffer.dtype] if buffer.scope.endswith("_sums") else "u32"
            return f"{kind} {name}[{register_count(buffer)}];"
        kind = TYPES[buffer.dtype]
        kind = f"{self.dialect.aligned} {kind}" if buffer.scope == "local" else kind
        return f"{kind} {name}[{element_count(buffer)}];"

    # ---- statements ----

    def lines(self, stmt: T.Stmt, depth: int) -> list[str]:
        pad = "  " * depth
        match stmt:
            case T.Seq(stmts):
                return [line for s in stmts for line in self.lines(s, depth)]
            case T.For():
                return self.loop(stmt, depth)
            case T.If(cond, body):
                head = f"{pad}if ({self.value(cond)[0]}) {{"
                return [head, *self.lines(body, depth + 1), f"{pad}}}"]
            case T.Allocate(buffer=buffer, body=body):
                if buffer.scope == "shared":
                    return self.lines(body, depth)
                return [f"{pad}{self.declared(buffer)}", *self.lines(body, depth)]
            case T.Store(buffer, indices, value):
                target = self.element(buffer, indices)
                copy = find_copy(stmt)
                if copy is not None and self.is_async(copy):
                    return [pad + self.async_copy(copy, {})]
                return [f"{pad}{target} = {self.value(value)[0]};"]
            case T.Mark():
                return [pad + line for line in self.dialect.of_mark(stmt)]
            case T.SignalsReady(buffer):
                count = buffer.shape[0]
                return [f"{pad}signals_ready(&{self.names[buffer]}[0], {count});"]
            case T.SignalExpects(buffer, slot, size_bytes):
                return [f"{pad}signal_expects(&{self.element(buffer, (slot,))}, {size_bytes});"]
            case T.SignalArrived(buffer, slot, parity):
                signal = self.element(buffer, (slot,))
                return [f"{pad}signal_arrived(&{signal}, {self.index(parity)});"]
            case T.TensorCall(BulkIntrin()):
                return [f"{pad}{self.bulk_call(stmt)}"]
            case T.TensorCall(WarpIntrin() as intrinsic, variant, output, inputs):
                return [f"{pad}{self.tensor_call(intrinsic, variant, output, inputs)}"]
        raise VdlaError(f"kernel {self.launch.name}: no text for statement {stmt!r}")

    def bulk_call(self, call: T.TensorCall) -> str:
        """The engine stores swizzled rows from a place on that is the same without."""
        source, signal = call.inputs
        at = ", ".join(self.index(narrow(start)) for start in reversed(source.start))
        target = self.index(place_in(call.output.buffer, call.output.start))
        return (
            f"bulk_copy_{len(source.start)}d(&{self.names[call.output.buffer]}[{target}], "
            f"&{self.names[Box.of(call)]}, &{self.element(signal.buffer, signal.start)}, {at});"
        )

    def tensor_call(
        self, intrinsic: WarpIntrin, variant: str, output: T.Region, inputs: tuple[T.Region, ...]
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

    def operand(self, intrinsic: WarpIntrin, region: T.Region, is_stored: bool) -> str:
        if region.buffer.scope in FRAGMENTS:
            return self.fragment(region)
        if region.buffer.swizzled:
            matrix = self.swizzled_tile(region)
            return f"matrix_of({matrix})" if intrinsic.asynchronous else matrix
        tile = self.tile(region, is_stored)
        is_group = is_stored and intrinsic.threads == WARPGROUP
        return f"{tile}, {intrinsic.behaviour.shape[1]}" if is_group else tile

    def swizzled_tile(self, region: T.Region) -> str:
        """A tile of swizzled rows: the buffer, the tile's first byte as if they were not, the bytes
        of a row."""
        buffer = region.buffer
        first = self.index(place_in(buffer, region.start) * element_bytes(buffer.dtype))
        return f"{self.names[buffer]}, {first}, {buffer.row_bytes}"

    def fragment(self, region: T.Region) -> str:
        return f"&{self.names[region.buffer]}[{self.index(first_register(region))}]"

    def tile(self, region: T.Region, is_stored: bool) -> str:
        """A tile of shared memory: its first element, and its row in bytes, or in elements where it
        is stored to."""
        row = region.buffer.strides[-2]
        row *= 1 if is_stored else element_bytes(region.buffer.dtype)
        return f"&{self.element(region.buffer, region.start)}, {row}"

    def vector(self, loop: T.For, vector: Vector, depth: int) -> list[str]:
        """A loop over elements side by side as one access of 4, 8 or 16 bytes; nothing where the
        language has none."""
        if vector.guard is not None:
            inner = self.vector(loop, replace(vector, guard=None), depth + 1)
            pad = "  " * depth
            return [f"{pad}if ({self.value(vector.guard)[0]}) {{", *inner, f"{pad}}}"]
        pad, store, read = "  " * depth, vector.store, vector.source
        first = {loop.var: E.Const(0)}
        to = f"&{self.element(store.buffer, _at(store.indices, first))}"
        if read is None:
            return self.computed_vector(loop, vector, to, depth)
        if self.is_async(vector):
            return [pad + self.async_copy(vector, first)]
        source = f"&{self.element(read.source, _at(read.indices, first))}"
        copy = self.dialect.copied(vector.size, to, source, store.buffer, read.source)
        if vector.exists is None:
            return [pad + copy]
        clear = self.dialect.cleared(vector.size, to, store.buffer)
        return [f"{pad}if ({self.value(vector.exists)[0]}) {copy}", f"{pad}else {clear}"]

    def is_async(self, copy: Vector) -> bool:
        """Whether a copy is asynchronous: where it may be, from main memory to shared memory."""
        assert copy.source is not None
        scopes = copy.source.source.scope, copy.store.buffer.scope
        return self.asynchronous and self.dialect.copies_async and scopes == ("global", "shared")

    def async_copy(self, copy: Vector, first: Mapping[E.Var, E.Expr]) -> str:
        """The statement; its loop's variable has a ``first`` value."""
        assert copy.source is not None
        ends = (copy.store.buffer, copy.store.indices), (copy.source.source, copy.source.indices)
        addresses = ", ".join(self.address(buffer, _at(at, first)) for buffer, at in ends)
        exists = "1" if copy.exists is None else self.all_at_once(copy.exists)
        return f"copy_async_{copy.size}({addresses}, {exists});"

    def all_at_once(self, cond: E.Expr) -> str:
        """A condition of which no part is left out, as ``&&`` would by a jump."""
        if any(isinstance(node, E.Read) for node in E.walk(cond)):
            return self.value(cond)[0]
        parts, found = [cond], list[str]()
        while parts:
            match parts.pop():
                case E.Binary("&", a, b):
                    parts += [b, a]
                case part:
                    found.append(self.inside(part, PRECEDENCE["=="]))
        return " & ".join(found)

    def address(self, buffer: T.Buffer, indices: Sequence[E.Expr]) -> str:
        """The address of an element. What unrolled loops add to it stands apart: compilers see a
        number that fits the instruction, and compute one address for all iterations."""
        if buffer.swizzled:
            return f"&{self.element(buffer, indices)}"
        form = affine(place_in(buffer, indices))
        added = Affine(0, tuple(t for t in form.terms if t[0] in self.unrolled))
        rest = replace(form, terms=tuple(t for t in form.terms if t not in added.terms))
        first = f"&{self.names[buffer]}[{self.index(from_affine(rest))}]"
        return f"{first} + ({self.index(from_affine(added))})" if added.terms else first

    def computed_vector(self, loop: T.For, vector: Vector, to: str, depth: int) -> list[str]:
        """Values that are computed one by one, and stored at once."""
        pad, store = "  " * depth, vector.store
        outside, before = dict(self.loaded), set(self.taken)
        loads = [self.load(read, loop, f"{pad}  ") for read in find_loads(vector, loop)]
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
            f"{pad}  {self.dialect.copied(vector.size, to, name, store.buffer, None)}",
            f"{pad}}}",
        ]
        self.taken, self.loaded = before, outside
        return lines

    def load(self, read: E.Read, loop: T.For, pad: str) -> list[str]:
        """Elements side by side at once, to an array of the thread's own."""
        kind, size = TYPES[read.source.dtype], loop.extent * element_bytes(read.source.dtype)
        name = self.fresh(read, f"{self.names[read.source]}_values")
        self.loaded[read] = f"{name}[{{}}]", loop.var
        first = _at(read.indices, {loop.var: E.Const(0)})
        source = f"&{self.element(read.source, first)}"
        return [
            f"{pad}{self.dialect.aligned} {kind} {name}[{loop.extent}];",
            pad + self.dialect.copied(size, name, source, None, read.source),
        ]

    def loop(self, loop: T.For, depth: int) -> list[str]:
        outside = self.contract, self.asynchronous
        self.contract |= ("contract", True) in loop.pragmas
        self.asynchronous |= ASYNC in loop.pragmas
        lines = self.iterations(loop, depth)
        self.contract, self.asynchronous = outside
        return lines

    def iterations(self, loop: T.For, depth: int) -> list[str]:
        pad = "  " * depth
        if loop.kind == "vectorized":
            found = find_vector(loop)
            if found is not None:
                return self.vector(loop, found, depth)
        name = self.fresh(loop.var, loop.var.name)
        self.ranges[loop.var] = (0, loop.extent - 1)
        head = [f"{pad}for (i32 {name} = 0; {name} < {loop.extent}; ++{name}) {{"]
        if loop.kind in ("unrolled", "vectorized"):
            self.unrolled.add(loop.var)
            head.insert(0, pad + self.dialect.unroll)
        body = self.lines(loop.body, depth + 1)
        self.taken.discard(name)  # the loops that follow may have the same name
        return [*head, *body, f"{pad}}}"]


def _at(indices: Sequence[E.Expr], values: Mapping[E.Var, E.Expr]) -> tuple[E.Expr, ...]:
    """Indices where variables have these values."""
    return tuple(E.substitute(i, values) for i in indices)
