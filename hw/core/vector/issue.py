"""The front of the vector unit: instructions become iterations, and these become passes."""

from __future__ import annotations

from amaranth.hdl import Cat, Module, Mux, Signal, Value
from amaranth.lib import wiring
from amaranth.lib.wiring import In, Out

from ....isa.encoding import PARAM_ENTRIES, VECTOR_LOOPS
from ....isa.opcodes import DST_MEMORIES, SRC0_MEMORIES, SRC1_MEMORIES, Opcode, Unit
from ....isa.params import HwParams
from ....isa.status import Status
from ....isa.timing import PARAM_ITERATIONS, VECTOR_DEPTH, table_iterations
from ....isa.vector_ops import BY_NAME, POST_BY_NAME, operators
from ..layouts import INDEX_BITS, insn_layout
from ..unit import raise_error, take, taker_signature
from .interlock import SOURCES, Interlock, access_signature
from .logic import either
from .loops import LOOPS, Addresses, Loops
from .stages import Tag, entry_bits, iteration_signature, word_bits
from .window import Unwritten, sliding_codes

MEMORIES = {"src0": SRC0_MEMORIES, "src1": SRC1_MEMORIES, "dst": DST_MEMORIES}
NONE, TFLITE = POST_BY_NAME["none"].code, POST_BY_NAME["tflite"].code


