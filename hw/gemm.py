"""Tensor core: micro-ops inside two affine loops, one matrix product a cycle at any distance.

The pipeline, by cycles after an iteration issues:

====  ===============================================================================
0     micro-op address presented
1     micro-op read
2     loop offsets added
3     indices checked; activation and weight addresses presented
4     activations and weights read, handed to the multiplier array
5     accumulator address presented
6     accumulator read, or forwarded from an iteration that has passed it by 2 or 3
7     dot products arrive; added to the accumulator or to the result of the iteration before
8     accumulator written
====  ===============================================================================
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import reduce
from itertools import pairwise
from operator import add

from amaranth.hdl import Cat, Module, Mux, Signal, signed
from amaranth.lib import data, wiring
from amaranth.lib.wiring import In, Out

from ..isa.opcodes import Opcode, Unit
from ..isa.params import HwParams
from ..isa.status import Status
from ..sim.timing import GEMM_DEPTH
from .layouts import INDEX_BITS, insn_layout, overlay, unit_members, uop_layout
from .scratchpad import read_signature, write_signature

#: Stages of the table above.
UOP_READ, OFFSET, CHECK, OPERANDS, ACC_ADDRESS, ACC_READ, SUM, WRITE = range(1, GEMM_DEPTH + 1)
OPERAND_MEMORIES = ("acc", "inp", "wgt")


class MacArray(wiring.Component):
    """``total[b][o] = sum over i of inp[b][i] * wgt[o][i]``, one product of matrices a cycle.

    A back end with packed multipliers replaces this class; it must have the same members and
    ``latency``.

    Members
    -------
    valid : In(1)
        Operands are present.
    inp : In(batch * block_in * 8)
        Activations, int8, row-major [batch][block_in].
    wgt : In(block_out * block_in * 8)
        Weights, int8, row-major [block_out][block_in].
    total : Out(signed(32)) x (batch * block_out)
        Dot products, ``latency`` cycles later.
    """

    #: Cycles from operands to totals: registers after the operands, the products and the sums.
    latency = SUM - OPERANDS

    def __init__(self, params: HwParams) -> None:
        self.params = params
        super().__init__(
            {
                "valid": In(1),
                "inp": In(8 * params.entry_bytes("inp")),
                "wgt": In(8 * params.entry_bytes("wgt")),
                "total": Out(signed(32)).array(params.lanes),
            }
        )

    def elaborate(self, platform: object) -> Module:
        m = Module()
        params = self.params
        inp = Signal.like(self.inp, reset_less=True)
        wgt = Signal.like(self.wgt, reset_less=True)
        multiply = Signal()
        accumulate = Signal()
        m.d.sync += [multiply.eq(self.valid), accumulate.eq(multiply)]
        with m.If(self.valid):
            m.d.sync += [inp.eq(self.inp), wgt.eq(self.wgt)]
        for b in range(params.batch):
            for o in range(params.block_out):
                products = [
                    Signal(signed(32), name=f"product_{b}_{o}_{i}", reset_less=True)
                    for i in range(params.block_in)
                ]
                with m.If(multiply):
                    for i, product in enumerate(products):
                        left = inp.word_select(b * params.block_in + i, 8).as_signed()
                        right = wgt.word_select(o * params.block_in + i, 8).as_signed()
                        m.d.sync += product.eq(left * right)
                # A chain: simulators like it, and synthesis turns it into a carry-save tree.
                total = Signal(signed(32), name=f"total_{b}_{o}", reset_less=True)
                with m.If(accumulate):
                    m.d.sync += total.eq(reduce(add, products))
                m.d.comb += self.total[b * params.block_out + o].eq(total)
        return m


@dataclass
class _Iteration:
    """What the sequencer says about the iteration that issues in this cycle."""

    issue: Signal
    last: Signal
    index: Signal
    insn: data.View
    uop: Signal
    offsets: dict[str, Signal]


class Gemm(wiring.Component):
    """The tensor core (``docs/timing.md``, *Tensor core*).

    Parameters
    ----------
    params : HwParams
        The configuration.
    mac_array : type of MacArray
        The multiplier array to use.

    Members
    -------
    The ports of ``layouts.unit_members``, and

    uop, inp, wgt, acc : In(read_signature(...))
        Read ports of the scratchpads.
    write : In(write_signature("acc"))
        Write port of the accumulator.
    """

    def __init__(self, params: HwParams, mac_array: type[MacArray] = MacArray) -> None:
        if mac_array.latency != MacArray.latency:
            raise ValueError(
                f"mac_array.latency: expected {MacArray.latency} cycles, which GEMM_DEPTH allows, "
                f"got {mac_array.latency!r}"
            )
        self.params = params
        self.mac_array = mac_array
        super().__init__(
            unit_members(Unit.GEMM, params)
            | {name: In(read_signature(name, params)) for name in ("uop", *OPERAND_MEMORIES)}
            | {"write": In(write_signature("acc", params))}
        )

    def elaborate(self, platform: object) -> Module:
        m = Module()
        halted = Signal()
        iteration = self._sequence(m, halted)
        tags, indices = self._address(m, iteration, halted)
        self._accumulate(m, tags, indices)
        m.d.comb += [
            self.end.eq(tags[WRITE].valid & tags[WRITE].last),
            self.push.eq(Mux(self.end, tags[WRITE].push, 0)),
            self.end_index.eq(tags[WRITE].index),
            self.busy.eq(iteration.issue | self.start),
            self.idle.eq(~reduce(lambda a, b: a | b, (tag.valid for tag in tags))),
        ]
        with m.If(self.error.valid):
            m.d.sync += halted.eq(1)
        return m

    def _sequence(self, m: Module, halted: Signal) -> _Iteration:
        """Take instructions; step through their loops with adders only."""
        shape = insn_layout(Opcode.GEMM, self.params)
        head = overlay(self.insn.payload.word, shape)
        insn = Signal(shape, reset_less=True)
        index = Signal(INDEX_BITS, reset_less=True)
        active = Signal()
        issue = Signal()
        last = Signal()
        uop = Signal(self.params.index_bits("uop"), reset_less=True)
        left = {
            loop: Signal.like(getattr(insn, loop), name=f"{loop}_left", reset_less=True)
            for loop in ("uop_count", "inner", "outer")
        }
        at_end = {loop: Signal(name=f"{loop}_at_end") for loop in left}
        offsets, rows = (
            {
                # One bit more than an index: steps start from an index that was in range.
                name: Signal(
                    self.params.index_bits(name) + 1, name=f"{name}_{what}", reset_less=True
                )
                for name in OPERAND_MEMORIES
            }
            for what in ("offset", "row")
        )
        m.d.comb += [
            issue.eq(active & ~halted),
            last.eq(at_end["uop_count"] & at_end["inner"] & at_end["outer"]),
            *(at_end[loop].eq(left[loop] == 1) for loop in left),
        ]

        def restart(loop: str) -> None:
            m.d.sync += left[loop].eq(getattr(insn, loop))

        with m.If(issue):
            m.d.sync += [left["uop_count"].eq(left["uop_count"] - 1), uop.eq(uop + 1)]
            with m.If(at_end["uop_count"]):
                restart("uop_count")
                m.d.sync += [uop.eq(insn.uop_begin), left["inner"].eq(left["inner"] - 1)]
                for name in OPERAND_MEMORIES:
                    m.d.sync += offsets[name].eq(offsets[name] + insn[f"{name}_inner"])
                with m.If(at_end["inner"]):
                    restart("inner")
                    m.d.sync += left["outer"].eq(left["outer"] - 1)
                    for name in OPERAND_MEMORIES:
                        row = rows[name] + insn[f"{name}_outer"]
                        m.d.sync += [offsets[name].eq(row), rows[name].eq(row)]
            with m.If(last):
                m.d.sync += active.eq(0)

        self._take(m, head, (~active | last) & ~halted)
        with m.If(self.start):
            m.d.sync += [
                active.eq(1),
                insn.eq(head),
                index.eq(self.insn.payload.index),
                uop.eq(head.uop_begin),
                *(left[loop].eq(head[loop]) for loop in left),
                *(signal.eq(0) for signal in (*offsets.values(), *rows.values())),
            ]
        return _Iteration(issue, last, index, insn, uop, offsets)

    def _take(self, m: Module, head: data.View, ready: Signal) -> None:
        """Start the head of the queue when its tokens are there, or refuse it."""
        missing = head.pop & ~self.available
        taken = Signal()
        illegal = Signal()
        outside = Signal()
        m.d.comb += [
            self.insn.ready.eq(ready & (missing == 0)),
            taken.eq(self.insn.valid & self.insn.ready),
            illegal.eq(
                self.insn.payload.excess
                | (head.pop | head.push)[Unit.GEMM]
                | (head.uop_count == 0)
                | (head.outer == 0)
                | (head.inner == 0)
            ),
            outside.eq(head.uop_begin + head.uop_count > self.params.uop_depth),
            self.start.eq(taken & ~illegal & ~outside),
            self.pop.eq(Mux(self.start, head.pop, 0)),
            self.waiting.eq(Mux(self.insn.valid, missing, 0)),
        ]
        with m.If(taken & (illegal | outside)):
            m.d.comb += [
                self.error.valid.eq(1),
                self.error.status.eq(Mux(illegal, Status.ILLEGAL, Status.ADDRESS)),
                self.error.index.eq(self.insn.payload.index),
            ]

    def _address(
        self, m: Module, now: _Iteration, halted: Signal
    ) -> tuple[list[data.View], dict[str, list[Signal]]]:
        """Stages 0 to 4: read the micro-op, add offsets, check, present operand addresses.

        Returns the tag of every stage and, per memory, the index in the stages that have one.
        """
        tag_shape = data.StructLayout(
            {"valid": 1, "last": 1, "overwrite": 1, "push": 4, "index": INDEX_BITS}
        )
        tags = [Signal(tag_shape, name=f"tag{stage}") for stage in range(GEMM_DEPTH + 1)]
        uop = Signal(uop_layout(self.params), reset_less=True)
        offsets = {name: [now.offsets[name]] for name in OPERAND_MEMORIES}
        for name, stages in offsets.items():
            for stage in (UOP_READ, OFFSET):
                stages.append(Signal.like(stages[-1], name=f"{name}_offset{stage}"))
                m.d.sync += stages[-1].eq(stages[-2])
        m.d.comb += [
            tags[0].valid.eq(now.issue),
            tags[0].last.eq(now.last),
            tags[0].overwrite.eq(now.insn.init),
            tags[0].push.eq(now.insn.push),
            tags[0].index.eq(now.index),
            self.uop.addr.eq(now.uop),
            self.uop.en.eq(now.issue),
        ]
        m.d.sync += [following.eq(tag) for tag, following in pairwise(tags)]
        m.d.sync += uop.eq(self.uop.data)
        m.d.sync += tags[CHECK].overwrite.eq(tags[OFFSET].overwrite & uop.first)

        indices: dict[str, list[Signal]] = {}
        outside = Signal()
        for name in OPERAND_MEMORIES:
            checked = Signal(self.params.index_bits(name) + 2, name=f"{name}{CHECK}")
            m.d.sync += checked.eq(uop[name] + offsets[name][OFFSET])
            with m.If(checked >= self.params.depth(name)):
                m.d.comb += outside.eq(1)
            indices[name] = [checked] * (CHECK + 1)
        with m.If(tags[CHECK].valid & ~halted & outside):
            m.d.comb += [
                self.error.valid.eq(1),
                self.error.status.eq(Status.ADDRESS),
                self.error.index.eq(tags[CHECK].index),
            ]
        sound = tags[CHECK].valid & ~outside & ~halted
        m.d.sync += tags[OPERANDS].valid.eq(sound)
        for port, name in ((self.inp, "inp"), (self.wgt, "wgt")):
            m.d.comb += [port.addr.eq(indices[name][CHECK]), port.en.eq(sound)]
        for stage in range(OPERANDS, GEMM_DEPTH + 2):
            following = Signal(self.params.index_bits("acc"), name=f"acc{stage}")
            m.d.sync += following.eq(indices["acc"][-1])
            indices["acc"].append(following)
        return tags, indices

    def _accumulate(
        self, m: Module, tags: list[data.View], indices: dict[str, list[Signal]]
    ) -> None:
        """Stages 4 to 8: multiply, read the accumulator as late as can be, add, write.

        The read presented in stage 5 misses the writes of the three iterations ahead of it: those
        in stage 6 (added to in stage 7), 7 and 8 (picked up in stage 6) at that time.
        """
        acc = indices["acc"]
        m.submodules.mac = mac = self.mac_array(self.params)
        m.d.comb += [
            mac.valid.eq(tags[OPERANDS].valid),
            mac.inp.eq(self.inp.data),
            mac.wgt.eq(self.wgt.data),
            self.acc.addr.eq(acc[ACC_ADDRESS]),
            self.acc.en.eq(tags[ACC_ADDRESS].valid),
        ]
        ahead = {}
        for distance in (1, 2, 3):
            other = ACC_ADDRESS + distance
            ahead[distance] = Signal(name=f"same_as_{distance}_ahead")
            m.d.sync += ahead[distance].eq(tags[other].valid & (acc[other] == acc[ACC_ADDRESS]))
        chain = Signal()
        m.d.sync += chain.eq(ahead[1])
        results = []
        for lane in range(self.params.lanes):
            operand, result, written = (
                Signal(signed(32), name=f"{what}_{lane}", reset_less=True)
                for what in ("operand", "result", "written")
            )
            read = self.acc.data.word_select(lane, 32).as_signed()
            base = Mux(tags[SUM].overwrite, 0, Mux(chain, result, operand))
            with m.If(tags[ACC_READ].valid):
                m.d.sync += operand.eq(Mux(ahead[2], result, Mux(ahead[3], written, read)))
            with m.If(tags[SUM].valid):
                m.d.sync += result.eq(base + mac.total[lane])
            m.d.sync += written.eq(result)
            results.append(result)
        m.d.comb += [
            self.write.addr.eq(acc[WRITE]),
            self.write.data.eq(Cat(*results)),
            self.write.en.eq(tags[WRITE].valid),
        ]
