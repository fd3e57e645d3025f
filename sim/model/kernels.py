"""What instructions do, as machine code: one LLVM function for each opcode, and one that executes a
list of instructions.

``isa/reference.py`` defines what they mean; this does the same, fast. A kernel takes an instruction
as a row of int64, the values of its bit fields in the order of its layout, and returns whether
every access lies inside its memory; if not, it has changed nothing.
"""

from __future__ import annotations

from functools import reduce

from llvmlite import ir

from ...isa.encoding import layout, uop_layout
from ...isa.opcodes import DST_MEMORIES, LOADABLE, SRC0_MEMORIES, SRC1_MEMORIES, Opcode
from ...isa.params import MEMORIES, HwParams
from ...isa.vector_ops import POST_OPS, TABLE_VALUES, VectorOp, operators
from .llvm_kit import (
    I1,
    I8,
    I16,
    I32,
    I64,
    POINTER,
    ROUNDINGS,
    Code,
    LlvmKit,
    Value,
    constant,
    splat,
    vector,
)

#: What the table of pointers holds: the scratchpads, DRAM, the registers that PARAM sets (int32:
#: bias, multiplier and shift per channel, then zero point, lo, hi), the weights in the order in
#: which the tensor core's kernel reads them (int16 [entry, pair of inputs, output, 2]), and
#: the table (int8 or int16 [256]).
POINTERS = (*MEMORIES, "dram", "registers", "pairs", "table")


def build_module(params: HwParams) -> ir.Module:
    """All kernels, and ``run(table, order, count, pointers, dram_bytes)``: it executes the rows of
    a table that ``order`` lists, and returns how many it has executed before one accessed beyond
    its memory.
    """
    module = ir.Module("values")
    kernels: dict[int, Kernel] = {
        kernel.opcode: kernel(module, params)
        for kernel in (Load, Gemm, Vector, Param, Store, Table)
    }
    code = Code(module, "run", I64, POINTER, POINTER, I64, POINTER, I64)
    table, order, count, pointers, dram_bytes = code.function.args
    with code.loop(count) as number:
        index = code.read(order, number, I64)
        columns = max(len(layout(opcode, params)) for opcode in Opcode)
        row = code.at(table, code.b.mul(index, I64(columns)), I64)
        cases = {
            int(opcode): lambda kernel=kernel: code.b.call(
                kernel.function, [row, pointers, dram_bytes]
            )
            for opcode, kernel in kernels.items()
        }
        fits = code.choose(code.read(row, I64(0), I64), cases)
        with code.b.if_then(code.b.not_(fits), likely=False):
            code.b.ret(number)
    code.b.ret(count)
    return module


class Kernel(Code):
    """The function of one opcode; ``f`` has the values of the instruction's fields."""

    opcode: Opcode

    def __init__(self, module: ir.Module, params: HwParams):
        super().__init__(module, self.opcode.name.lower(), I1, POINTER, POINTER, I64)
        self.function.linkage = "internal"
        self.params, self.block = params, params.block
        row, self.pointers, self.dram_bytes = self.function.args
        self.f = {
            field.name: self.read(row, I64(position), I64)
            for position, field in enumerate(layout(self.opcode, params))
        }
        self.body()
        self.b.ret(I1(1))

    def body(self) -> None:
        """What the instruction does."""
        raise NotImplementedError

    def memory(self, name: str) -> Value:
        """The address of one of ``POINTERS``."""
        return self.read(self.pointers, I64(POINTERS.index(name)), POINTER)

    def fail_if(self, condition: Value) -> None:
        """Leave the function where an access is out of range."""
        with self.b.if_then(condition, likely=False):
            self.b.ret(I1(0))

    def fail_beyond_dram(self, row_bytes: Value) -> None:
        """Leave the function where a row of a transfer ends beyond DRAM."""
        b, f = self.b, self.f
        end = self.affine(
            b.add(f["dram_addr"], row_bytes),
            (b.sub(f["z_size"], I64(1)), f["z_stride"]),
            (b.sub(f["y_size"], I64(1)), f["y_stride"]),
        )
        moves = b.icmp_signed(">", f["y_size"], I64(0))
        self.fail_if(b.and_(moves, b.icmp_signed(">", end, self.dram_bytes)))

    def dram_row(self, z: Value, y: Value) -> Value:
        """The address of a row of a transfer."""
        f = self.f
        return self.at(
            self.memory("dram"),
            self.affine(f["dram_addr"], (z, f["z_stride"]), (y, f["y_stride"])),
            I8,
        )

    def copy(self, target: Value, source: Value, count_bytes: Value) -> None:
        """Copy bytes that do not overlap."""
        kinds = [POINTER, POINTER, I64]
        copy = self.b.module.declare_intrinsic("llvm.memcpy", kinds)
        self.b.call(copy, [target, source, count_bytes, I1(0)])


