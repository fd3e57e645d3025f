"""The vector unit: four affine loops over int32 vectors, an operator of the table, reduction,
requantisation.

Pipeline of an iteration issued in cycle t (VECTOR_DEPTH of the timing contract)::

    t     addresses        t+4  reduced           t+8   shifted (even) / high half (tflite)
    t+1   operands read    t+5  plus bias         t+9   rounded
    t+2   registered       t+6  shifted left      t+10  plus zero point
    t+3   operator         t+7  product, 64 bits  t+11  clamped;  t+12  written, tokens pushed

The values of PARAM flow down the same pipeline and are captured by the stage that uses them, so
parameters change between two vectors without a bubble. An iteration that reads a tmp entry waits
while one in the pipeline is to write it.
"""

from __future__ import annotations

from amaranth.hdl import Cat, Const, Module, Mux, Signal, signed
from amaranth.lib import wiring
from amaranth.lib.wiring import Out

from ..isa.opcodes import DST_MEMORIES, SRC0_MEMORIES, SRC1_MEMORIES, Opcode, Unit
from ..isa.params import HwParams
from ..isa.status import Status
from ..isa.vector_ops import POST_BY_NAME, VECTOR_OPS
from ..sim.timing import VECTOR_DEPTH as DEPTH
from .layouts import INDEX_BITS, insn_layout
from .scratchpad import entry_bits, read_signature, write_signature
from .unit import raise_error, take, unit_signature

EVEN, TFLITE = POST_BY_NAME["even"].code, POST_BY_NAME["tflite"].code
#: What an iteration carries besides data: 0 a vector, 1.. the parameters that PARAM sets, in order.
TAG_DATA, TAG_BIAS, TAG_MULTIPLIER, TAG_SHIFT, TAG_CLAMP = range(5)


class AmaranthKit:
    """The arithmetic kit of ``isa/vector_ops.py`` over 32-bit signed values."""

    @staticmethod
    def min(a, b):
        return Mux(a < b, a, b)

    @staticmethod
    def max(a, b):
        return Mux(a < b, b, a)

    @staticmethod
    def add(a, b):
        return (a + b)[:32].as_signed()

    @staticmethod
    def sub(a, b):
        return (a - b)[:32].as_signed()

    @staticmethod
    def mul(a, b):
        return (a * b)[:32].as_signed()

    @staticmethod
    def shr(a, b):
        return a >> b[:5]

    @staticmethod
    def rshr(a, b):
        return shift_half_even(a, b[:5])[:32].as_signed()

    @staticmethod
    def shl(a, b):
        return (a << b[:5])[:32].as_signed()


def shift_half_even(value, shift):
    """``value / 2**shift`` rounded to nearest, ties to even: the half bit decides unless only it
    was dropped.
    """
    floor = value >> shift
    dropped = (value ^ (floor << shift))[: len(value)]
    half = (Const(1, len(value) + 1) << shift)[: len(value) + 1] >> 1
    up = (dropped > half) | ((dropped == half) & (half != 0) & floor[0])
    return floor + Mux(up, 1, 0)


