"""The four loops of a VECTOR instruction."""

from __future__ import annotations

from amaranth.hdl import Cat, Module, Mux, Signal
from amaranth.lib import wiring
from amaranth.lib.wiring import In, Out

from ....isa.encoding import VECTOR_LOOPS
from ....isa.params import HwParams
from .stages import entry_bits, vector_field

#: The loops, from the outermost to the innermost.
LOOPS = range(VECTOR_LOOPS)


class Loops(wiring.Component):
    """Counts the iterations. What the rest of the unit needs to know about the next one is known
    ahead, in registers.

    Attributes
    ----------
    start, extents, reduce : an instruction begins, with its first iteration in the next cycle
    moves : the iteration is over
    advances : a bit for each loop: it is the one that goes on after this iteration, because it is
        the innermost that is not at its end
    first, done : the iteration is the first, the last of those that are reduced to one result
    starts_at_end : the instruction that begins has a single iteration
    next_at_end : after ``moves``, all loops are at their ends
    """

    def __init__(self, params: HwParams):
        extent = vector_field("n0", params).bits
        super().__init__(
            {
                "start": In(1),
                "extents": In(extent).array(VECTOR_LOOPS),
                "reduce": In(vector_field("reduce", params).bits),
                "moves": In(1),
                "advances": Out(VECTOR_LOOPS),
                "first": Out(1),
                "done": Out(1),
                "starts_at_end": Out(1),
                "next_at_end": Out(1),
            }
        )

    def elaborate(self, platform) -> Module:
        m = Module()
        reduce = Signal.like(self.reduce, reset_less=True)
        at_begin = [Signal(name=f"at_begin{k}") for k in LOOPS]
        at_end = [Signal(name=f"at_end{k}") for k in LOOPS]
        folded = [k >= VECTOR_LOOPS - reduce for k in LOOPS]
        m.d.comb += [
            self.first.eq(Cat(at_begin[k] | ~folded[k] for k in LOOPS).all()),
            self.done.eq(Cat(at_end[k] | ~folded[k] for k in LOOPS).all()),
        ]
        ends_at_start = [self.extents[k] == 1 for k in LOOPS]
        ends_after_move = [Signal(name=f"at_end_next{k}") for k in LOOPS]
        m.d.comb += [
            self.starts_at_end.eq(Cat(ends_at_start).all()),
            self.next_at_end.eq(Cat(ends_after_move).all()),
        ]

        def enter(ends: list) -> list:
            """Enter an iteration; ``ends`` says which of its loops are at their ends."""
            return [
                Cat(at_end).eq(Cat(ends)),
                *(self.advances[k].eq(~ends[k] & Cat(*ends[k + 1 :], 1).all()) for k in LOOPS),
            ]

        with m.If(self.moves):
            m.d.sync += enter(ends_after_move)
        with m.If(self.start):
            m.d.sync += [reduce.eq(self.reduce), *enter(ends_at_start)]
        for k in LOOPS:
            inner_at_end = Cat(*at_end[k + 1 :], 1).all()
            self._count(m, k, inner_at_end, at_begin[k], at_end[k], ends_after_move[k])
        return m

    def _count(self, m: Module, k: int, inner_at_end, at_begin, at_end, at_end_next) -> None:
        """Loop ``k``: it goes on, or begins again, when all inside it are at their ends."""
        extent = Signal.like(self.extents[k], name=f"extent{k}", reset_less=True)
        # Iterations left after the current one.
        left = Signal.like(extent, name=f"left{k}", reset_less=True)
        with m.If(self.moves):
            with m.If(inner_at_end & at_end):
                m.d.sync += [left.eq(extent - 1), at_begin.eq(1)]
            with m.Elif(inner_at_end):
                m.d.sync += [left.eq(left - 1), at_begin.eq(0)]
            again = Mux(at_end, extent == 1, left == 1)
            m.d.comb += at_end_next.eq(Mux(inner_at_end, again, at_end))
        with m.If(self.start):
            m.d.sync += [
                extent.eq(self.extents[k]), left.eq(self.extents[k] - 1), at_begin.eq(1)
            ]  # fmt: skip


class Addresses(wiring.Component):
    """The entry of an operand in every iteration. Each loop has two registers, the entry at its
    current index and the one at its next, so a move takes no more than an addition.

    Attributes
    ----------
    start, base, strides : an instruction begins
    moves, advances : as of :class:`Loops`
    entry : the entry of the iteration
    after : the entry of the next iteration, for each loop that might advance to it
    """

    def __init__(self, operand: str, params: HwParams):
        field, entry = vector_field(f"{operand}_base", params).bits, entry_bits(operand, params)
        super().__init__(
            {
                "start": In(1),
                "base": In(field),
                "strides": In(field).array(VECTOR_LOOPS),
                "moves": In(1),
                "advances": In(VECTOR_LOOPS),
                "entry": Out(entry),
                "after": Out(entry).array(VECTOR_LOOPS),
            }
        )

    def elaborate(self, platform) -> Module:
        m = Module()
        strides, current, after = (
            [Signal.like(port, name=f"{name}{k}", reset_less=True) for k in LOOPS]
            for name, port in (
                ("stride", self.strides[0]), ("current", self.entry), ("after", self.entry)
            )
        )  # fmt: skip
        m.d.comb += [self.entry.eq(current[-1])]
        m.d.comb += [port.eq(register) for port, register in zip(self.after, after, strict=True)]
        for k in LOOPS:
            # The loop that advances and all inside it take its next entry.
            with m.If(self.advances[k] & self.moves):
                for inner in LOOPS[k:]:
                    m.d.sync += current[inner].eq(after[k])
                    m.d.sync += after[inner].eq(after[k] + strides[inner])
        with m.If(self.start):
            for k in LOOPS:
                m.d.sync += [
                    strides[k].eq(self.strides[k]), current[k].eq(self.base),
                    after[k].eq(self.base + self.strides[k]),
                ]  # fmt: skip
        return m
