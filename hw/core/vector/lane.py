"""A lane of the vector unit, which computes one element in each pass."""

from __future__ import annotations

from itertools import pairwise

from amaranth.hdl import Cat, Const, Module, Mux, Signal, signed, unsigned
from amaranth.lib import wiring
from amaranth.lib.memory import Memory
from amaranth.lib.wiring import Flow, In, Member, Out, connect, flipped

from ....isa.encoding import INT8_BITS, INT32_BITS
from ....isa.opcodes import SRC0_MEMORIES, SRC1_MEMORIES
from ....isa.params import HwParams
from ....isa.vector_ops import TABLE_VALUES
from ..scratchpad import write_signature
from ..technology import SIMULATION, Technology
from .controls import lane_signature, source_legs
from .kits import (  # fmt: skip
    PART_BITS,
    SHIFT_BITS,
    SHIFT_STEPS,
    Source,
    ValueKit,
    choose,
    difference_codes,
    merge_choices,
    operator_choices,
    rounds_up,
)
from .logic import any_of, named, register, shift_right
from .parameters import channel_signature, shared_signature, taps_signature
from .requantize import Requantizer
from .stages import TABLE_WORD, table_words
from .window import Window

HALF = INT32_BITS // 2
#: Bits of the number of a value of the table.
INDEX_BITS = (TABLE_VALUES - 1).bit_length()


def words_signature(params: HwParams) -> wiring.Signature:
    """The data of the memories for a lane: from those that are read whole, one element for each
    pass."""
    passes, int32 = params.vector_passes, signed(INT32_BITS)
    return wiring.Signature(
        {
            "acc": Out(int32).array(passes),
            "inp": Out(signed(INT8_BITS)).array(passes),
            "par": Out(int32).array(passes),
            "tmp0": Out(int32),
            "tmp1": Out(int32),
        }
    )


def table_members(params: HwParams) -> dict[str, Member]:
    """Members of what has a table: its write port; none in configurations without."""
    if not params.vector_table:
        return {}
    return {"table": In(write_signature(table_words(params), TABLE_WORD))}


def value_members(params: HwParams, flow: Flow) -> dict[str, Member]:
    """Members of what has the table's value; none in configurations without."""
    if not params.vector_table:
        return {}
    return {"looked_up": flow(signed(value_bits(params)))}


def value_bits(params: HwParams) -> int:
    """Bits of a value of the table."""
    return params.vector_table * INT8_BITS


def sum_members(params: HwParams) -> dict[str, Member]:
    """Members of what takes the sum of a window; none in configurations without."""
    return {"window": In(INT32_BITS)} if params.vector_window else {}


class Operands(wiring.Component):
    """Stage READ: chooses the operands.

    Attributes
    ----------
    told : controls of the stage;  words : what the memories have
    a, b : the operands, a cycle later
    """

    def __init__(self, params: HwParams, technology: Technology = SIMULATION):
        self.params, self.technology = params, technology
        super().__init__(
            {
                "told": In(lane_signature(params).members["read"].signature),
                "words": In(words_signature(params)),
                "a": Out(signed(INT32_BITS)),
                "b": Out(signed(INT32_BITS)),
            }
        )

    def elaborate(self, platform) -> Module:
        m = Module()
        words = {"imm": [self.told.imm], "acc": self.words.acc, "inp": self.words.inp,
                 "par": self.words.par}  # fmt: skip
        sides = (
            (SRC0_MEMORIES, self.told.src0, words | {"tmp": [self.words.tmp0]}),
            (SRC1_MEMORIES, self.told.src1, words | {"tmp": [self.words.tmp1]}),
        )
        for (memories, chosen, its), name, port in zip(sides, "ab", (self.a, self.b), strict=True):
            legs = enumerate(source_legs(memories, self.params))
            read = any_of(Mux(chosen[n], its[memory][part], 0) for n, (memory, part) in legs)
            operand = register(name, INT32_BITS)
            m.d.comb += port.eq(operand)
            with self.technology.when(m, self.told.valid):
                m.d.sync += operand.eq(read)
        return m


