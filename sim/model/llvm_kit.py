"""Vector arithmetic as LLVM IR: the kit that the operator table (``isa/vector_ops.py``) builds its
rows with, and the roundings of requantisation.

Values are LLVM vectors of 32 bits, one element per channel.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

from llvmlite import ir

from ...isa.vector_ops import TABLE_VALUES

#: Objects of llvmlite; its type annotations do not match its code.
Value = Any

I1, I8, I16, I32, I64 = (ir.IntType(bits) for bits in (1, 8, 16, 32, 64))


def vector(element: ir.Type, lanes: int) -> ir.VectorType:
    """The type of a vector."""
    return ir.VectorType(element, lanes)


def constant(kind: ir.Type, value: int) -> Value:
    """A number as a value of a type; the same in every element of a vector."""
    match kind:
        case ir.VectorType():
            return ir.Constant(kind, [value] * kind.count)
        case _:
            return ir.Constant(kind, value)


def splat(b: ir.IRBuilder, value: Value, lanes: int) -> Value:
    """A vector of equal elements."""
    kind = vector(value.type, lanes)
    one = b.insert_element(ir.Constant(kind, ir.Undefined), value, I32(0))
    return b.shuffle_vector(one, ir.Constant(kind, ir.Undefined), constant(vector(I32, lanes), 0))


class LlvmKit:
    """The kit over vectors of int32; ``table`` is the address of the table, of 256 values of
    ``table_bytes`` each."""

    def __init__(self, b: ir.IRBuilder, table: Value, table_bytes: int):
        self.b, self._table, self._table_bytes = b, table, table_bytes

    def table(self, x: Value) -> Value:
        index = self.b.and_(x, constant(x.type, TABLE_VALUES - 1))
        kind = ir.IntType(8 * self._table_bytes)
        found = ir.Constant(x.type, ir.Undefined)
        for lane in range(x.type.count):
            offset = self.b.extract_element(index, I32(lane))
            place = self.b.gep(self._table, [offset], source_etype=kind)
            value = self.b.sext(self.b.load(place, typ=kind), I32)
            found = self.b.insert_element(found, value, I32(lane))
        return found

    def min(self, x: Value, y: Value) -> Value:
        return self.b.select(self.b.icmp_signed("<", x, y), x, y)

    def max(self, x: Value, y: Value) -> Value:
        return self.b.select(self.b.icmp_signed(">", x, y), x, y)

    def add(self, x: Value, y: Value) -> Value:
        return self.b.add(x, y)

    def sub(self, x: Value, y: Value) -> Value:
        return self.b.sub(x, y)

    def mul(self, x: Value, y: Value) -> Value:
        return self.b.mul(x, y)

    def tap(self, x: Value, y: Value, i: int) -> Value:
        byte = vector(I8, x.type.count)
        weight = self.b.ashr(y, constant(y.type, 8 * i))
        first, second = (self.b.sext(self.b.trunc(v, byte), x.type) for v in (x, weight))
        return self.b.mul(first, second)

    def shr(self, x: Value, y: Value) -> Value:
        return self.b.ashr(x, self._amount(y))

    def rshr(self, x: Value, y: Value) -> Value:
        wide = vector(I64, x.type.count)
        amount = self.b.zext(self._amount(y), wide)
        return self.b.trunc(shift_right_half_even(self.b, self.b.sext(x, wide), amount), x.type)

    def shl(self, x: Value, y: Value) -> Value:
        return self.b.shl(x, self._amount(y))

    def clip(self, x: Value, low: Value, high: Value) -> Value:
        """x within low..high."""
        return self.min(self.max(x, low), high)

    def _amount(self, y: Value) -> Value:
        return self.b.and_(y, constant(y.type, 31))


def shift_right_half_even(b: ir.IRBuilder, value: Value, shift: Value) -> Value:
    """``value / 2**shift`` rounded to nearest, ties to even; int64, 0 <= shift <= 63."""
    zero, one = constant(value.type, 0), constant(value.type, 1)
    some = b.icmp_signed(">", shift, zero)
    below = b.select(some, b.sub(shift, one), zero)
    floor = b.ashr(value, shift)
    half = b.and_(b.and_(b.ashr(value, below), one), b.zext(some, value.type))
    dropped = b.and_(value, b.sub(b.shl(one, below), one))
    sticky = b.zext(b.icmp_signed("!=", dropped, zero), value.type)
    return b.add(floor, b.and_(half, b.or_(sticky, b.and_(floor, one))))


def requantize_even(b: ir.IRBuilder, acc: Value, multiplier: Value, shift: Value) -> Value:
    """As ``isa.vector_ops.requantize_even``; int32 in, int64 out."""
    wide = vector(I64, acc.type.count)
    product = b.mul(b.sext(acc, wide), b.sext(multiplier, wide))
    return shift_right_half_even(b, product, b.and_(b.sext(shift, wide), constant(wide, 63)))


def requantize_tflite(b: ir.IRBuilder, acc: Value, multiplier: Value, shift: Value) -> Value:
    """As ``isa.vector_ops.requantize_tflite``; int32 in, int64 out."""
    narrow, wide = acc.type, vector(I64, acc.type.count)

    def number(value: int) -> Value:
        return constant(wide, value)

    amount = b.sext(shift, wide)
    leftwards = b.icmp_signed("<", amount, number(0))
    left = b.select(leftwards, b.and_(b.sub(number(0), amount), number(31)), number(0))
    right = b.select(leftwards, number(0), b.and_(amount, number(31)))
    value = b.sext(b.trunc(b.shl(b.sext(acc, wide), left), narrow), wide)
    factor = b.sext(multiplier, wide)
    product = b.mul(value, factor)
    positive = b.icmp_signed(">=", product, number(0))
    total = b.add(product, b.select(positive, number(1 << 30), number(1 - (1 << 30))))
    # Division by 2**31 towards zero.
    upwards = b.select(b.icmp_signed("<", total, number(0)), number((1 << 31) - 1), number(0))
    high = b.ashr(b.add(total, upwards), number(31))
    lowest = number(-(1 << 31))
    both_lowest = b.and_(b.icmp_signed("==", value, lowest), b.icmp_signed("==", factor, lowest))
    high = b.select(both_lowest, number((1 << 31) - 1), high)
    mask = b.sub(b.shl(number(1), right), number(1))
    negative = b.zext(b.icmp_signed("<", high, number(0)), wide)
    threshold = b.add(b.ashr(mask, number(1)), negative)
    above = b.icmp_signed(">", b.and_(high, mask), threshold)
    return b.add(b.ashr(high, right), b.zext(above, wide))


#: The rounding of each post-operation that requantises, by name.
ROUNDINGS: dict[str, Callable[[ir.IRBuilder, Value, Value, Value], Value]] = {
    "even": requantize_even,
    "tflite": requantize_tflite,
}


# ---- functions with loops, cases and typed accesses ----------------------------------------------

POINTER = ir.PointerType()


class Code:
    """One function under construction; ``b`` appends to it."""

    def __init__(self, module: ir.Module, name: str, result: ir.Type, *arguments: ir.Type):
        self.function = ir.Function(module, ir.FunctionType(result, arguments), name)
        self.b = ir.IRBuilder(self.function.append_basic_block())

    def at(self, base: Value, index: Value, kind: ir.Type) -> Value:
        """The address of an element of an array."""
        return self.b.gep(base, [index], source_etype=kind)

    def read(self, base: Value, index: Value, kind: ir.Type) -> Value:
        """Read an element of an array of any alignment."""
        return self.b.load(self.at(base, index, kind), typ=kind, align=1)

    def write(self, base: Value, index: Value, value: Value) -> None:
        """Write an element of an array of any alignment."""
        self.b.store(value, self.at(base, index, value.type), align=1)

    def variable(self, value: Value) -> Value:
        """The address of a new variable."""
        with self.b.goto_entry_block():
            slot = self.b.alloca(value.type)
        self.b.store(value, slot)
        return slot

    def affine(self, base: Value, *terms: tuple[Value, Value]) -> Value:
        """base + the sum of products."""
        for index, stride in terms:
            base = self.b.add(base, self.b.mul(index, stride))
        return base

    @contextmanager
    def loop(self, count: Value) -> Iterator[Value]:
        """Repeat a body ``count`` times, possibly zero; yields the index."""
        slot = self.variable(I64(0))
        head, body, after = (self.function.append_basic_block() for _ in range(3))
        self.b.branch(head)
        self.b.position_at_end(head)
        index = self.b.load(slot, typ=I64)
        self.b.cbranch(self.b.icmp_signed("<", index, count), body, after)
        self.b.position_at_end(body)
        yield index
        self.b.store(self.b.add(index, I64(1)), slot)
        self.b.branch(head)
        self.b.position_at_end(after)

    def choose(self, code: Value, cases: dict[int, Callable[[], Value]]) -> Value:
        """The value of the case with this code, which must be one of them."""
        after, never = (self.function.append_basic_block() for _ in range(2))
        switch = self.b.switch(code, never)
        found = []
        for number, make in cases.items():
            block = self.function.append_basic_block()
            switch.add_case(I64(number), block)
            self.b.position_at_end(block)
            found.append((make(), self.b.block))
            self.b.branch(after)
        self.b.position_at_end(never)
        self.b.unreachable()
        self.b.position_at_end(after)
        value = self.b.phi(found[0][0].type)
        for incoming, block in found:
            value.add_incoming(incoming, block)
        return value
