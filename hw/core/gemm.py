"""The tensor core: micro-ops inside two affine loops, batch x block_in x block_out MACs a cycle,
one iteration a cycle.

Pipeline of an iteration issued in cycle t (GEMM_DEPTH of the timing contract)::

    t     micro-op address         t+5  products; accumulator address
    t+1   micro-op: indices        t+6  sums; accumulator read
    t+2   operand addresses        t+7  accumulator (registered or forwarded) + sum
    t+3   operands read            t+8  result written, tokens pushed
    t+4   operands registered

The accumulator is read late and the three results that the read cannot see yet are forwarded, so
accumulation runs at one iteration a cycle at any distance.
"""

from __future__ import annotations

from amaranth.hdl import Cat, Module, Mux, Signal
from amaranth.lib import wiring
from amaranth.lib.wiring import Out

from ...isa.opcodes import Opcode, Unit
from ...isa.params import HwParams
from ...isa.status import Status
from ...isa.timing import GEMM_DEPTH as DEPTH
from .layouts import INDEX_BITS, uop_struct
from .scratchpad import read_signature, rows, write_signature
from .technology import SIMULATION, Technology
from .unit import delayed, raise_error, take, unit_signature

#: Outputs that have a register of activations in common, in an FPGA.
OUTPUTS_OF_COPY = 4
_OPERANDS = ("acc", "inp", "wgt")