class LookUp(wiring.Component):
    """Stage OPERATE: the table.

    Its value comes in stage ADD, because the way from a memory through the choice of operands to
    the table's address would be the longest of the core.

    Attributes
    ----------
    told : controls of the stage;  a, b : the operands;  table : writes the table
    looked_up : its value for ``a`` or ``b - a``, a cycle later
    """

    def __init__(self, params: HwParams):
        self.params = params
        super().__init__(
            {
                "told": In(lane_signature(params).members["operate"].signature),
                "a": In(signed(INT32_BITS)),
                "b": In(signed(INT32_BITS)),
                **table_members(params),
                **value_members(params, Out),
            }
        )

    def elaborate(self, platform) -> Module:
        m = Module()
        bits = value_bits(self.params)
        m.submodules.table = memory = Memory(
            shape=unsigned(TABLE_WORD), depth=table_words(self.params), init=[],
            attrs={"no_rw_check": 1},
        )  # fmt: skip
        write, read = memory.write_port(), memory.read_port(domain="sync")
        place_bits = (TABLE_WORD // bits - 1).bit_length()
        index = Signal(INDEX_BITS)
        m.d.comb += index.eq(self.a)
        if difference_codes(self.params):
            with m.If(self.told.difference):
                m.d.comb += index.eq(self.b - self.a)
        place = Signal(place_bits, reset_less=True)
        m.d.sync += place.eq(index)
        m.d.comb += [
            write.en.eq(self.table.en),
            write.addr.eq(self.table.addr),
            write.data.eq(self.table.data),
            read.en.eq(1),
            read.addr.eq(index[place_bits:]),
            self.looked_up.eq(read.data.word_select(place, bits)),
        ]
        return m


class Operator(wiring.Component):
    """Stage OPERATE: the parts whose sum is the result of an operator.

    Attributes
    ----------
    told : controls of the stage;  a, b : the operands
    x, y, upper, up : the parts, a cycle later, as of ``kits.Parts``, without the table's value
    """

    def __init__(self, params: HwParams, technology: Technology = SIMULATION):
        self.params, self.technology = params, technology
        super().__init__(
            {
                "told": In(lane_signature(params).members["operate"].signature),
                "a": In(signed(INT32_BITS)),
                "b": In(signed(INT32_BITS)),
                **{name: Out(bits) for name, bits in PART_BITS.items()},
            }
        )

    def elaborate(self, platform) -> Module:
        m = Module()
        a, b, choices = self.a, self.b, operator_choices(self.params)
        power = Cat(b[:SHIFT_BITS] == bit for bit in range(INT32_BITS))
        factor = named(m, Mux(self.told.by_power, power, b), "factor", INT32_BITS)
        floor, dropped = shift_right(m, a, Const(0, 2), b[:SHIFT_BITS], SHIFT_STEPS)
        has = {
            Source.A: a,
            Source.B: b,
            Source.INVERSE: ~b,
            Source.FLOOR: named(m, floor, "floor", INT32_BITS),
            Source.ROUNDS: rounds_up(floor, dropped),
            Source.ONE: Const(1, 1),
            Source.LOW: named(m, a[:HALF] * factor[:HALF], "low", INT32_BITS),
            Source.MIDDLE: named(
                m, (a[:HALF] * factor[HALF:])[:HALF] << HALF, "middle", INT32_BITS
            ),
            Source.HIGH: named(m, (a[HALF:] * factor[:HALF])[:HALF], "high", HALF),
        }
        if self.params.vector_table:
            has[Source.TABLE] = Const(0, 1)  # comes in the next stage
        kit = ValueKit(m)
        has |= {leg.source: leg.source(kit, a, b) for leg in choices["x"] if callable(leg.source)}
        less = Signal()
        m.d.comb += less.eq(a < b)
        for name, legs in choices.items():
            part = register(name, PART_BITS[name])
            m.d.comb += getattr(self, name).eq(part)
            with self.technology.when(m, self.told.valid):
                m.d.sync += part.eq(choose(legs, getattr(self.told, name), has, less))
        return m


class Reduction(wiring.Component):
    """Stages ADD and REDUCE: adds the parts, and merges the sum with what was reduced so far.

    Attributes
    ----------
    add, reduce : controls of the stages;  x, y, upper, up : the parts
    looked_up : the table's value, in stage ADD
    window : the sum of the sliding window, in stage REDUCE
    result : what was reduced so far, with the pass that was in REDUCE a cycle ago
    """

    def __init__(self, params: HwParams, technology: Technology = SIMULATION):
        self.params, self.technology = params, technology
        told = lane_signature(params).members
        super().__init__(
            {
                "add": In(told["add"].signature),
                "reduce": In(told["reduce"].signature),
                **{name: In(bits) for name, bits in PART_BITS.items()},
                **value_members(params, In),
                **sum_members(params),
                "result": Out(signed(INT32_BITS)),
            }
        )

    def elaborate(self, platform) -> Module:
        m = Module()
        value = register("value", INT32_BITS)
        rest = Cat(self.y[:HALF], (self.y[HALF:] + self.upper)[:HALF])
        x = self.x
        if self.params.vector_table:
            wide = named(m, self.looked_up, "looked_up_wide", INT32_BITS)
            x |= wide & self.add.looks_up.replicate(INT32_BITS)
        # One adder for all: `up` comes in as the carry of the lowest bits.
        joined = named(m, Cat(Const(1, 1), x) + Cat(self.up, rest), "joined", INT32_BITS + 2)
        with self.technology.when(m, self.add.valid):
            m.d.sync += value.eq(joined[1 : INT32_BITS + 1])
        # Passes come one after the other: the oldest of these is the last result of the same pass.
        passes = range(self.params.vector_passes)
        results = [register(f"result_{n}", INT32_BITS) for n in passes]
        before = results[-1]
        total = named(m, before + value, "total", INT32_BITS)
        has = {Source.RESULT: before, Source.TERM: value, Source.SUM: total}
        if self.params.vector_window:
            has[Source.WINDOW] = self.window
        merged = choose(merge_choices(self.params), self.reduce.merge, has, before < value)
        with m.If(self.reduce.valid):
            m.d.sync += results[0].eq(merged)
            m.d.sync += [late.eq(early) for early, late in pairwise(results)]
        m.d.comb += self.result.eq(results[0])
        return m


class Lane(wiring.Component):
    """All stages of a lane, for one element in each pass.

    Attributes
    ----------
    told : controls;  words : what the memories have
    channels, shared : parameters of the channel of each pass, and of all
    taps : what the lane holds where parameters are captured
    written : the result, in stage WRITE;  table : writes the table, if there is one
    """

    def __init__(self, params: HwParams, technology: Technology = SIMULATION):
        self.params, self.technology = params, technology
        super().__init__(
            {
                "told": In(lane_signature(params)),
                "words": In(words_signature(params)),
                "channels": In(channel_signature()).array(params.vector_passes),
                "shared": In(shared_signature()),
                "taps": Out(taps_signature()),
                "written": Out(signed(INT32_BITS)),
                **table_members(params),
            }
        )

    def elaborate(self, platform) -> Module:
        m = Module()
        params, technology, told = self.params, self.technology, flipped(self.told)
        m.submodules.operands = operands = Operands(params, technology)
        m.submodules.operator = operator = Operator(params, technology)
        m.submodules.reduction = reduction = Reduction(params, technology)
        m.submodules.requantizer = requantizer = Requantizer(params, technology)
        connect(m, told.read, operands.told)
        connect(m, flipped(self.words), operands.words)
        connect(m, told.operate, operator.told)
        m.d.comb += [operator.a.eq(operands.a), operator.b.eq(operands.b)]
        if params.vector_table:
            m.submodules.look_up = look_up = LookUp(params)
            connect(m, told.operate, look_up.told)
            connect(m, flipped(self.table), look_up.table)
            m.d.comb += [
                look_up.a.eq(operands.a), look_up.b.eq(operands.b),
                reduction.looked_up.eq(look_up.looked_up),
            ]  # fmt: skip
        connect(m, told.add, reduction.add)
        connect(m, told.reduce, reduction.reduce)
        m.d.comb += [getattr(reduction, n).eq(getattr(operator, n)) for n in PART_BITS]
        if params.vector_window:
            # A name that no wire of the lane has: the floorplan knows registers by their names.
            m.submodules.slides = window = Window(params, technology)
            for name in ("operate", "add", "reduce"):
                connect(m, getattr(told, name), getattr(window, name))
            m.d.comb += [
                window.a.eq(operands.a), window.b.eq(operands.b), reduction.window.eq(window.result)
            ]  # fmt: skip
        for name in requantizer.told.signature.members:
            connect(m, getattr(told, name), getattr(requantizer.told, name))
        for ours, its in zip(self.channels, requantizer.channels, strict=True):
            connect(m, flipped(ours), its)
        connect(m, flipped(self.shared), requantizer.shared)
        connect(m, requantizer.taps, flipped(self.taps))
        m.d.comb += [
            requantizer.result.eq(reduction.result),
            self.written.eq(requantizer.written),
        ]
        return m