class Load(Kernel):
    """Rows from DRAM and padding, one after the other."""

    opcode = Opcode.LOAD

    def body(self) -> None:
        b, f, params = self.b, self.f, self.params
        widens = b.icmp_signed("!=", f["widen"], I64(0))
        is_wgt = b.icmp_signed("==", f["memory"], I64(LOADABLE.index("wgt")))
        packed = b.and_(widens, is_wgt)
        wide = b.and_(widens, b.not_(is_wgt))

        def per_memory(values: dict[str, Value]) -> Value:
            cases = {code: lambda n=name: values[n] for code, name in enumerate(LOADABLE)}
            return self.choose(f["memory"], cases)

        entry_bytes = per_memory({name: I64(params.entry_bytes(name)) for name in LOADABLE})
        dram_entry_bytes = b.select(wide, I64(self.block), entry_bytes)
        if params.packed_weights:
            packed_bytes = I64(params.dram_entry_bytes("wgt", 1))
            dram_entry_bytes = b.select(packed, packed_bytes, dram_entry_bytes)
        row_bytes = b.mul(f["x_size"], dram_entry_bytes)
        self.fail_beyond_dram(row_bytes)
        base = per_memory({name: self.memory(name) for name in LOADABLE})
        cursor = self.variable(f["base"])

        def target(entries: Value) -> Value:
            """The place of the next entries."""
            position = b.load(cursor, typ=I64)
            b.store(b.add(position, entries), cursor)
            return self.at(base, b.mul(position, entry_bytes), I8)

        def pad(entries: Value) -> None:
            with b.if_then(b.icmp_signed(">", entries, I64(0))):
                place = target(entries)
                with b.if_else(wide) as (widened, plain):
                    with widened, self.loop(b.mul(entries, I64(self.block))) as i:
                        self.write(place, i, b.trunc(f["pad_value"], I32))
                    with plain:
                        fill = b.module.declare_intrinsic("llvm.memset", [POINTER, I64])
                        size = b.mul(entries, entry_bytes)
                        b.call(fill, [place, b.trunc(f["pad_value"], I8), size, I1(0)])

        row_entries = b.add(b.add(f["pad_left"], f["x_size"]), f["pad_right"])
        with self.loop(f["z_size"]) as z:
            pad(b.mul(f["pad_top"], row_entries))
            with self.loop(f["y_size"]) as y:
                pad(f["pad_left"])
                place, source = target(f["x_size"]), self.dram_row(z, y)
                with b.if_else(wide) as (widened, plain):
                    with widened, self.loop(row_bytes) as i:
                        self.write(place, i, b.sext(self.read(source, i, I8), I32))
                    with plain:
                        self._copy_or_unpack(place, source, row_bytes, packed)
                pad(f["pad_right"])
            pad(b.mul(f["pad_bottom"], row_entries))
        loaded = b.sub(b.load(cursor, typ=I64), f["base"])
        with b.if_then(is_wgt), self.loop(loaded) as entry:
            self._pair(b.add(f["base"], entry))

    def _copy_or_unpack(self, place: Value, source: Value, row_bytes: Value, packed: Value) -> None:
        """A row of entries that are no int32."""
        if not self.params.packed_weights:
            self.copy(place, source, row_bytes)
            return
        with self.b.if_else(packed) as (tiles, others):
            with tiles, self.loop(self.f["x_size"]) as tile:
                self._unpack(place, source, tile)
            with others:
                self.copy(place, source, row_bytes)

    def _unpack(self, place: Value, source: Value, tile: Value) -> None:
        """A packed tile of weights: four bits of each weight times the scale of its row."""
        b, params, block = self.b, self.params, self.block
        start = b.mul(tile, I64(params.dram_entry_bytes("wgt", 1)))
        header = self.at(source, start, I8)
        body = self.at(header, I64(params.packed_header_bytes), I8)
        half = vector(I8, block // 2)
        order = [block // 2 * (i % 2) + i // 2 for i in range(block)]
        mask = ir.Constant(vector(I32, block), order)
        with self.loop(I64(block)) as row:
            both = self.read(header, b.lshr(row, I64(1)), I8)
            shift = b.trunc(b.shl(b.and_(row, I64(1)), I64(2)), I8)
            scale = b.add(b.and_(b.lshr(both, shift), I8(15)), I8(1))
            pairs, four = self.read(body, row, half), constant(half, 4)
            lower, upper = b.ashr(b.shl(pairs, four), four), b.ashr(pairs, four)
            weights = b.shuffle_vector(lower, upper, mask)
            entry_row = b.add(b.mul(tile, I64(block)), row)
            self.write(place, entry_row, b.mul(weights, splat(b, scale, block)))

    def _pair(self, entry: Value) -> None:
        """Store a tile of weights as int16 pairs: for every output, those of two neighbouring
        inputs."""
        block = self.block
        tile = self.read(self.memory("wgt"), entry, vector(I8, block * block))
        order = [
            output * block + 2 * pair + k
            for pair in range(block // 2)
            for output in range(block)
            for k in range(2)
        ]
        mask = ir.Constant(vector(I32, len(order)), order)
        paired = self.b.shuffle_vector(tile, ir.Constant(tile.type, ir.Undefined), mask)
        self.write(self.memory("pairs"), entry, self.b.sext(paired, vector(I16, len(order))))


class Gemm(Kernel):
    """Micro-ops in two loops; each is the product of activations and a tile of weights."""

    opcode = Opcode.GEMM

    def body(self) -> None:
        b, f = self.b, self.f
        outer_last, inner_last = b.sub(f["outer"], I64(1)), b.sub(f["inner"], I64(1))
        with self.loop(f["uop_count"]) as number:
            uop = self._uop(number)
            for memory in ("acc", "inp", "wgt"):
                last = self._entry(uop, memory, outer_last, inner_last)
                depth = I64(self.params.depth(memory))
                self.fail_if(b.icmp_signed(">=", last, depth))
        init = b.icmp_signed("!=", f["init"], I64(0))
        loops = self.loop(f["outer"]), self.loop(f["inner"]), self.loop(f["uop_count"])
        with loops[0] as o, loops[1] as i, loops[2] as number:
            uop = self._uop(number)
            fresh = b.and_(init, b.icmp_signed("!=", uop["first"], I64(0)))
            acc, inp, wgt = (self._entry(uop, memory, o, i) for memory in ("acc", "inp", "wgt"))
            self._multiply(acc, inp, wgt, fresh)

    def _uop(self, number: Value) -> dict[str, Value]:
        """Fields of a micro-op of the instruction."""
        b = self.b
        word_type = ir.IntType(8 * self.params.entry_bytes("uop"))
        index = b.add(self.f["uop_begin"], number)
        word = self.read(self.memory("uop"), index, word_type)
        word, values = b.zext(word, I64) if word_type.width < 64 else word, {}
        for field in uop_layout(self.params):
            values[field.name] = b.and_(word, I64((1 << field.bits) - 1))
            word = b.lshr(word, I64(field.bits))
        return values

    def _entry(self, uop: dict[str, Value], memory: str, outer: Value, inner: Value) -> Value:
        f = self.f
        return self.affine(
            uop[memory], (outer, f[f"{memory}_outer"]), (inner, f[f"{memory}_inner"])
        )

    def _multiply(self, acc: Value, inp: Value, wgt: Value, fresh: Value) -> None:
        """acc[acc] (+)= inp[inp] @ wgt[wgt].T, two inputs at a time for all outputs: processors
        have an instruction for sums of two products."""
        b, block = self.b, self.block
        sums, pairs = vector(I32, block), vector(I16, 2 * block)
        tile = self.at(self.memory("pairs"), wgt, vector(I16, block * block))
        for row in range(self.params.batch):
            place = b.add(b.mul(acc, I64(self.params.batch)), I64(row))
            total = b.select(fresh, constant(sums, 0), self.read(self.memory("acc"), place, sums))
            row_index = b.add(b.mul(inp, I64(self.params.batch)), I64(row))
            values = self.read(self.memory("inp"), row_index, vector(I8, block))
            twos = b.bitcast(b.sext(values, vector(I16, block)), vector(I32, block // 2))
            for pair in range(block // 2):
                two = splat(b, b.extract_element(twos, I32(pair)), block)
                products = b.mul(
                    b.sext(b.bitcast(two, pairs), vector(I32, 2 * block)),
                    b.sext(self.read(tile, I64(pair), pairs), vector(I32, 2 * block)),
                )
                total = b.add(total, b.add(*(self._every_second(products, k) for k in range(2))))
            self.write(self.memory("acc"), place, total)

    def _every_second(self, values: Value, first: int) -> Value:
        picked = ir.Constant(vector(I32, self.block), list(range(first, 2 * self.block, 2)))
        return self.b.shuffle_vector(values, ir.Constant(values.type, ir.Undefined), picked)


class Vector(Kernel):
    """Four loops; the operator's row of the table is built for vectors of a block."""

    opcode = Opcode.VECTOR

    def body(self) -> None:
        b, f = self.b, self.f
        self.kit = LlvmKit(b, self.memory("table"), self.params.vector_table)
        self.lanes = vector(I32, self.block)
        results, *self.sums = (
            [self.variable(constant(self.lanes, 0)) for _ in range(self.params.batch)]
            for _ in range(1 + self.params.vector_window)
        )
        slides = [b.icmp_signed("==", f["op"], I64(op.code)) for op in self.sliding()]
        unwritten = b.select(reduce(b.or_, slides, I1(0)), f["imm"], I64(0))
        n0, n1, n2, n3 = (self.loop(f[f"n{number}"]) for number in range(4))
        with n0 as i0, n1 as i1, n2 as i2, n3 as i3:
            loops = (i0, i1, i2, i3)
            first, last = self._ends_of_reduction(loops)
            src0, src1 = (self._entry(name, loops) for name in ("src0", "src1"))
            for row, result in enumerate(results):
                x, y = self._source0(src0, row), self._source1(src1, row)
                total = b.load(result, typ=self.lanes)
                b.store(self._fold(first, total, x, y, row), result)
            moved, whole = self._behind(loops, unwritten)
            dst = self._entry("dst", moved)
            with b.if_then(b.and_(last, whole)):
                for row, result in enumerate(results):
                    self._finish(dst, row, b.load(result, typ=self.lanes))

    def sliding(self) -> list[VectorOp]:
        """The operators that slide."""
        return [op for op in operators(self.params) if op.slides]

    def _behind(
        self, loops: tuple[Value, ...], unwritten: Value
    ) -> tuple[tuple[Value, ...], Value]:
        """The loops less the results that a window does not write, and whether the iteration is
        behind these."""
        b, moved, whole = self.b, [], I1(1)
        for number, index in enumerate(loops):
            row = b.icmp_signed("==", I64(number), b.sub(I64(3), self.f["reduce"]))
            less = b.sub(index, b.select(row, unwritten, I64(0)))
            moved.append(less)
            whole = b.and_(whole, b.icmp_signed(">=", less, I64(0)))
        return tuple(moved), whole

    def _ends_of_reduction(self, loops: tuple[Value, ...]) -> tuple[Value, Value]:
        """Whether this is the first iteration of a result, and whether it is the last."""
        b, f = self.b, self.f
        first = last = I1(1)
        for number, index in enumerate(loops):
            outer = b.icmp_signed("<", I64(number), b.sub(I64(4), f["reduce"]))
            at_end = b.icmp_signed("==", index, b.sub(f[f"n{number}"], I64(1)))
            first = b.and_(first, b.or_(outer, b.icmp_signed("==", index, I64(0))))
            last = b.and_(last, b.or_(outer, at_end))
        return first, last

    def _entry(self, name: str, loops: tuple[Value, ...]) -> Value:
        strides = (self.f[f"{name}_s{number}"] for number in range(4))
        return self.affine(self.f[f"{name}_base"], *zip(loops, strides, strict=True))

    def _place(self, entry: Value, row: int) -> Value:
        return self.b.add(self.b.mul(entry, I64(self.params.batch)), I64(row))

    def _read(self, memory: str, index: Value) -> Value:
        """A vector of a memory as int32."""
        if memory != "inp":
            return self.read(self.memory(memory), index, self.lanes)
        return self.b.sext(self.read(self.memory("inp"), index, vector(I8, self.block)), self.lanes)

    def _source0(self, entry: Value, row: int) -> Value:
        cases = {
            code: lambda memory=memory: self._read(memory, self._place(entry, row))
            for code, memory in enumerate(SRC0_MEMORIES)
        }
        return self.choose(self.f["src0"], cases)

    def _source1(self, entry: Value, row: int) -> Value:
        def operand(memory: str) -> Value:
            match memory:
                case "imm":
                    return splat(self.b, self.b.trunc(self.f["imm"], I32), self.block)
                case "par":
                    return self._read("par", entry)
                case _:
                    return self._read(memory, self._place(entry, row))

        cases = {code: lambda m=memory: operand(m) for code, memory in enumerate(SRC1_MEMORIES)}
        return self.choose(self.f["src1"], cases)

    def _slide(self, first: Value, x: Value, y: Value, row: int) -> Value:
        """Add to the sums of a window, which move on in a first iteration; returns sum imm."""
        b, sums = self.b, [each[row] for each in self.sums]
        before, result = constant(self.lanes, 0), constant(self.lanes, 0)
        for i, place in enumerate(sums):
            own = b.load(place, typ=self.lanes)
            total = b.add(b.select(first, before, own), self.kit.tap(x, y, i))
            b.store(total, place)
            chosen = b.icmp_signed("==", self.f["imm"], I64(i))
            before, result = own, b.select(chosen, total, result)
        return result

    def _fold(self, first: Value, result: Value, x: Value, y: Value, row: int) -> Value:
        """The operator; after the first iteration of a reduction it is merged into the result."""

        def merged(op) -> Value:
            if op.slides:
                return self._slide(first, x, y, row)
            value = op.first(self.kit, x, y)
            if op.term is None:
                return value
            later = op.combine(self.kit, result, op.term(self.kit, x, y))
            return self.b.select(first, value, later)

        cases = {op.code: lambda op=op: merged(op) for op in operators(self.params)}
        return self.choose(self.f["op"], cases)

    def _finish(self, entry: Value, row: int, result: Value) -> None:
        """Post-operation, saturation, and the write."""
        b, place = self.b, self._place(entry, row)
        to_out = b.icmp_signed("==", self.f["dst"], I64(DST_MEMORIES.index("out")))

        def after(post) -> Value:
            if post.rounding is None:
                low, high = (constant(self.lanes, value) for value in (-128, 127))
                return b.select(to_out, self.kit.clip(result, low, high), result)
            return self._requantize(post.name, result)

        value = self.choose(
            self.f["post"], {post.code: lambda post=post: after(post) for post in POST_OPS}
        )
        with b.if_else(to_out) as (out, tmp):
            with out:
                self.write(self.memory("out"), place, b.trunc(value, vector(I8, self.block)))
            with tmp:
                self.write(self.memory("tmp"), place, value)

    def _requantize(self, post: str, result: Value) -> Value:
        b, registers = self.b, self.memory("registers")
        bias, multiplier, shift = (self.read(registers, I64(i), self.lanes) for i in range(3))
        zero_point, low, high = (
            splat(b, b.sext(self.read(registers, I64(3 * self.block + i), I32), I64), self.block)
            for i in range(3)
        )
        rounded = ROUNDINGS[post](b, b.add(result, bias), multiplier, shift)
        return b.trunc(self.kit.clip(b.add(rounded, zero_point), low, high), self.lanes)


class Param(Kernel):
    """par to the registers of requantisation."""

    opcode = Opcode.PARAM

    def body(self) -> None:
        b, f, registers = self.b, self.f, self.memory("registers")
        for number in range(3):
            index = b.add(f["par_base"], I64(number))
            lanes = self.read(self.memory("par"), index, vector(I32, self.block))
            self.write(registers, I64(number), lanes)
        for number, name in enumerate(("zero_point", "lo", "hi")):
            self.write(registers, I64(3 * self.block + number), b.trunc(f[name], I32))


class Table(Kernel):
    """par to the table."""

    opcode = Opcode.TABLE

    def body(self) -> None:
        offset = self.b.mul(self.f["par_base"], I64(self.params.entry_bytes("par")))
        source = self.at(self.memory("par"), offset, I8)
        self.copy(self.memory("table"), source, I64(TABLE_VALUES * self.params.vector_table))


class Store(Kernel):
    """Rows to DRAM."""

    opcode = Opcode.STORE

    def body(self) -> None:
        b, f = self.b, self.f
        entry_bytes = I64(self.params.entry_bytes("out"))
        row_bytes = b.mul(f["x_size"], entry_bytes)
        self.fail_beyond_dram(row_bytes)
        source = self.at(self.memory("out"), b.mul(f["base"], entry_bytes), I8)
        with self.loop(f["z_size"]) as z, self.loop(f["y_size"]) as y:
            row = self.affine(y, (z, f["y_size"]))
            self.copy(self.dram_row(z, y), self.at(source, b.mul(row, row_bytes), I8), row_bytes)
