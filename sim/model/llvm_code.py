"""LLVM IR with structure: functions with loops, cases and typed accesses."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager

from llvmlite import ir

from .llvm_kit import I64, Value

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