class Vector(wiring.Component):
    """The vector unit; ports as in ``unit.unit_signature`` and one for every memory."""

    def __init__(self, params: HwParams):
        self.params = params

        def read(name: str) -> wiring.Signature:
            return read_signature(params.depth(name), entry_bits(name, params))

        def write(name: str) -> wiring.Signature:
            return write_signature(params.depth(name), entry_bits(name, params))

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
        running, last, fire = Signal(), Signal(), Signal()
        ready = ~running | (last & fire)
        start, head, index = take(m, unit, params, Opcode.VECTOR, ready, Unit.VECTOR)
        param_head = Signal(insn_layout(Opcode.PARAM, params), name="param_head")
        m.d.comb += param_head.as_value().eq(unit.insn.payload.word)
        insn, param = Signal.like(head), Signal.like(param_head)
        is_param = insn.opcode == Opcode.PARAM
        now = Signal(INDEX_BITS)
        step = Signal(2)
        counters = [Signal(10, name=f"i{k}") for k in range(4)]
        at_end = [counters[k] + 1 == insn[f"n{k}"] for k in range(4)]
        inner_done = [Cat(*at_end[k:]).all() for k in range(4)]
        first = Cat((counters[k] == 0) | (k < 4 - insn.reduce) for k in range(4)).all()
        done = Cat(at_end[k] | (k < 4 - insn.reduce) for k in range(4)).all()
        operands = {n: self._addresses(m, n, insn, head, start, fire, at_end) for n in _OPERANDS}
        m.d.comb += last.eq(running & Mux(is_param, step == 3, inner_done[0]))
        with m.If(fire):
            m.d.sync += step.eq(step + 1)
            with m.If(last):
                m.d.sync += running.eq(0)
            for k in range(4):
                inner = inner_done[k + 1] if k < 3 else 1
                with m.If(inner):
                    m.d.sync += counters[k].eq(Mux(at_end[k], 0, counters[k] + 1))
        with m.If(start):
            m.d.sync += [insn.eq(head), param.eq(param_head), now.eq(index), running.eq(1)]
            m.d.sync += [counter.eq(0) for counter in counters]
            m.d.sync += step.eq(0)
            with m.If(self._illegal(head)):
                raise_error(m, unit, Status.ILLEGAL, index)
        self._check_addresses(m, insn, param, is_param, operands, running, now)
        reads_tmp = [
            ~is_param & (insn.src0 == SRC0_MEMORIES.index("tmp")),
            ~is_param & (insn.src1 == SRC1_MEMORIES.index("tmp")),
        ]
        hazard = Signal()
        m.d.comb += [
            fire.eq(running & ~hazard),
            unit.busy.eq(fire | start),
            unit.stalled.eq(running & hazard),
        ]
        par_row = param.par_base + step
        m.d.comb += [
            self.acc.addr.eq(operands["src0"]),
            self.inp.addr.eq(operands["src0"]),
            self.tmp0.addr.eq(operands["src0"]),
            self.tmp1.addr.eq(operands["src1"]),
            self.par.addr.eq(Mux(is_param, par_row, operands["src1"])),
        ]
        return {
            "valid": fire,
            "tag": Mux(is_param, step + 1, TAG_DATA),
            "first": is_param | first,
            "done": is_param | done,
            "op": insn.op,
            "post": Mux(is_param, 0, insn.post),
            "src0": insn.src0,
            "src1": insn.src1,
            "imm": Mux(is_param, Cat(param.zero_point, param.lo, param.hi), insn.imm),
            "tmp": ~is_param & done & (insn.dst == DST_MEMORIES.index("tmp")),
            "out": ~is_param & done & (insn.dst == DST_MEMORIES.index("out")),
            "dst": operands["dst"],
            "last": last & fire,
            "push": insn.push,
            "hazard": hazard,
            "reads": [(reads_tmp[0], operands["src0"]), (reads_tmp[1], operands["src1"])],
        }

    def _addresses(self, m: Module, name: str, insn, head, start, fire, at_end):
        """The entry of an operand: a register per loop that holds the entry at the loop's current
        index.
        """
        width = len(insn[f"{name}_base"]) + 1
        levels = [Signal(width, name=f"{name}_{k}") for k in range(4)]
        for k in range(4):
            # The loop that advances is the innermost not at its end; it and all inside it take its
            # next entry.
            advances = ~at_end[k] & Cat(*at_end[k + 1 :], 1).all()
            following = levels[k] + insn[f"{name}_s{k}"]
            with m.If(fire & advances):
                m.d.sync += [levels[inner].eq(following) for inner in range(k, 4)]
        with m.If(start):
            m.d.sync += [level.eq(head[f"{name}_base"]) for level in levels]
        return levels[3]

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
        with m.If(running & Mux(is_param, rows, data)):
            raise_error(m, self.unit, Status.ADDRESS, now)

    # ---- datapath ----------------------------------------------------------------------------

    def _pipeline(self, m: Module, issued: dict) -> None:
        params, unit = self.params, self.unit
        carried = (
            "valid", "tag", "first", "done", "op", "post", "src0", "src1", "imm", "tmp", "out",
            "dst", "last", "push",
        )  # fmt: skip
        stages = [{n: issued[n] for n in carried}]
        for k in range(1, DEPTH + 1):
            stages.append({n: _register(m, v, f"{n}_{k}") for n, v in stages[-1].items()})
        self._interlock(m, issued, stages)
        final = stages[DEPTH]
        m.d.comb += [unit.end.eq(final["last"]), unit.push.eq(Mux(final["last"], final["push"], 0))]
        reduced = [self._reduce(m, stages, lane) for lane in range(params.lanes)]
        captured = self._parameters(m, stages, reduced)
        for lane in range(params.lanes):
            self._requantize(m, stages, captured, reduced[lane], lane)
        m.d.comb += [
            self.tmp_write.en.eq(final["valid"] & final["tmp"]),
            self.tmp_write.addr.eq(final["dst"]),
            self.out_write.en.eq(final["valid"] & final["out"]),
            self.out_write.addr.eq(final["dst"]),
        ]

    def _interlock(self, m: Module, issued: dict, stages: list[dict]) -> None:
        conflicts = [
            reads & stage["valid"] & stage["tmp"] & (stage["dst"] == entry)
            for stage in stages[1:]
            for reads, entry in issued["reads"]
        ]
        m.d.comb += issued["hazard"].eq(Cat(conflicts).any())

    def _reduce(self, m: Module, stages: list[dict], lane: int):
        """Operands, operator and reduction of one lane; the result is valid in t+4."""
        params = self.params
        channel = lane % params.block

        def word(port, index: int):
            return port.data[32 * index :][:32].as_signed()

        tag = stages[1]["tag"]
        sources0 = (
            word(self.acc, lane),
            self.inp.data[8 * lane :][:8].as_signed(),
            word(self.tmp0, lane),
        )
        sources1 = (stages[1]["imm"].as_signed(), word(self.par, channel), word(self.tmp1, lane))
        a, b = _data(32, f"a_{lane}"), _data(32, f"b_{lane}")
        with m.If(stages[1]["valid"]):
            with m.If(tag == TAG_DATA):
                m.d.sync += [
                    a.eq(_choose(stages[1]["src0"], sources0)),
                    b.eq(_choose(stages[1]["src1"], sources1)),
                ]
            with m.Else():
                # Parameters pass as the result of an addition to zero.
                m.d.sync += [a.eq(0), b.eq(Mux(tag == TAG_CLAMP, sources1[0], sources1[1]))]
        is_data = stages[2]["tag"] == TAG_DATA
        value, result = _data(32, f"v_{lane}"), _data(32, f"r_{lane}")
        with m.If(stages[2]["valid"]):
            with m.If(~is_data):
                m.d.sync += value.eq(b)
            with m.Else(), m.Switch(stages[2]["op"]):
                for op in VECTOR_OPS:
                    with m.Case(op.code):
                        first = op.first(AmaranthKit, a, b)
                        term = op.term(AmaranthKit, a, b) if op.term else first
                        m.d.sync += value.eq(Mux(stages[2]["first"], first, term))
        with m.If(stages[3]["valid"]):
            m.d.sync += result.eq(value)
            with m.If(~stages[3]["first"]), m.Switch(stages[3]["op"]):
                for op in VECTOR_OPS:
                    if op.combine is not None:
                        with m.Case(op.code):
                            m.d.sync += result.eq(op.combine(AmaranthKit, result, value))
        return result

    def _parameters(self, m: Module, stages: list[dict], reduced: list) -> dict[str, list]:
        """Parameter registers, each captured in the stage before the one that computes with it."""
        block = self.params.block
        names = {
            "bias": (4, TAG_BIAS), "left": (5, TAG_SHIFT), "multiplier": (6, TAG_MULTIPLIER),
            "shift": (7, TAG_SHIFT), "right": (8, TAG_SHIFT),
        }  # fmt: skip
        passing = {4: reduced[:block]}
        for k in range(5, 11):
            passing[k] = [_data(32, f"pass_{k}_{c}") for c in range(block)]
            with m.If(stages[k - 1]["tag"] != TAG_DATA):
                m.d.sync += [p.eq(q) for p, q in zip(passing[k], passing[k - 1], strict=True)]
        captured: dict[str, list] = {}
        for name, (k, tag) in names.items():
            captured[name] = [Signal(signed(32), name=f"{name}_{c}") for c in range(block)]
            with m.If(stages[k]["valid"] & (stages[k]["tag"] == tag)):
                m.d.sync += [r.eq(p) for r, p in zip(captured[name], passing[k], strict=True)]
        fields = {"zero_point": (9, 0, 0), "lo": (10, 8, -128), "hi": (10, 16, 127)}
        for name, (k, low, reset) in fields.items():
            register = Signal(signed(8), name=name, init=reset)
            with m.If(stages[k]["valid"] & (stages[k]["tag"] == TAG_CLAMP)):
                m.d.sync += register.eq(passing[k][0][low : low + 8].as_signed())
            captured[name] = [register]
        return captured

    def _requantize(self, m: Module, stages: list[dict], captured, result, lane: int) -> None:
        """Stages 5 to 12 of one lane."""
        channel = lane % self.params.block

        def enabled(k: int):
            return stages[k]["valid"] & stages[k]["done"] & (stages[k]["tag"] == TAG_DATA)

        def post(k: int):
            return stages[k]["post"]

        def register(k: int, bits: int) -> Signal:
            return _data(bits, f"s{k}_{lane}")

        s5, s6, s7, s8 = register(5, 32), register(6, 32), register(7, 64), register(8, 64)
        s9, s10, s11 = register(9, 64), register(10, 65), register(11, 32)
        bias, left = captured["bias"][channel], captured["left"][channel]
        with m.If(enabled(4)):
            m.d.sync += s5.eq(result + Mux(post(4) != 0, bias, 0))
        with m.If(enabled(5)):
            amount = (-left)[:5]
            shifted = (s5 << amount)[:32].as_signed()
            m.d.sync += s6.eq(Mux((post(5) == TFLITE) & (left < 0), shifted, s5))
        multiplier = captured["multiplier"][channel]
        with m.If(enabled(6)):
            m.d.sync += s7.eq(Mux(post(6) != 0, s6 * multiplier, s6))
        with m.If(enabled(7)):
            even = shift_half_even(s7, captured["shift"][channel][:6])
            m.d.sync += s8.eq(
                Mux(post(7) == EVEN, even, Mux(post(7) == TFLITE, _high_half(s7), s7))
            )
        with m.If(enabled(8)):
            right = captured["right"][channel]
            amount = Mux(right < 0, 0, right[:5])
            m.d.sync += s9.eq(Mux(post(8) == TFLITE, _round_away(s8, amount), s8))
        with m.If(enabled(9)):
            m.d.sync += s10.eq(s9 + Mux(post(9) != 0, captured["zero_point"][0], 0))
        lo, hi = captured["lo"][0], captured["hi"][0]
        with m.If(enabled(10)):
            low = Mux(post(10) != 0, lo, -128)
            high = Mux(post(10) != 0, hi, 127)
            clamped = Mux(s10 < low, low, Mux(s10 > high, high, s10))
            saturates = (post(10) != 0) | stages[10]["out"]
            m.d.sync += s11.eq(Mux(saturates, clamped, s10))
        with m.If(enabled(11)):
            m.d.sync += self.tmp_write.data[32 * lane :][:32].eq(s11)
            m.d.sync += self.out_write.data[8 * lane :][:8].eq(s11)