class Issue(wiring.Component):
    """Takes instructions, and issues a pass of an iteration in every cycle in which the interlock
    lets it.

    Attributes
    ----------
    unit : towards the core, as in ``unit.taker_signature``
    busy, stalled : a pass is issued or an instruction starts; the iteration waits
    writes : what is written by the pass in each stage but the last, for the interlock
    iteration : the pass of this cycle
    src0, src1, par : entries of the operands, and of the parameters
    """

    def __init__(self, params: HwParams):
        self.params = params
        super().__init__(
            {
                "unit": Out(taker_signature(params)),
                "busy": Out(1),
                "stalled": Out(1),
                "writes": In(access_signature(params)).array(VECTOR_DEPTH),
                "iteration": Out(iteration_signature(params)),
                "src0": Out(entry_bits("src0", params)),
                "src1": Out(entry_bits("src1", params)),
                "par": Out(range(params.par_depth)),
            }
        )

    def elaborate(self, platform) -> Module:
        m = Module()
        params, unit = self.params, self.unit
        m.submodules.loops = loops = Loops(params)
        m.submodules.interlock = interlock = Interlock(params)
        addresses = {name: Addresses(name, params) for name in MEMORIES}
        for name, part in addresses.items():
            m.submodules[name] = part
        # The last iteration of its instruction is known ahead, in a register.
        running, last, fire = Signal(), Signal(), Signal()
        # The pass of the iteration that this cycle is for, and whether it is the last one.
        part, ends, moves = Signal(range(params.vector_passes)), Signal(), Signal()
        ready = ~running | (last & ends & ~interlock.hazard)
        start, head, index = take(m, unit, params, Opcode.VECTOR, ready, Unit.VECTOR)
        param_head = Signal(insn_layout(Opcode.PARAM, params), name="param_head")
        insn, param = Signal.like(head, reset_less=True), Signal.like(param_head, reset_less=True)
        now = Signal(INDEX_BITS, reset_less=True)
        is_param, is_table = insn.opcode == Opcode.PARAM, None
        loops_first = head.opcode != Opcode.PARAM
        if params.vector_table:
            is_table = insn.opcode == Opcode.TABLE
            loops_first = head.opcode == Opcode.VECTOR
        sets = is_param if is_table is None else is_param | is_table
        steps = max(PARAM_ITERATIONS, table_iterations(params))
        step = Signal(range(steps), reset_less=True)
        m.d.comb += [
            param_head.as_value().eq(unit.insn.payload.word),
            ends.eq(part == params.vector_passes - 1),
            fire.eq(running & ~interlock.hazard),
            moves.eq(fire & ends),
            self.busy.eq(fire | start),
            self.stalled.eq(running & interlock.hazard),
        ]
        with m.If(fire):
            m.d.sync += part.eq(Mux(ends, 0, part + 1))
        with m.If(moves):
            m.d.sync += step.eq(step + 1)
            with m.If(last):
                m.d.sync += running.eq(0)
            next_is_last = Mux(is_param, step == PARAM_ITERATIONS - 2, loops.next_at_end)
            next_is_last = either(is_table, step == table_iterations(params) - 2, next_is_last)
            m.d.sync += last.eq(next_is_last & ~last)
        with m.If(start):
            m.d.sync += [insn.eq(head), param.eq(param_head), now.eq(index), running.eq(1)]
            m.d.sync += [step.eq(0), last.eq(loops_first & loops.starts_at_end)]
        unwritten = None
        if params.vector_window:
            m.submodules.unwritten = part_of_window = Unwritten(params)
            unwritten = part_of_window.active
            self._join_unwritten(m, part_of_window, loops, start, head)
        self._join_loops(m, loops, addresses, start, head, moves, unwritten)
        self._join_interlock(m, interlock, loops, addresses, start, head, ends)
        raise_error(m, unit, start & self._illegal(head), Status.ILLEGAL, index)
        beyond = running & self._beyond(insn, param, sets, is_table, addresses)
        raise_error(m, unit, beyond, Status.ADDRESS, now)
        # The table's words lie one after the other in the entries of par.
        row_of_table = step[: word_bits(params)] >> (params.block.bit_length() - 1)
        par_row = param.par_base + either(is_table, row_of_table, step)
        m.d.comb += [
            self.src0.eq(addresses["src0"].entry),
            self.src1.eq(addresses["src1"].entry),
            self.par.eq(Mux(sets, par_row, addresses["src1"].entry)),
            self.iteration.valid.eq(fire),
            self.iteration.part.eq(part),
            self.iteration.dst.eq(addresses["dst"].entry),
            self.iteration.last.eq(last & moves),
        ]
        self._describe(m, insn, param, is_param, is_table, sets, step, loops, unwritten)
        return m

    def _join_unwritten(self, m: Module, unwritten: Unwritten, loops: Loops, start, head) -> None:
        m.d.comb += [
            unwritten.start.eq(start),
            unwritten.count.eq(Mux(self._slides(head), head.imm, 0)),
            unwritten.reduce.eq(head.reduce),
            unwritten.moves.eq(loops.moves),
            unwritten.advances.eq(loops.advances),
        ]

    def _slides(self, head) -> Value:
        """Whether an instruction slides a window."""
        is_vector = head.opcode == Opcode.VECTOR
        return is_vector & Cat(head.op == code for code in sliding_codes(self.params)).any()

    def _join_loops(
        self, m: Module, loops: Loops, addresses: dict, start, head, moves, unwritten
    ) -> None:
        m.d.comb += [loops.start.eq(start), loops.reduce.eq(head.reduce), loops.moves.eq(moves)]
        m.d.comb += [loops.extents[k].eq(head[f"n{k}"]) for k in LOOPS]
        for name, part in addresses.items():
            m.d.comb += [
                part.start.eq(start),
                part.base.eq(head[f"{name}_base"]),
                # What is not written takes no entry.
                part.moves.eq(either(unwritten if name == "dst" else None, 0, moves)),
                part.advances.eq(loops.advances),
            ]
            m.d.comb += [part.strides[k].eq(head[f"{name}_s{k}"]) for k in LOOPS]

    def _join_interlock(
        self, m: Module, interlock: Interlock, loops: Loops, addresses: dict, start, head, ends
    ) -> None:
        m.d.comb += [
            interlock.start.eq(start),
            interlock.advances.eq(loops.advances),
            interlock.ends.eq(ends),
        ]
        for ours, its in zip(self.writes, interlock.writes, strict=True):
            m.d.comb += [its.valid.eq(ours.valid), its.entry.eq(ours.entry)]
        is_vector = head.opcode == Opcode.VECTOR
        for n, name in enumerate(SOURCES):
            reads = is_vector & (head[name] == MEMORIES[name].index("tmp"))
            # In a register: whether an iteration waits depends on it.
            of_tmp = Signal(name=f"{name}_of_tmp")
            with m.If(start):
                m.d.sync += of_tmp.eq(reads)
            first = interlock.starting[n]
            m.d.comb += [first.valid.eq(reads), first.entry.eq(head[f"{name}_base"])]
            for k in LOOPS:
                following = interlock.following[k][n]
                entry = addresses[name].after[k]
                m.d.comb += [following.valid.eq(of_tmp), following.entry.eq(entry)]

    def _illegal(self, head) -> Value:
        """Whether a code names nothing, a loop is empty, or the operator cannot reduce."""
        is_vector, ops = head.opcode == Opcode.VECTOR, operators(self.params)
        known = Cat(head.op == op.code for op in ops).any()
        folds = Cat(head.op == op.code for op in ops if op.term is not None).any()
        empty = Cat(head[f"n{k}"] == 0 for k in LOOPS).any()
        codes = (
            (head.post > TFLITE)
            | (head.src0 >= len(SRC0_MEMORIES))
            | (head.src1 >= len(SRC1_MEMORIES))
            | (head.reduce > VECTOR_LOOPS)
        )
        if self.params.vector_window:
            codes |= self._illegal_window(head)
        return is_vector & (~known | empty | codes | ((head.reduce != 0) & ~folds))

    def _illegal_window(self, head) -> Value:
        """Whether a window leaves out more results than it may, or has no loop to slide along."""
        rows = ((head.reduce == VECTOR_LOOPS - 1 - k) & (head.imm < head[f"n{k}"]) for k in LOOPS)
        fits = (head.imm >= 0) & (head.imm < self.params.vector_window) & Cat(rows).any()
        return self._slides(head) & ~fits

    def _beyond(self, insn, param, sets, is_table, addresses: dict) -> Value:
        """Whether an index is beyond its memory."""

        def of_operand(name: str) -> Value:
            return Cat(
                (insn[name] == code) & (addresses[name].entry >= self.params.depth(memory))
                for code, memory in enumerate(MEMORIES[name])
                if memory != "imm"
            ).any()

        entries = either(is_table, self.params.table_entries, PARAM_ENTRIES)
        rows = param.par_base + entries > self.params.par_depth
        return Mux(sets, rows, of_operand("src0") | of_operand("src1") | of_operand("dst"))

    def _describe(
        self, m: Module, insn, param, is_param, is_table, sets, step, loops: Loops, unwritten
    ) -> None:
        """What the stages do with the iteration."""
        its = self.iteration
        done = sets | loops.done
        writes = ~sets & loops.done
        if unwritten is not None:
            writes &= ~unwritten
        # The limits and the zero point are in the instruction, the other parameters in par.
        limits = step + 1 == Tag.CLAMP
        of_param = {"imm": limits, "par": ~limits, "tmp": 0}
        imm = Mux(is_param, Cat(param.zero_point, param.lo, param.hi), insn.imm)
        m.d.comb += [
            its.live.eq(its.valid & done),
            its.tag.eq(either(is_table, Tag.TABLE, Mux(is_param, step + 1, Tag.DATA))),
            its.first.eq(sets | loops.first),
            its.op.eq(insn.op),
            its.by_power.eq(insn.op == BY_NAME["shl"].code),
            its.requantized.eq(~sets & (insn.post != NONE)),
            its.tflite.eq(~sets & (insn.post == TFLITE)),
            its.src0.eq(Cat(~sets & (insn.src0 == n) for n in range(len(SRC0_MEMORIES)))),
            its.src1.eq(
                Cat(
                    Mux(sets, of_param[memory], insn.src1 == n)
                    for n, memory in enumerate(SRC1_MEMORIES)
                )
            ),
            its.imm.eq(either(is_table, step, imm)),
            its.tmp.eq(writes & (insn.dst == DST_MEMORIES.index("tmp"))),
            its.out.eq(writes & (insn.dst == DST_MEMORIES.index("out"))),
            its.push.eq(insn.push),
        ]
