"""The vector unit: four affine loops over int32 vectors, an operator of the table, reduction,
requantisation.

Pipeline of a pass issued in cycle t (VECTOR_DEPTH of the timing contract)::

    t     addresses        t+6  plus bias            t+11 divided by 2**(shift & 56)
    t+1   operands read    t+7  shifted left         t+12 divided by 2**(shift & 7)
    t+2   registered       t+8  partial products     t+13 saturated, to be rounded
    t+3   products, shifts t+9  product, 64 bits     t+14 rounded, plus zero point, compared
    t+4   operator         t+10 high half (tflite)   t+15 clamped
    t+5   reduced                                    t+16 written, tokens pushed

The values of PARAM flow down the same pipeline as vectors that are not requantised, and are
captured by the stage that uses them, so parameters change between two vectors without a bubble. An
iteration that reads a tmp entry waits while one in the pipeline is to write it. With several passes
an iteration's parts of the lanes follow one another, each with a row of tmp; out is written with
the last.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from functools import reduce
from itertools import chain, pairwise
from operator import or_
from typing import NamedTuple

from amaranth.hdl import Cat, Const, Module, Mux, Signal, Value, signed
from amaranth.lib import wiring
from amaranth.lib.wiring import Out

from ...isa.opcodes import DST_MEMORIES, SRC0_MEMORIES, SRC1_MEMORIES, Opcode, Unit
from ...isa.params import HwParams
from ...isa.status import Status
from ...isa.timing import PARAM_ITERATIONS
from ...isa.timing import VECTOR_DEPTH as DEPTH
from ...isa.vector_ops import BY_NAME, POST_BY_NAME, VECTOR_OPS
from .layouts import INDEX_BITS, insn_layout
from .pipeline import delayed as _delayed
from .rounding import shift_right
from .scratchpad import read_signature, rows, write_signature
from .technology import SIMULATION, Technology
from .unit import raise_error, take, unit_signature

TFLITE = POST_BY_NAME["tflite"].code


def delayed(m, value, name, copy=False):
    return _delayed(m, value, name, flag=name.startswith(("valid", "live", "last")), copy=copy)


#: What lanes see of a stage, by the stage.
STEERING = {
    2: ("by_power",), 4: ("valid",), 5: ("requantized", "part"), 6: ("tflite", "part"),
    7: ("requantized", "part"), 9: ("requantized", "tflite", "part"), 12: ("tflite",),
    13: ("requantized",),
}  # fmt: skip
#: Lanes that have registers of it in common, in an FPGA.
LANES_OF_COPY = 2
#: Memories that are read a whole vector at a time, of which a pass takes a part.
WHOLE = ("acc", "inp", "par")
#: What an iteration carries besides data: 0 a vector, 1.. the parameters that PARAM sets, in order.
TAG_DATA, TAG_BIAS, TAG_MULTIPLIER, TAG_SHIFT, TAG_CLAMP = range(5)


#: The two operands of an operator, to :class:`FirstKit`.
A, B = "a", "b"
#: Something that a lane has, by name, and when it counts: always, or depending on a comparison.
#: What an operator of several steps makes has the operator's function for a name.
Leg = tuple[str | Callable, str]
ALWAYS, LESS, NOT_LESS = "always", "less", "not less"


class Parts(NamedTuple):
    """A result that the next stage adds up: x, y, 2**16 times upper, up, modulo 2**32."""

    x: Leg
    y: Leg | None = None
    upper: Leg | None = None
    up: Leg | None = None


#: Legs, each with the register that chooses it.
Selects = list[tuple[Leg, Signal]]


class Steering(NamedTuple):
    """What lanes are told: what they see of each stage, and in registers what chooses between
    their data.
    """

    stages: list[dict]
    sources: list[list[list[Signal]]]
    operator: dict[str, Selects]
    combine: Selects
    limits: tuple[Value, Value, Signal]


class FirstKit:
    """The arithmetic kit of ``isa/vector_ops.py`` in the operators' first stage: which of the
    things that a lane has there make up a result. There is a comparison, a right shift and a
    product, of a and ``factor``: b, or for a left shift its power of two.
    """

    @staticmethod
    def _parts(a: str, b: str, parts: Parts) -> Parts:
        if (a, b) != (A, B):
            raise ValueError("expected an operator of one step")
        return parts

    def min(self, a, b) -> Parts:
        return self._parts(a, b, Parts((A, LESS), (B, NOT_LESS)))

    def max(self, a, b) -> Parts:
        return self._parts(a, b, Parts((A, NOT_LESS), (B, LESS)))

    def add(self, a, b) -> Parts:
        return self._parts(a, b, Parts((A, ALWAYS), (B, ALWAYS)))

    def sub(self, a, b) -> Parts:
        return self._parts(a, b, Parts((A, ALWAYS), ("inverse", ALWAYS), up=("one", ALWAYS)))

    def mul(self, a, b) -> Parts:
        product = Parts(("low", ALWAYS), ("middle", ALWAYS), ("high", ALWAYS))
        return self._parts(a, b, product)

    shl = mul

    def shr(self, a, b) -> Parts:
        return self._parts(a, b, Parts(("floor", ALWAYS)))

    def rshr(self, a, b) -> Parts:
        return self._parts(a, b, Parts(("floor", ALWAYS), up=("rounds", ALWAYS)))


class ValueKit:
    """The kit over values of 32 bits, for operators of more than one step: logic of their own."""

    def __init__(self, m: Module) -> None:
        self._m = m

    def min(self, a, b):
        return Mux(a < b, a, b)

    def max(self, a, b):
        return Mux(a < b, b, a)

    def add(self, a, b):
        return (a + b)[:32].as_signed()

    def sub(self, a, b):
        return (a - b)[:32].as_signed()

    def mul(self, a, b):
        return (a * b)[:32].as_signed()

    def shl(self, a, b):
        return (a << b[:5])[:32].as_signed()

    def shr(self, a, b):
        return a >> b[:5]

    def rshr(self, a, b):
        floor, dropped = shift_right(self._m, a, Const(0, 2), b[:5], (16, 8, 4, 2, 1))
        return (floor + (dropped[1] & (dropped[0] | floor[0])))[:32].as_signed()


class CombineKit:
    """What merges the result of a reduction with its next term: legs, of which one counts."""

    def min(self, result, term) -> list[Leg]:
        return [(result, LESS), (term, NOT_LESS)]

    def max(self, result, term) -> list[Leg]:
        return [(result, NOT_LESS), (term, LESS)]

    def add(self, _result, _term) -> list[Leg]:
        return [("sum", ALWAYS)]


class Vector(wiring.Component):
    """The vector unit; ports as in ``unit.unit_signature`` and one for every memory."""

    def __init__(self, params: HwParams, technology: Technology = SIMULATION):
        self.params, self.technology = params, technology

        def read(name: str) -> wiring.Signature:
            return read_signature(*rows(name, params))

        def write(name: str) -> wiring.Signature:
            return write_signature(*rows(name, params))

        super().__init__(
            {
                "unit": Out(unit_signature(params)),
                "acc": Out(read("acc")),
                "inp": Out(read("inp")),
                "par": Out(read("par")),
                "tmp0": Out(read("tmp")),
                "tmp1": Out(read("tmp")),
                "tmp_write": Out(write("tmp")),
                "out_write": Out(write("out")),
            }
        )

    def elaborate(self, platform) -> Module:
        m = Module()
        issued = self._issue(m)
        self._pipeline(m, issued)
        return m

    # ---- loops -------------------------------------------------------------------------------

    def _issue(self, m: Module) -> dict:
        """The loops and the interlock: what the iteration issued in this cycle carries."""
        params, unit = self.params, self.unit
        # The last iteration of its instruction is known ahead, in a register.
        running, last, fire, hazard = Signal(), Signal(), Signal(), Signal()
        # The part of the lanes that this cycle is for, and whether it is the last of an iteration.
        part, ends, moves = Signal(range(params.vector_passes)), Signal(), Signal()
        m.d.comb += [ends.eq(part == params.vector_passes - 1), moves.eq(fire & ends)]
        ready = ~running | (last & ends & ~hazard)
        start, head, index = take(m, unit, params, Opcode.VECTOR, ready, Unit.VECTOR)
        param_head = Signal(insn_layout(Opcode.PARAM, params), name="param_head")
        m.d.comb += param_head.as_value().eq(unit.insn.payload.word)
        insn, param = Signal.like(head, reset_less=True), Signal.like(param_head, reset_less=True)
        is_param = insn.opcode == Opcode.PARAM
        now = Signal(INDEX_BITS, reset_less=True)
        step = Signal(2, reset_less=True)
        # Iterations left after the current one; its being first and last, in registers.
        left = [Signal(10, name=f"left{k}", reset_less=True) for k in range(4)]
        at_begin = [Signal(name=f"at_begin{k}") for k in range(4)]
        at_end = [Signal(name=f"at_end{k}") for k in range(4)]
        at_end_next = [Signal(name=f"at_end_next{k}") for k in range(4)]
        at_end_first = [head[f"n{k}"] == 1 for k in range(4)]
        # The loop that advances after this iteration: the innermost that is not at its end.
        advances = [Signal(name=f"advances{k}") for k in range(4)]
        inner_done = [Cat(*at_end[k:], 1).all() for k in range(5)]
        first = Cat(at_begin[k] | (k < 4 - insn.reduce) for k in range(4)).all()
        done = Cat(at_end[k] | (k < 4 - insn.reduce) for k in range(4)).all()
        operands, after = {}, {}
        for name in _OPERANDS:
            operands[name], after[name] = self._addresses(
                m, name, insn, head, start, moves, advances
            )
        with m.If(fire):
            m.d.sync += part.eq(Mux(ends, 0, part + 1))
        with m.If(moves):
            m.d.sync += step.eq(step + 1)
            with m.If(last):
                m.d.sync += running.eq(0)
            for k in range(4):
                inner = inner_done[k + 1]
                with m.If(inner & at_end[k]):
                    m.d.sync += [left[k].eq(insn[f"n{k}"] - 1), at_begin[k].eq(1)]
                with m.Elif(inner):
                    m.d.sync += [left[k].eq(left[k] - 1), at_begin[k].eq(0)]
                again = Mux(at_end[k], insn[f"n{k}"] == 1, left[k] == 1)
                m.d.comb += at_end_next[k].eq(Mux(inner, again, at_end[k]))
            m.d.sync += _loops_at(at_end, advances, at_end_next)
            ends_next = Mux(is_param, step == PARAM_ITERATIONS - 2, Cat(at_end_next).all())
            m.d.sync += last.eq(ends_next & ~last)
        # In registers: whether an iteration waits depends on it.
        reads_tmp = {name: Signal(name=f"{name}_of_tmp") for name in _reads_tmp(head)}
        with m.If(start):
            m.d.sync += [insn.eq(head), param.eq(param_head), now.eq(index), running.eq(1)]
            m.d.sync += [reads_tmp[name].eq(reads) for name, reads in _reads_tmp(head).items()]
            for k in range(4):
                m.d.sync += [left[k].eq(head[f"n{k}"] - 1), at_begin[k].eq(1)]
            m.d.sync += [step.eq(0), *_loops_at(at_end, advances, at_end_first)]
            m.d.sync += last.eq((head.opcode != Opcode.PARAM) & Cat(at_end_first).all())
        raise_error(m, unit, start & self._illegal(head), Status.ILLEGAL, index)
        self._check_addresses(m, insn, param, is_param, operands, running, now)
        m.d.comb += [
            fire.eq(running & ~hazard),
            unit.busy.eq(fire | start),
            unit.stalled.eq(running & hazard),
        ]
        par_row = param.par_base + step
        m.d.comb += [
            self.acc.addr.eq(operands["src0"]),
            self.inp.addr.eq(operands["src0"]),
            self.tmp0.addr.eq(Cat(part, operands["src0"])),
            self.tmp1.addr.eq(Cat(part, operands["src1"])),
            self.par.addr.eq(Mux(is_param, par_row, operands["src1"])),
        ]
        return {
            "valid": fire,
            "live": fire & (is_param | done),
            "tag": Mux(is_param, step + 1, TAG_DATA),
            "first": is_param | first,
            "done": is_param | done,
            "op": insn.op,
            "by_power": insn.op == BY_NAME["shl"].code,
            "requantized": ~is_param & (insn.post != 0),
            "tflite": ~is_param & (insn.post == TFLITE),
            "src0": [~is_param & (insn.src0 == code) for code in range(len(SRC0_MEMORIES))],
            "src1": _sources1(insn, is_param, step),
            "imm": Mux(is_param, Cat(param.zero_point, param.lo, param.hi), insn.imm),
            "tmp": ~is_param & done & (insn.dst == DST_MEMORIES.index("tmp")),
            "out": ~is_param & done & (insn.dst == DST_MEMORIES.index("out")),
            "dst": operands["dst"],
            "part": part,
            "ends": ends,
            "last": last & moves,
            "push": insn.push,
            "hazard": hazard,
            "start": start,
            "starting": [(reads, head[f"{n}_base"]) for n, reads in _reads_tmp(head).items()],
            "following": [
                (advances[k], [(reads, after[n][k]) for n, reads in reads_tmp.items()])
                for k in range(4)
            ],
        }

    def _addresses(self, m: Module, name: str, insn, head, start, moves, advances):
        """The entry of an operand in this cycle, and those of the iteration behind it, for the loop
        that then advances. Every loop has two registers: the entry at its current index, and the
        entry at its next.
        """
        width = len(insn[f"{name}_base"]) + 1
        levels = [Signal(width, name=f"{name}_{k}", reset_less=True) for k in range(4)]
        after = [Signal(width, name=f"{name}_after_{k}", reset_less=True) for k in range(4)]
        for k in range(4):
            # The loop that advances and all inside it take its next entry.
            with m.If(advances[k] & moves):
                for inner in range(k, 4):
                    stride = insn[f"{name}_s{inner}"]
                    m.d.sync += [levels[inner].eq(after[k]), after[inner].eq(after[k] + stride)]
        with m.If(start):
            base = head[f"{name}_base"]
            for k in range(4):
                m.d.sync += [levels[k].eq(base), after[k].eq(base + head[f"{name}_s{k}"])]
        return levels[3], after

    def _illegal(self, head):
        """Codes that name nothing, empty loops, reductions that the operator has not."""
        is_vector = head.opcode == Opcode.VECTOR
        known = Cat(head.op == op.code for op in VECTOR_OPS).any()
        folds = Cat(head.op == op.code for op in VECTOR_OPS if op.term is not None).any()
        empty = Cat(head[f"n{k}"] == 0 for k in range(4)).any()
        codes = (
            (head.post > TFLITE)
            | (head.src0 >= len(SRC0_MEMORIES))
            | (head.src1 >= len(SRC1_MEMORIES))
            | (head.reduce > 4)
        )
        return is_vector & (~known | empty | codes | ((head.reduce != 0) & ~folds))

    def _check_addresses(self, m: Module, insn, param, is_param, operands, running, now) -> None:
        """Stop at an index beyond its memory."""

        def beyond(name: str, memories: tuple[str, ...]):
            return Cat(
                (insn[name] == code) & (operands[name] >= self.params.depth(memory))
                for code, memory in enumerate(memories)
                if memory != "imm"
            ).any()

        data = (
            beyond("src0", SRC0_MEMORIES)
            | beyond("src1", SRC1_MEMORIES)
            | beyond("dst", DST_MEMORIES)
        )
        rows = param.par_base + 3 > self.params.par_depth
        beyond = running & Mux(is_param, rows, data)
        raise_error(m, self.unit, beyond, Status.ADDRESS, now)

    # ---- datapath ----------------------------------------------------------------------------

    def _pipeline(self, m: Module, issued: dict) -> None:
        params, unit = self.params, self.unit
        carried = (
            "valid", "live", "tag", "first", "op", "by_power", "requantized", "tflite", "imm",
            "tmp", "out", "dst", "part", "last", "push",
        )  # fmt: skip
        stages = [{n: issued[n] for n in carried}]
        for k in range(1, DEPTH + 1):
            stages.append({n: delayed(m, v, f"{n}_{k}") for n, v in stages[-1].items()})
        self._interlock(m, issued, stages)
        final = stages[DEPTH]
        m.d.comb += [unit.end.eq(final["last"]), unit.push.eq(Mux(final["last"], final["push"], 0))]
        captured = self._parameters()
        together = LANES_OF_COPY if self.technology.copies else params.vector_lanes
        for lane in range(params.vector_lanes):
            if lane % together == 0:
                steering = self._steering(m, issued, stages, captured)
            reduced = self._reduce(m, steering, lane)
            passing = self._requantize(m, steering, captured, reduced, lane)
            for part, element in enumerate(self._elements(lane)):
                if element < params.block:
                    self._capture(m, stages, captured, passing, element, part)
        written = final["valid"] & (final["part"] == params.vector_passes - 1)
        m.d.comb += [
            self.tmp_write.en.eq(final["valid"] & final["tmp"]),
            self.tmp_write.addr.eq(Cat(final["part"], final["dst"])),
            self.out_write.en.eq(written & final["out"]),
            self.out_write.addr.eq(final["dst"]),
        ]

    def _elements(self, lane: int) -> range:
        """The elements of a vector that a lane computes, pass by pass: neighbours, as are the
        lanes of the tensor core that they come from.
        """
        passes = self.params.vector_passes
        return range(passes * lane, passes * (lane + 1))

    def _interlock(self, m: Module, issued: dict, stages: list[dict]) -> None:
        """Whether the iteration of the next cycle must wait: known a cycle ahead, in a register, so
        that the units and tokens that depend on it are not behind a dozen comparators.
        """

        # An entry beyond stops the core, so its upper bits do not matter.
        bits = self.params.index_bits("tmp")

        def conflicts(reads: list, name: str) -> list[tuple[Value, Signal]]:
            """For every source whether it is of tmp, and the stages that are to write its entry."""
            found = []
            for n, (reads_tmp, entry) in enumerate(reads):
                found.append((reads_tmp, Signal(DEPTH, name=f"{name}_{n}")))
                m.d.comb += found[-1][1].eq(Cat(
                    stage["valid"] & stage["tmp"] & (stage["dst"][:bits] == entry[:bits])
                    for stage in stages[:DEPTH]
                ))  # fmt: skip
            return found

        hazard, waiting = issued["hazard"], Signal(DEPTH)
        at_start = conflicts(issued["starting"], "at_start")
        following = []
        for k, (advances, reads) in enumerate(issued["following"]):
            with m.If(advances):
                following += conflicts(reads, f"following_{k}")

        def coming(of: Callable[[Value], Value]) -> Value:
            """Of the cases the one that comes: what an instruction reads that starts, and that it
            starts, are known last.
            """

            def read(cases: list[tuple[Value, Signal]]) -> Value:
                return _or(Mux(reads_tmp, of(stages), 0) for reads_tmp, stages in cases)

            # The same entry, and the stages move on.
            waits = of((waiting << 1)[:DEPTH])
            # Behind a pass that is not the last comes the next of the same iteration.
            next_one = Mux(issued["ends"], read(following), 0)
            return Mux(issued["start"], read(at_start), Mux(hazard, waits, next_one))

        m.d.sync += [hazard.eq(coming(lambda stages: stages.any())), waiting.eq(coming(Value.cast))]

    def _steering(self, m: Module, issued: dict, stages: list[dict], captured) -> Steering:
        """For some lanes, in an FPGA in registers of their own."""
        copy = self.technology.copies
        near = [dict(stage) for stage in stages]
        for k, names in STEERING.items() if copy else ():
            near[k] |= {n: delayed(m, stages[k - 1][n], f"{n}_{k}", copy) for n in names}
        sources = [
            [
                [delayed(m, chosen & (issued["part"] == part), f"{name}_is_{memory}_{part}", copy)
                 for part in range(self.params.vector_passes)]
                if memory in WHOLE else [delayed(m, chosen, f"{name}_is_{memory}", copy)]
                for memory, chosen in zip(memories, issued[name], strict=True)
            ]
            for name, memories in (("src0", SRC0_MEMORIES), ("src1", SRC1_MEMORIES))
        ]  # fmt: skip
        return Steering(
            near, sources, self._operator_selects(m, stages[1]),
            self._combine_selects(m, stages[3]), self._limits(m, stages[13], captured),
        )  # fmt: skip

    def _operator_selects(self, m: Module, stage: dict) -> dict[str, Selects]:
        """Of each part the legs, and in registers when each is chosen in the next stage."""
        kit = FirstKit()
        # Parameters pass as the result of an addition to zero.
        passes = stage["tag"] != TAG_DATA
        chosen = [(passes, kit.add(A, B))]
        for op in VECTOR_OPS:
            this = ~passes & (stage["op"] == op.code)
            chosen.append((this & stage["first"], _whole(kit, op.first)))
            if op.term is not None:
                chosen.append((this & ~stage["first"], _whole(kit, op.term)))
        return {
            name: self._selects(m, name, [(this, getattr(parts, name)) for this, parts in chosen])
            for name in Parts._fields
        }

    def _combine_selects(self, m: Module, stage: dict) -> Selects:
        """The same for the reduction."""
        legs: list[tuple[Value, Leg | None]] = [(stage["first"], ("term", ALWAYS))]
        for op in VECTOR_OPS:
            if op.combine is not None:
                merges = ~stage["first"] & (stage["op"] == op.code)
                legs += [(merges, leg) for leg in op.combine(CombineKit(), "result", "term")]
        return self._selects(m, "result", legs)

    def _selects(self, m: Module, part: str, legs: list[tuple[Value, Leg | None]]) -> Selects:
        """Every leg once, with a register of whether it is chosen in the next cycle."""
        chosen: dict[Leg, list[Value]] = {}
        for this, leg in legs:
            if leg is not None:
                chosen.setdefault(leg, []).append(this)
        return [
            (leg, delayed(m, Cat(these).any(), f"{part}_choice_{n}", copy=self.technology.copies))
            for n, (leg, these) in enumerate(chosen.items())
        ]

    def _reduce(self, m: Module, steering: Steering, lane: int) -> Signal:
        """Operands, operator and reduction of one lane; the result is valid in t+5."""
        stages = steering.stages

        def words(port, bits: int, count: int) -> list[Value]:
            places = (bits * (element % count) for element in self._elements(lane))
            return [port.data[place:][:bits].as_signed() for place in places]

        count, block = self.params.lanes, self.params.block
        immediate = stages[1]["imm"].as_signed()
        tmp = [port.data[32 * lane :][:32].as_signed() for port in (self.tmp0, self.tmp1)]
        # Of every source what each pass takes, or what all take.
        choices = (
            (words(self.acc, 32, count), words(self.inp, 8, count), [tmp[0]]),
            ([immediate], words(self.par, 32, block), [tmp[1]]),
        )
        a, b = _data(32, f"a_{lane}"), _data(32, f"b_{lane}")
        with self.technology.when(m, stages[1]["valid"]):
            for operand, chosen, values in zip((a, b), steering.sources, choices, strict=True):
                legs = zip(chain(*chosen), chain(*values), strict=True)
                m.d.sync += operand.eq(_or(Mux(this, value, 0) for this, value in legs))
        x, y, upper, up = self._operator(m, stages[2], steering.operator, a, b, lane)
        value, result = _data(32, f"value_{lane}"), _data(32, f"result_{lane}")
        rest = Cat(y[:16], (y[16:] + upper)[:16])
        # One adder: the carry of the lowest bits is what goes up.
        joined = _named(m, Cat(Const(1, 1), x) + Cat(up, rest), f"joined_{lane}", 34)
        with self.technology.when(m, stages[3]["valid"]):
            m.d.sync += value.eq(joined[1:33])
        # Passes come one after the other: so many results ago is the one before of the same.
        results = [result]
        for n in range(1, self.params.vector_passes):
            results.append(_data(32, f"result_{lane}_{n}"))
        before = results[-1]
        total = _named(m, before + value, f"total_{lane}", 32)
        has: dict[str | Callable, Value] = {"result": before, "term": value, "sum": total}
        with m.If(stages[4]["valid"]):
            m.d.sync += result.eq(_choose(steering.combine, has, before < value))
            m.d.sync += [late.eq(early) for early, late in pairwise(results)]
        return result

    def _operator(self, m: Module, stage: dict, selects, a: Signal, b: Signal, lane: int):
        """The first of the operators' two stages, of one lane: registers of the four parts."""
        power = Cat(b[:5] == bit for bit in range(32))
        factor = _named(m, Mux(stage["by_power"], power, b), f"factor_{lane}", 32)
        floor, dropped = shift_right(m, a, Const(0, 2), b[:5], (16, 8, 4, 2, 1))
        has: dict[str | Callable, Value] = {
            A: a, B: b, "inverse": ~b, "floor": _named(m, floor, f"floor_{lane}", 32),
            # The half decides unless it is all that was dropped.
            "rounds": dropped[1] & (dropped[0] | floor[0]), "one": Const(1, 1),
            "low": _named(m, a[:16] * factor[:16], f"low_{lane}", 32),
            "middle": _named(m, (a[:16] * factor[16:])[:16] << 16, f"middle_{lane}", 32),
            "high": _named(m, (a[16:] * factor[:16])[:16], f"high_{lane}", 16),
        }  # fmt: skip
        has |= {name: name(ValueKit(m), a, b) for (name, _), _ in selects["x"] if callable(name)}
        less = Signal(name=f"less_{lane}")
        m.d.comb += less.eq(a < b)
        late = {
            name: _data(bits, f"{name}_{lane}")
            for name, bits in zip(Parts._fields, (32, 32, 16, 1), strict=True)
        }
        with self.technology.when(m, stage["valid"]):
            for name, register in late.items():
                m.d.sync += register.eq(_choose(selects[name], has, less))
        return late.values()

    def _parameters(self) -> dict[str, list[Signal]]:
        """Parameter registers: a list of one per channel, or of one."""
        block = self.params.block
        captured = {
            name: [Signal(signed(32), name=f"{name}_{c}") for c in range(block)]
            for name in ("bias", "left", "multiplier", "shift")
        }
        for name, reset in (("zero_point", 0), ("lo", -128), ("hi", 127)):
            captured[name] = [Signal(signed(8), name=name, init=reset)]
        # The zero point less the lowest result, and less the first beyond the highest.
        for name, reset in (("zero_less_lo", 128), ("zero_less_beyond", -128)):
            captured[name] = [Signal(signed(10), name=name, init=reset)]
        return captured

    def _limits(self, m: Module, stage: dict, captured) -> tuple[Value, Value, Signal]:
        """What stage 14 clamps to, and whether it does: the same for all lanes, known ahead."""
        requantized = stage["requantized"]
        limits = {
            "low": Mux(requantized, captured["lo"][0], -128)[:8],
            "top": Mux(requantized, captured["hi"][0], 127)[:8],
            "saturates": requantized | stage["out"],
        }
        low, top, saturates = (
            delayed(m, v, n, copy=self.technology.copies) for n, v in limits.items()
        )
        return low.as_signed(), top.as_signed(), saturates

    def _capture(
        self, m: Module, stages: list[dict], captured, passing: dict, channel: int, part: int
    ) -> None:
        """Each parameter is captured in the stage that computes with it, from what the lane of its
        channel holds there in its pass.
        """
        names = [
            ("bias", 5, TAG_BIAS), ("left", 6, TAG_SHIFT), ("multiplier", 7, TAG_MULTIPLIER),
            ("shift", 9, TAG_SHIFT),
        ]  # fmt: skip

        def takes(k: int, tag: int) -> Signal:
            """Known a cycle ahead."""
            before = stages[k - 1]
            its = before["valid"] & (before["tag"] == tag) & (before["part"] == part)
            return delayed(m, its, f"valid_{tag}_{k}")

        for name, k, tag in names:
            with m.If(takes(k, tag)):
                m.d.sync += captured[name][channel].eq(passing[k])
        if channel == 0:
            with m.If(takes(13, TAG_CLAMP)):
                zero, lo, hi = (passing[13][8 * n :][:8].as_signed() for n in range(3))
                values = {"zero_point": zero, "lo": lo, "hi": hi,
                          "zero_less_lo": zero - lo, "zero_less_beyond": zero - hi - 1}  # fmt: skip
                m.d.sync += [captured[name][0].eq(value) for name, value in values.items()]

    def _requantize(self, m: Module, steering: Steering, captured, result, lane: int) -> dict:
        """Stages 6 to 16 of one lane; returns what a parameter looks like in each stage."""
        stages = steering.stages
        channels = [element % self.params.block for element in self._elements(lane)]

        def requantized(k: int):
            return stages[k]["requantized"]

        def parameter(name: str, k: int) -> Value:
            """Of the channel whose pass is in stage k."""
            its = [captured[name][channel] for channel in channels]
            part, same = stages[k]["part"], len(set(channels)) == 1
            legs = (Mux(part == n, value, 0) for n, value in enumerate(its))
            return its[0] if same else _or(legs).as_signed()

        def tflite(k: int):
            return stages[k]["tflite"]

        def register(k: int, value, name: str, bits: int) -> Signal:
            """What stage k computes, as stage k + 1 sees it."""
            late = _data(bits, f"{name}_{lane}")
            with self.technology.when(m, stages[k]["live"]):
                m.d.sync += late.eq(value)
            return late

        bias, left = parameter("bias", 5), parameter("left", 6)
        biased = register(5, result + Mux(requantized(5), bias, 0), "biased", 32)
        amount = Mux(tflite(6) & (left < 0), (-left)[:5], 0)
        factor = register(6, (biased << amount)[:32], "factor", 32)
        multiplier = Mux(requantized(7), parameter("multiplier", 7), 1)
        multiplier = _named(m, multiplier, f"multiplier_{lane}", 32)
        parts = [
            register(7, x * y, f"part{i}{j}", len(x) + len(y))
            for i, x in enumerate((factor[:16], factor[16:].as_signed()))
            for j, y in enumerate((multiplier[:16], multiplier[16:].as_signed()))
        ]
        outer = _named(m, Cat(parts[0][:32], parts[3][:32]), f"outer_{lane}", 64)
        inner = _named(m, parts[1] + parts[2], f"inner_{lane}", 48)
        product = register(8, outer + (inner << 16), "product", 64)
        shift = parameter("shift", 9)
        # Rounding the doubled high half to nearest saturates only for the product 2**62.
        doubled = _named(m, product[31:].as_signed(), f"doubled_{lane}", 34)
        high = Mux(product[62] & ~product[63], (1 << 31) - 1, doubled + product[30])
        value = register(9, Mux(tflite(9), high, product), "value", 64)
        right = Mux(shift < 0, 0, shift[:5])
        amount = Mux(tflite(9), right, Mux(requantized(9), shift[:6], 0))
        amount = register(9, amount, "amount", 6)
        # Beyond 11 bits the result is clamped whatever the zero point is, so of what this shift
        # leaves, the next needs the 18 lowest bits; of the rest only whether it is all signs.
        near_zero = register(10, _all_signs(value, 17, amount[3:]), "near_zero", 1)
        negative_10 = register(10, value[-1], "negative_10", 1)
        plain_10 = register(10, value[:32], "plain_10", 32)
        value, dropped = shift_right(m, value, Const(0, 2), amount, (32, 16, 8), keep=18)
        value = register(10, value, "value_10", 18)
        dropped = register(10, dropped, "dropped_10", 2)
        amount = register(10, amount[:3], "amount_10", 3)
        negative = register(11, negative_10, "negative", 1)
        near_zero = register(11, near_zero, "near_zero", 1)
        plain_11 = register(11, plain_10, "plain_11", 32)
        value, dropped = shift_right(m, value, dropped, amount, (4, 2, 1))
        value = register(11, value, "value_11", 18)
        dropped = register(11, dropped, "dropped_11", 2)
        half, below = dropped[1], dropped[0]
        tie = Mux(tflite(12), ~negative, value[0])
        up = register(12, half & (below | tie), "up", 1)
        fits = near_zero & (value[10:].all() | ~value[10:].any())
        beyond = Cat((~negative).replicate(10), negative)
        near = register(12, Mux(fits, value[:11], beyond), "near", 11)
        plain_12 = register(12, plain_11, "plain_12", 32)
        added = {"rounded": ("zero_point", 0), "above_lo": ("zero_less_lo", 128),
                 "beyond": ("zero_less_beyond", -128)}  # fmt: skip
        sums = {}
        for name, (parameter, otherwise) in added.items():
            offset = Mux(requantized(13), captured[parameter][0], otherwise)
            # One adder: the carry of the lowest bits is the rounding.
            doubled_sum = Cat(Const(1, 1), near).as_signed() + Cat(up, offset).as_signed()
            sums[name] = _named(m, doubled_sum, f"doubled_{name}_{lane}", 14) >> 1
        rounded = register(13, sums["rounded"], "rounded", 12)
        under = register(13, sums["above_lo"] < 0, "under", 1)
        over = register(13, sums["beyond"] >= 0, "over", 1)
        plain_13 = register(13, plain_12, "plain_13", 32)
        low, top, saturates = steering.limits
        clamped = Mux(under, low, Mux(over, top, rounded))
        final = register(14, Mux(saturates, clamped, plain_13), "final", 32)
        written = register(15, final, "written", 32)
        m.d.comb += self.tmp_write.data[32 * lane :][:32].eq(written)
        out = written[:8]
        for element in reversed(self._elements(lane)):
            m.d.comb += self.out_write.data[8 * element :][:8].eq(out)
            if element % self.params.vector_passes:
                out = delayed(m, out, f"waiting_{element - 1}")  # of the pass before
        return {5: result, 6: biased, 7: factor, 9: product, 13: plain_12}