_OPERANDS = ("src0", "src1", "dst")


def _high_half(product):
    """Saturating rounding doubling high multiply of TensorFlow Lite, from the 64-bit product."""
    total = product + Mux(product < 0, 1 - (1 << 30), 1 << 30)
    truncated = Mux(total < 0, -((-total) >> 31), total >> 31)
    return Mux(product == (1 << 62), (1 << 31) - 1, truncated)


def _round_away(value, amount):
    """Rounding divide by a power of two of TensorFlow Lite: ties away from zero."""
    mask = ((Const(1, 33) << amount) - 1)[:32]
    remainder = value[:32] & mask
    threshold = (mask >> 1) + (value < 0)
    return (value >> amount) + (remainder > threshold)


def _choose(select, values):
    """One of several values by code."""
    chosen = values[-1]
    for code in range(len(values) - 2, -1, -1):
        chosen = Mux(select == code, values[code], chosen)
    return chosen


def _data(bits: int, name: str) -> Signal:
    """A register of the datapath. What it holds counts only beside a valid flag, so it needs no
    reset.
    """
    return Signal(signed(bits), name=name, reset_less=True)


def _register(m: Module, value, name: str) -> Signal:
    """The value one cycle later."""
    later = Signal(len(value), name=name)
    m.d.sync += later.eq(value)
    return later
