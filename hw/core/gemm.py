"""The tensor core: micro-ops inside two affine loops, one iteration of batch x block_in x block_out
MACs a cycle. :class:`Stage` is its pipeline.

The accumulator is read late, and the three results that the read cannot see yet are forwarded. So
accumulation runs at one iteration a cycle, whatever the distance between uses of an accumulator.
"""

from __future__ import annotations

from dataclasses import dataclass

from amaranth.hdl import Cat, Module, Mux, Signal, Value
from amaranth.lib import wiring
from amaranth.lib.wiring import Out

from ...isa.encoding import INT32_BITS
from ...isa.opcodes import Opcode, Unit
from ...isa.params import HwParams
from ...isa.status import Status
from ...isa.timing import GEMM_DEPTH
from .layouts import INDEX_BITS, uop_struct
from .pipeline import Pipelined, PipelineStage, delayed
from .scratchpad import read_port, write_port
from .technology import SIMULATION, Technology
from .unit import raise_error, take, unit_signature

#: Neighbouring outputs that read the same copy of the activations.
OUTPUTS_OF_COPY = 4
_OPERANDS = ("acc", "inp", "wgt")


class Stage(PipelineStage):
    """What happens to an iteration in each cycle since its issue."""

    ISSUE = "the address of the micro-op goes out"
    INDEX = "the micro-op is there; its indices plus the offsets of the loops are the entries"
    ADDRESS = "the addresses of activations and weights go out"
    READ = "activations and weights are there, and are registered"
    MULTIPLY = "products"
    SUM = "sums of the products; the address of the accumulator goes out"
    COLLECT = "the accumulator is there, unless a result that is on its way is newer"
    ACCUMULATE = "the sum is added to the accumulator, or to the result just before"
    WRITE = "the result is written, and tokens are pushed after the last iteration"


assert Stage.WRITE == GEMM_DEPTH, "the timing contract says how long an iteration takes"


@dataclass(frozen=True)
class Issued:
    """The iteration that is issued in this cycle.

    Attributes
    ----------
    valid : there is one;  last : it is the last of its instruction
    offset : per operand, what the loops add to the index of the micro-op
    init, push : fields of the instruction;  index : the place of the instruction in its program
    """

    valid: Value
    last: Value
    offset: dict[str, Signal]
    init: Value
    push: Value
    index: Value