_OPERANDS = ("src0", "src1", "dst")


def _loops_at(at_end: list, advances: list, ends: list) -> list:
    """Registers of the loops that are at their end, and of the one that advances next: the
    innermost that is not.
    """
    return [
        *(register.eq(end) for register, end in zip(at_end, ends, strict=True)),
        *(advances[k].eq(~ends[k] & Cat(*ends[k + 1 :], 1).all()) for k in range(4)),
    ]


def _reads_tmp(insn) -> dict:
    """Whether an instruction reads its sources from tmp."""
    is_vector = insn.opcode == Opcode.VECTOR
    memories = {"src0": SRC0_MEMORIES, "src1": SRC1_MEMORIES}
    return {name: is_vector & (insn[name] == m.index("tmp")) for name, m in memories.items()}


def _whole(kit: FirstKit, function: Callable) -> Parts:
    """What the first stage makes of an operator; one of several steps comes whole."""
    try:
        parts = function(kit, A, B)
    except ValueError:
        return Parts((function, ALWAYS))
    return Parts((parts, ALWAYS)) if isinstance(parts, str) else parts


def _choose(selects: Selects, has: dict[str | Callable, Value], less: Value) -> Value:
    """The leg that is chosen and counts, of what a lane has; at most one does, else it is 0."""
    counts = {ALWAYS: Const(1, 1), LESS: less, NOT_LESS: ~less}
    groups: dict[str | Callable, list[Value]] = {}
    for (name, gate), chosen in selects:
        groups.setdefault(name, []).append(chosen & counts[gate])
    # Not Mux: of a single leg synthesis makes a reset of the registers, with a net to all lanes.
    each = ((has[name], Cat(gates).any()) for name, gates in groups.items())
    return _or(value & gate.replicate(len(value)) for value, gate in each)