class Gemm(wiring.Component):
    """The tensor core; ports as in ``unit.unit_signature`` and one for every memory."""

    def __init__(self, params: HwParams, technology: Technology = SIMULATION):
        self.params, self.technology = params, technology

        def read(name: str) -> wiring.Signature:
            return read_signature(*rows(name, params))

        super().__init__(
            {
                "unit": Out(unit_signature(params)),
                "uop": Out(read("uop")),
                "inp": Out(read("inp")),
                "wgt": Out(read("wgt")),
                "acc": Out(read("acc")),
                "acc_write": Out(write_signature(*rows("acc", params))),
            }
        )

    def elaborate(self, platform) -> Module:
        m = Module()
        issue = self._issue(m)
        self._pipeline(m, *issue)
        return m

    # ---- loops -------------------------------------------------------------------------------

    def _issue(self, m: Module):
        """The loops: (iteration valid, its offsets, micro-op address, init, last, push mask,
        index).
        """
        params, unit = self.params, self.unit
        running = Signal()
        last = Signal()
        start, head, index = take(m, unit, params, Opcode.GEMM, ~running | last, Unit.GEMM)
        insn = Signal.like(head, reset_less=True)
        now = Signal(INDEX_BITS, reset_less=True)
        uop, inner, outer = Signal(range(params.uop_depth + 1)), Signal(12), Signal(12)
        # Offsets of the current iteration, and of the first inner iteration of the current outer
        # one.
        offset = {n: Signal(params.index_bits(n) + 1, name=f"offset_{n}") for n in _OPERANDS}
        row = {n: Signal(params.index_bits(n) + 1, name=f"row_{n}") for n in _OPERANDS}
        # Counters at their ends, and all of them (the last iteration): known ahead, in registers.
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
        beyond = head.uop_begin + head.uop_count > params.uop_depth
        raise_error(m, unit, start & beyond, Status.ADDRESS, index)
        empty = (head.uop_count == 0) | (head.inner == 0) | (head.outer == 0)
        raise_error(m, unit, start & empty, Status.ILLEGAL, index)
        return running, offset, insn.init, last, insn.push, now

    # ---- datapath ----------------------------------------------------------------------------

    def _pipeline(self, m: Module, valid, offset, init, last, push, index) -> None:
        params, unit = self.params, self.unit
        flags = {"valid": valid, "last": valid & last, "push": push}
        stages = [flags]
        for k in range(1, DEPTH + 1):
            stages.append({n: delayed(m, v, f"{n}_{k}") for n, v in stages[-1].items()})
        m.d.comb += [
            unit.end.eq(stages[DEPTH]["last"]),
            unit.push.eq(Mux(stages[DEPTH]["last"], stages[DEPTH]["push"], 0)),
        ]
        # t+1: indices are micro-op plus offset, registered as addresses of t+2.
        uop = Signal(uop_struct(params))
        m.d.comb += uop.as_value().eq(self.uop.data)
        offset_1 = {n: delayed(m, offset[n], f"offset_{n}_1") for n in _OPERANDS}
        overwrite = delayed(m, delayed(m, init, "init_1") & uop.first, "overwrite_2")
        entry = {n: Signal(params.index_bits(n) + 2, name=f"entry_{n}") for n in _OPERANDS}
        m.d.comb += [entry[n].eq(uop[n] + offset_1[n]) for n in _OPERANDS]
        entry_2 = {n: delayed(m, entry[n], f"{n}_2") for n in _OPERANDS}
        beyond = Cat(entry_2[n] >= params.depth(n) for n in _OPERANDS).any()
        index_2 = delayed(m, delayed(m, index, "index_1"), "index_2")
        raise_error(m, unit, stages[2]["valid"] & beyond, Status.ADDRESS, index_2)
        address = {n: entry_2[n][: params.index_bits(n)] for n in _OPERANDS}
        m.d.comb += [self.inp.addr.eq(address["inp"]), self.wgt.addr.eq(address["wgt"])]
        # t+3 read, t+4 registered.
        w = Signal(len(self.wgt.data), reset_less=True)
        with self.technology.when(m, stages[3]["valid"]):
            m.d.sync += w.eq(self.wgt.data)
            count = -(-params.block_out // OUTPUTS_OF_COPY) if self.technology.copies else 1
            x = [delayed(m, self.inp.data, f"x_{n}", copy=True) for n in range(count)]
        seen = [x[o * count // params.block_out] for o in range(params.block_out)]
        sums = self.technology.multiplier(m, params, seen, w)
        self._accumulate(m, stages, sums, address["acc"], overwrite)

    def _accumulate(self, m: Module, stages, sums, acc_2, overwrite_2) -> None:
        """Sums are registered for t+6; the accumulator meets them in t+7."""
        params = self.params
        lanes = params.batch * params.block_out
        acc, overwrite = {2: acc_2}, {2: overwrite_2}
        for k in range(3, DEPTH + 1):
            acc[k] = delayed(m, acc[k - 1], f"acc_{k}")
            overwrite[k] = delayed(m, overwrite[k - 1], f"overwrite_{k}") if k < 8 else None
        m.d.comb += self.acc.addr.eq(acc[5])
        # Results of the three iterations before, which the memory did not return yet: two are there
        # in t+6, the last one in t+7.
        results = {k: Signal(len(self.acc.data), name=f"result_{k}", reset_less=True)
                   for k in (8, 9)}  # fmt: skip
        m.d.sync += results[9].eq(results[8])

        def forwards(k: int, now: int) -> Signal:
            """Stage k has what is accumulated on in t+now; compared a cycle early."""
            same = stages[k - 1]["valid"] & (acc[k - 1] == acc[now - 1])
            return delayed(m, same, f"forwards_{k}_{now}")

        late = [forwards(k, 6) for k in (8, 9)]
        held = Signal(len(self.acc.data), reset_less=True)
        sum_7 = [Signal(32, name=f"sum_7_{i}", reset_less=True) for i in range(lanes)]
        with self.technology.when(m, stages[6]["valid"]):
            result = Mux(late[0], results[8], results[9])
            m.d.sync += held.eq(Mux(late[0] | late[1], result, self.acc.data))
            m.d.sync += [here.eq(total) for here, total in zip(sum_7, sums, strict=True)]
        base_7 = Signal(len(held))
        base = Mux(forwards(8, 7), results[8], held)
        m.d.comb += base_7.eq(Mux(overwrite[7], 0, base))
        with self.technology.when(m, stages[7]["valid"]):
            for i in range(lanes):
                lane = slice(32 * i, 32 * i + 32)
                m.d.sync += results[8][lane].eq(base_7[lane] + sum_7[i])
        m.d.comb += [
            self.acc_write.en.eq(stages[8]["valid"]),
            self.acc_write.addr.eq(acc[8]),
            self.acc_write.data.eq(results[8]),
        ]