class Gemm(wiring.Component):
    """The tensor core; ports as in ``unit.unit_signature`` and one for every memory."""

    def __init__(self, params: HwParams, technology: Technology = SIMULATION):
        self.params, self.technology = params, technology
        super().__init__(
            {
                "unit": Out(unit_signature(params)),
                **{name: Out(read_port(name, params)) for name in ("uop", "inp", "wgt", "acc")},
                "acc_write": Out(write_port("acc", params)),
            }
        )

    def elaborate(self, platform) -> Module:
        m = Module()
        issued = self._issue(m)
        self._pipeline(m, issued)
        return m

    # ---- loops -------------------------------------------------------------------------------

    def _issue(self, m: Module) -> Issued:
        """Take instructions, and run their loops."""
        params, unit = self.params, self.unit
        running = Signal()
        last = Signal()
        start, head, index = take(m, unit, params, Opcode.GEMM, ~running | last, Unit.GEMM)
        insn = Signal.like(head, reset_less=True)
        now = Signal(INDEX_BITS, reset_less=True)
        uop = Signal(range(params.uop_depth + 1))
        inner = Signal.like(insn.inner)
        outer = Signal.like(insn.outer)
        # Offsets of the current iteration, and of the first inner iteration of the current outer
        # one.
        offset = {n: Signal(params.index_bits(n) + 1, name=f"offset_{n}") for n in _OPERANDS}
        row = {n: Signal(params.index_bits(n) + 1, name=f"row_{n}") for n in _OPERANDS}
        # Which counters are at their ends, and whether all are (the last iteration): known ahead,
        # in registers.
        last_uop, last_inner, last_outer = Signal(), Signal(), Signal()
        uop_ends, inner_ends, outer_ends = Signal(), Signal(), Signal()
        m.d.comb += [
            uop_ends.eq(Mux(last_uop, insn.uop_count == 1, uop + 2 == insn.uop_count)),
            inner_ends.eq(Mux(last_inner, insn.inner == 1, inner + 2 == insn.inner)),
            outer_ends.eq(outer + 2 == insn.outer),
            self.uop.addr.eq(insn.uop_begin + uop),
            unit.busy.eq(running | start),
        ]
        with m.If(running):
            m.d.sync += [uop.eq(uop + 1), last_uop.eq(uop_ends)]
            with m.If(last_uop):
                m.d.sync += [uop.eq(0), inner.eq(inner + 1), last_inner.eq(inner_ends)]
                m.d.sync += [offset[n].eq(offset[n] + insn[f"{n}_inner"]) for n in _OPERANDS]
                with m.If(last_inner):
                    m.d.sync += [inner.eq(0), outer.eq(outer + 1), last_outer.eq(outer_ends)]
                    for n in _OPERANDS:
                        step = row[n] + insn[f"{n}_outer"]
                        m.d.sync += [row[n].eq(step), offset[n].eq(step)]
            row_ends = Mux(last_inner, inner_ends & outer_ends, inner_ends & last_outer)
            m.d.sync += last.eq(uop_ends & Mux(last_uop, row_ends, last_inner & last_outer) & ~last)
            with m.If(last):
                m.d.sync += running.eq(0)
        with m.If(start):
            m.d.sync += [insn.eq(head), now.eq(index), running.eq(1)]
            m.d.sync += [uop.eq(0), inner.eq(0), outer.eq(0)]
            m.d.sync += [last_uop.eq(head.uop_count == 1), last_inner.eq(head.inner == 1)]
            m.d.sync += last_outer.eq(head.outer == 1)
            m.d.sync += last.eq((head.uop_count == 1) & (head.inner == 1) & (head.outer == 1))
            m.d.sync += [signal.eq(0) for n in _OPERANDS for signal in (offset[n], row[n])]
        self._check(m, start, head, index)
        return Issued(running, running & last, offset, insn.init, insn.push, now)

    def _check(self, m: Module, start, head, index) -> None:
        """Refuse micro-ops beyond their memory, and empty loops."""
        beyond = head.uop_begin + head.uop_count > self.params.uop_depth
        raise_error(m, self.unit, start & beyond, Status.ADDRESS, index)
        empty = (head.uop_count == 0) | (head.inner == 0) | (head.outer == 0)
        raise_error(m, self.unit, start & empty, Status.ILLEGAL, index)

    # ---- datapath ----------------------------------------------------------------------------

    def _pipeline(self, m: Module, issued: Issued) -> None:
        unit, whole = self.unit, (Stage.ISSUE, Stage.WRITE)
        valid = Pipelined(m, issued.valid, "valid", *whole, flag=True)
        last = Pipelined(m, issued.last, "last", *whole, flag=True)
        push = Pipelined(m, issued.push, "push", *whole)
        ends = last.at(Stage.WRITE)
        m.d.comb += [unit.end.eq(ends), unit.push.eq(Mux(ends, push.at(Stage.WRITE), 0))]
        entries, overwrite = self._entries(m, issued, valid)
        sums = self._sums(m, valid)
        self._accumulate(m, valid, entries["acc"], overwrite, sums)

    def _entries(
        self, m: Module, issued: Issued, valid: Pipelined
    ) -> tuple[dict[str, Signal], Value]:
        """Per operand its entry, and whether the accumulator is overwritten, in stage ADDRESS."""
        params = self.params
        uop = Signal(uop_struct(params))
        m.d.comb += uop.as_value().eq(self.uop.data)
        offset = {n: delayed(m, issued.offset[n], f"offset_{n}_index") for n in _OPERANDS}
        init = delayed(m, issued.init, "init_index")
        overwrite = delayed(m, init & uop.first, "overwrite")
        # Two bits more than an index has hold the sum of an index and an offset.
        sums = {n: Signal(params.index_bits(n) + 2, name=f"entry_{n}") for n in _OPERANDS}
        m.d.comb += [sums[n].eq(uop[n] + offset[n]) for n in _OPERANDS]
        entry = {n: delayed(m, sums[n], f"{n}_address") for n in _OPERANDS}
        beyond = Cat(entry[n] >= params.depth(n) for n in _OPERANDS).any()
        index = Pipelined(m, issued.index, "index", Stage.ISSUE, Stage.ADDRESS).at(Stage.ADDRESS)
        raise_error(m, self.unit, valid.at(Stage.ADDRESS) & beyond, Status.ADDRESS, index)
        m.d.comb += [self.inp.addr.eq(entry["inp"]), self.wgt.addr.eq(entry["wgt"])]
        return entry, overwrite

    def _sums(self, m: Module, valid: Pipelined) -> list[Signal]:
        """The sums of products, in stage COLLECT."""
        params, technology = self.params, self.technology
        w = Signal(len(self.wgt.data), reset_less=True)
        with technology.when(m, valid.at(Stage.READ)):
            m.d.sync += w.eq(self.wgt.data)
            count = -(-params.block_out // OUTPUTS_OF_COPY) if technology.copies else 1
            x = [delayed(m, self.inp.data, f"x_{n}", copy=True) for n in range(count)]
        seen = [x[o * count // params.block_out] for o in range(params.block_out)]
        return technology.multiplier(m, params, seen, w)

    def _accumulate(
        self, m: Module, valid: Pipelined, entry: Signal, overwrite: Value, sums: list[Signal]
    ) -> None:
        """Read the accumulator, add the sums, and write the result."""
        address = entry[: self.params.index_bits("acc")]
        acc = Pipelined(m, address, "acc", Stage.ADDRESS, Stage.WRITE)
        overwrites = Pipelined(m, overwrite, "overwrite", Stage.ADDRESS, Stage.ACCUMULATE)
        bits = len(self.acc.data)
        # The result that is written in this cycle, and the one written in the cycle before.
        result = Signal(bits, reset_less=True)
        older = Signal(bits, name="result_older", reset_less=True)
        m.d.sync += older.eq(result)

        def same(stage: Stage, ahead: int) -> Signal:
            """Whether the iteration ``ahead`` cycles before the one in a stage uses the same
            accumulator. They are compared a cycle early, one stage before.
            """
            other, its = Stage(stage - 1 + ahead), Stage(stage - 1)
            equal = valid.at(other) & (acc.at(other) == acc.at(its))
            return delayed(m, equal, f"same_{stage.name.lower()}_{ahead}")

        two_ahead, three_ahead = (same(Stage.COLLECT, ahead) for ahead in (2, 3))
        held = Signal(bits, reset_less=True)
        total = [Signal(INT32_BITS, name=f"total_{i}", reset_less=True) for i in range(len(sums))]
        with self.technology.when(m, valid.at(Stage.COLLECT)):
            newer = Mux(two_ahead, result, older)
            m.d.sync += held.eq(Mux(two_ahead | three_ahead, newer, self.acc.data))
            m.d.sync += [late.eq(early) for late, early in zip(total, sums, strict=True)]
        base = Signal(bits)
        newest = Mux(same(Stage.ACCUMULATE, 1), result, held)
        m.d.comb += base.eq(Mux(overwrites.at(Stage.ACCUMULATE), 0, newest))
        with self.technology.when(m, valid.at(Stage.ACCUMULATE)):
            for i, its in enumerate(total):
                lane = slice(INT32_BITS * i, INT32_BITS * (i + 1))
                m.d.sync += result[lane].eq(base[lane] + its)
        m.d.comb += [
            self.acc.addr.eq(acc.at(Stage.SUM)),
            self.acc_write.en.eq(valid.at(Stage.WRITE)),
            self.acc_write.addr.eq(acc.at(Stage.WRITE)),
            self.acc_write.data.eq(result),
        ]