def _or(values: Iterable[Value]) -> Value:
    return reduce(or_, values)


def _named(m: Module, value, name: str, bits: int) -> Signal:
    """A value computed once; simulators are slow with slices of expressions."""
    signal = Signal(signed(bits), name=name)
    m.d.comb += signal.eq(value)
    return signal


def _all_signs(value, start: int, eighths):
    """Whether the bits of a signed value from ``start`` plus 8 times ``eighths`` on are equal."""
    alike = Const(1, 1)
    suffixes: list[Value] = [alike] * 2 ** len(eighths)
    for k in reversed(range(len(suffixes))):
        bits = value[start + 8 * k : start + 8 * k + 8]
        alike = alike & (bits == value[-1].replicate(len(bits)))
        suffixes[k] = alike
    return Cat(suffixes).bit_select(eighths, 1)


def _sources1(insn, is_param, step) -> list[Value]:
    """Which memory the second operand is of: that of an instruction, or of a parameter, of which
    the last, limits and zero point, is in the instruction.
    """
    limits = step + 1 == TAG_CLAMP
    of_param = {"imm": limits, "par": ~limits, "tmp": Const(0, 1)}
    return [
        Mux(is_param, of_param[name], insn.src1 == code) for code, name in enumerate(SRC1_MEMORIES)
    ]


def _data(bits: int, name: str) -> Signal:
    """A register of the datapath. What it holds counts only beside a valid flag, so it needs no
    reset.
    """
    return Signal(signed(bits), name=name, reset_less=True)
