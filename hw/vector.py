"""Vector unit: element-wise operators, reductions and requantisation, one vector a cycle.

The pipeline, by cycles after an iteration issues (operands presented to the scratchpads):

====  ===============================================================================
1     operands read, chosen and widened to int32
2     operator
3     folded into the running result of a reduction
4     bias
5     left shift (tflite)
6     two partial products with the multiplier
7     product
8     rounding doubling high half (tflite)
9     right shift; dropped bits summarised
10    rounding
11    zero point, clamp
12    tmp or out written
====  ===============================================================================

A PARAM instruction sends its values through the same pipeline as results without post-operation;
each is captured by the stage that uses it as it passes, so that instructions before and after it
need not wait.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import reduce
from itertools import pairwise
from operator import and_, or_

from amaranth.hdl import Cat, Const, Module, Mux, Shape, Signal, Value, signed
from amaranth.lib import data, wiring
from amaranth.lib.wiring import In, Out

from ..isa.opcodes import DST_MEMORIES, SRC0_MEMORIES, SRC1_MEMORIES, Opcode, Unit
from ..isa.params import HwParams
from ..isa.status import Status
from ..isa.vector_ops import BY_CODE, POST_BY_CODE, POST_BY_NAME, VECTOR_OPS
from ..sim.timing import PARAM_ITERATIONS, VECTOR_DEPTH
from .layouts import INDEX_BITS, insn_layout, overlay, unit_members
from .scratchpad import read_signature, write_signature

#: Stages of the table above, by what they do.
READ, OPERATE, FOLD, BIAS, LEFT, PARTIAL, PRODUCT, HIGH, SHIFT, ROUND, CLAMP, WRITE = range(
    1, VECTOR_DEPTH + 1
)
LOOPS = 4
OPERANDS = {"src0": SRC0_MEMORIES, "src1": SRC1_MEMORIES, "dst": DST_MEMORIES}
#: What the iterations of PARAM carry.
CARRY_BIAS, CARRY_MULTIPLIER, CARRY_SHIFT, CARRY_CLAMP = range(PARAM_ITERATIONS)

#: Extents of PARAM as a loop nest.
_PARAM_EXTENTS = (1, 1, 1, PARAM_ITERATIONS)

NONE = POST_BY_NAME["none"].code
TFLITE = POST_BY_NAME["tflite"].code


class AmaranthKit:
    """The arithmetic kit of ``isa.vector_ops`` over signed 32-bit Amaranth values."""

    @staticmethod
    def min(a: Value, b: Value) -> Value:
        return Mux(a < b, a, b)

    @staticmethod
    def max(a: Value, b: Value) -> Value:
        return Mux(a > b, a, b)

    @staticmethod
    def add(a: Value, b: Value) -> Value:
        return (a + b)[:32].as_signed()

    @staticmethod
    def sub(a: Value, b: Value) -> Value:
        return (a - b)[:32].as_signed()

    @staticmethod
    def mul(a: Value, b: Value) -> Value:
        return (a * b)[:32].as_signed()

    @staticmethod
    def shr(a: Value, b: Value) -> Value:
        return a >> b[:5]

    @staticmethod
    def rshr(a: Value, b: Value) -> Value:
        floor = a >> b[:5]
        half, sticky = dropped_bits(a, b[:5])
        return (floor + (half & (sticky | floor[0])))[:32].as_signed()

    @staticmethod
    def shl(a: Value, b: Value) -> Value:
        return (a << b[:5])[:32].as_signed()


def dropped_bits(value: Value, amount: Value) -> tuple[Value, Value]:
    """The highest of the bits that ``value >> amount`` drops, and whether any below it is set.

    The width of ``value`` is a power of two and ``amount`` covers it, so the complement of
    ``amount`` is width - 1 - amount.
    """
    bits = len(value)
    dropped = ((value.as_unsigned() << 1)[:bits] << (~amount)[: len(amount)])[:bits]
    return dropped[-1], dropped[:-1].any()


def _any(values: list[Value]) -> Value:
    return reduce(or_, values)


@dataclass
class _Iteration:
    """What the sequencer says about the iteration at its head."""

    active: Signal
    last: Signal
    first: Signal
    write: Signal
    param: Signal
    carry: Value
    insn: data.View
    index: Signal
    address: dict[str, Signal]


class Vector(wiring.Component):
    """The vector unit (``docs/timing.md``, *Vector unit*). Executes VECTOR and PARAM.

    Parameters
    ----------
    params : HwParams
        The configuration.

    Members
    -------
    The ports of ``layouts.unit_members``, and

    hazard : Out(1)
        An iteration waits for a tmp entry that is still to be written.
    acc, inp, par, tmp_src0, tmp_src1 : In(read_signature(...))
        Read ports of the scratchpads.
    write_tmp, write_out : In(write_signature(...))
        Write ports of tmp and out.
    """

    def __init__(self, params: HwParams) -> None:
        self.params = params
        super().__init__(
            unit_members(Unit.VECTOR, params)
            | {"hazard": Out(1)}
            | {name: In(read_signature(name, params)) for name in ("acc", "inp", "par")}
            | {f"tmp_{src}": In(read_signature("tmp", params)) for src in ("src0", "src1")}
            | {f"write_{name}": In(write_signature(name, params)) for name in DST_MEMORIES}
        )

    def elaborate(self, platform: object) -> Module:
        m = Module()
        halted = Signal()
        issue = Signal()
        now = self._sequence(m, issue, halted)
        tags = self._tags(m, now, issue)
        outside = self._present(m, now, issue)
        hazard = self._hazard(m, now, tags)
        ready = now.active & ~halted & ~hazard
        m.d.comb += [issue.eq(ready & ~outside), self.hazard.eq(now.active & ~halted & hazard)]
        with m.If(ready & outside):
            self._stop(m, Status.ADDRESS, now.index)
        with m.If(self.error.valid):
            m.d.sync += halted.eq(1)

        results = [self._lane(m, tags, lane) for lane in range(self.params.lanes)]
        end = tags[WRITE].valid & tags[WRITE].last
        for code, name in enumerate(DST_MEMORIES):
            bits = 32 if name == "tmp" else 8
            port = getattr(self, f"write_{name}")
            m.d.comb += [
                port.addr.eq(tags[WRITE].address),
                port.data.eq(Cat(*(result[:bits] for result in results))),
                port.en.eq(tags[WRITE].valid & tags[WRITE].write & (tags[WRITE].dst == code)),
            ]
        m.d.comb += [
            self.end.eq(end),
            self.push.eq(Mux(end, tags[WRITE].push, 0)),
            self.end_index.eq(tags[WRITE].index),
            self.busy.eq(issue | self.start),
            self.idle.eq(~_any([now.active, *(tag.valid for tag in tags)])),
        ]
        return m

    def _stop(self, m: Module, status: Status | Value, index: Value) -> None:
        m.d.comb += [
            self.error.valid.eq(1),
            self.error.status.eq(status),
            self.error.index.eq(index),
        ]

    # ---- instructions and their loops ----------------------------------------------------------

    def _sequence(self, m: Module, issue: Signal, halted: Signal) -> _Iteration:
        """Take instructions; step through their loops with one adder for each operand."""
        shape = insn_layout(Opcode.VECTOR, self.params)
        insn = Signal(shape, reset_less=True)
        index = Signal(INDEX_BITS, reset_less=True)
        active = Signal()
        param = Signal(reset_less=True)
        left = [Signal.like(insn[f"n{k}"], name=f"left{k}", reset_less=True) for k in range(LOOPS)]
        at_end = [Signal(name=f"at_end{k}") for k in range(LOOPS)]
        folded = [insn.reduce > LOOPS - 1 - k for k in range(LOOPS)]
        last, first, write = Signal(name="last"), Signal(name="first"), Signal(name="write")
        m.d.comb += [
            *(at_end[k].eq(left[k] == 1) for k in range(LOOPS)),
            last.eq(reduce(and_, at_end)),
            first.eq(reduce(and_, (~folded[k] | (left[k] == insn[f"n{k}"]) for k in range(LOOPS)))),
            write.eq(~param & reduce(and_, (~folded[k] | at_end[k] for k in range(LOOPS)))),
        ]
        # Loop k steps when all inside it are at their end, and advances unless it is so itself.
        steps = [reduce(and_, at_end[k + 1 :], Const(1)) for k in range(LOOPS)]
        advances = [steps[k] & ~at_end[k] for k in range(LOOPS)]
        with m.If(issue):
            for k in range(LOOPS):
                with m.If(steps[k]):
                    m.d.sync += left[k].eq(Mux(at_end[k], insn[f"n{k}"], left[k] - 1))
            with m.If(last):
                m.d.sync += active.eq(0)
        starts = {name: self._pointers(m, name, insn, issue, advances) for name in OPERANDS}

        word = self.insn.payload.word
        vector = overlay(word, shape)
        values = overlay(word, insn_layout(Opcode.PARAM, self.params))
        is_param = vector.opcode == Opcode.PARAM
        self._take(m, vector, values, is_param, (~active | (issue & last)) & ~halted)
        with m.If(self.start):
            m.d.sync += [
                active.eq(1),
                index.eq(self.insn.payload.index),
                param.eq(is_param),
                insn.eq(vector),
                *(left[k].eq(vector[f"n{k}"]) for k in range(LOOPS)),
                *(
                    pointer.eq(vector[f"{name}_base"])
                    for name, pointers in starts.items()
                    for pointer in pointers
                ),
            ]
            with m.If(is_param):
                m.d.sync += self._as_vector(insn, values)
                m.d.sync += [signal.eq(n) for signal, n in zip(left, _PARAM_EXTENTS, strict=True)]
                m.d.sync += [pointer.eq(values.par_base) for pointer in starts["src1"]]
        address = {name: pointers[-1] for name, pointers in starts.items()}
        carry = (PARAM_ITERATIONS - left[-1])[:2]
        return _Iteration(active, last, first, write, param, carry, insn, index, address)

    def _as_vector(self, insn: data.View, values: data.View) -> list:
        """PARAM as a vector instruction over par, whose last iteration carries an immediate."""
        return [
            insn.post.eq(NONE),
            insn.reduce.eq(0),
            insn.src1.eq(SRC1_MEMORIES.index("par")),
            insn.imm.eq(Cat(values.zero_point, values.lo, values.hi)),
            *(insn[f"n{k}"].eq(n) for k, n in enumerate(_PARAM_EXTENTS)),
            insn.src1_s3.eq(1),
        ]

    def _pointers(
        self, m: Module, name: str, insn: data.View, issue: Signal, advances: list[Value]
    ) -> list[Signal]:
        """Where each loop of an operand stands; the innermost pointer is the index to use."""
        # One bit more than an index: steps start from an index that was in range.
        bits = len(insn[f"{name}_base"]) + 1
        pointers = [Signal(bits, name=f"{name}_at{k}", reset_less=True) for k in range(LOOPS)]
        origin, stride, following = (
            Signal(bits, name=f"{name}_{what}") for what in ("origin", "stride", "next")
        )
        for k in range(LOOPS):
            with m.If(advances[k]):
                m.d.comb += [origin.eq(pointers[k]), stride.eq(insn[f"{name}_s{k}"])]
        m.d.comb += following.eq(origin + stride)
        for k in range(LOOPS):
            with m.If(issue & _any(advances[: k + 1])):
                m.d.sync += pointers[k].eq(following)
        return pointers

    def _take(
        self, m: Module, vector: data.View, values: data.View, is_param: Value, ready: Value
    ) -> None:
        """Start the head of the queue when its tokens are there, or refuse it."""
        missing = vector.pop & ~self.available
        taken, illegal, outside = (Signal(name=name) for name in ("taken", "illegal", "outside"))
        m.d.comb += [
            self.insn.ready.eq(ready & (missing == 0)),
            taken.eq(self.insn.valid & self.insn.ready),
            illegal.eq(
                self.insn.payload.excess
                | (vector.pop | vector.push)[Unit.VECTOR]
                | Mux(is_param, self._illegal_param(values), self._illegal_vector(vector))
            ),
            outside.eq(is_param & (values.par_base + 3 > self.params.par_depth)),
            self.start.eq(taken & ~illegal & ~outside),
            self.pop.eq(Mux(self.start, vector.pop, 0)),
            self.waiting.eq(Mux(self.insn.valid, missing, 0)),
        ]
        with m.If(taken & (illegal | outside)):
            self._stop(m, Mux(illegal, Status.ILLEGAL, Status.ADDRESS), self.insn.payload.index)

    def _illegal_param(self, values: data.View) -> Value:
        above = self.insn.payload.word[values.shape().size :]
        return (values.lo > values.hi) | above.any()

    def _illegal_vector(self, insn: data.View) -> Value:
        reducing = Cat(*(code in BY_CODE and BY_CODE[code].term is not None for code in range(16)))
        known = Cat(*(code in BY_CODE for code in range(16)))
        known_post = Cat(*(code in POST_BY_CODE for code in range(4)))
        folded_stride = (
            (insn.reduce > LOOPS - 1 - k) & (insn[f"dst_s{k}"] != 0) for k in range(LOOPS)
        )
        return _any(
            [
                *(insn[f"n{k}"] == 0 for k in range(LOOPS)),
                ~known.bit_select(insn.op, 1),
                ~known_post.bit_select(insn.post, 1),
                insn.src0 >= len(SRC0_MEMORIES),
                insn.src1 >= len(SRC1_MEMORIES),
                insn.reduce > LOOPS,
                (insn.reduce != 0) & ~reducing.bit_select(insn.op, 1),
                *folded_stride,
            ]
        )

    # ---- issue ---------------------------------------------------------------------------------

    def _tags(self, m: Module, now: _Iteration, issue: Signal) -> list[data.View]:
        """What travels down the pipeline beside the data."""
        insn = now.insn
        copied = ("op", "post", "src0", "src1", "dst", "imm", "push")
        shape = data.StructLayout(
            {"valid": 1, "last": 1, "first": 1, "write": 1, "param": 1, "carry": 2}
            | {"index": INDEX_BITS}
            | {"address": max(self.params.index_bits(name) for name in DST_MEMORIES)}
            | {name: Shape.cast(insn[name].shape()) for name in copied}
        )
        tags = [Signal(shape, name=f"tag{stage}") for stage in range(VECTOR_DEPTH + 1)]
        m.d.comb += [
            tags[0].valid.eq(issue),
            tags[0].last.eq(now.last),
            tags[0].first.eq(now.first),
            tags[0].write.eq(now.write),
            tags[0].param.eq(now.param),
            tags[0].carry.eq(now.carry),
            tags[0].index.eq(now.index),
            tags[0].address.eq(now.address["dst"]),
            *(tags[0][name].eq(insn[name]) for name in copied),
        ]
        with m.If(now.param & now.last):
            m.d.comb += tags[0].src1.eq(SRC1_MEMORIES.index("imm"))
        m.d.sync += [following.eq(tag) for tag, following in pairwise(tags)]
        return tags

    def _present(self, m: Module, now: _Iteration, issue: Signal) -> Value:
        """Read the operands; returns whether an index of the iteration is out of range."""
        outside = []
        for name, memories in OPERANDS.items():
            address = now.address[name]
            for code, memory in enumerate(memories):
                if memory == "imm":
                    continue
                used = now.insn[name] == code
                if name == "src1":
                    used &= ~(now.param & now.last)
                else:
                    used &= ~now.param
                outside.append(used & (address >= self.params.depth(memory)))
                if name != "dst":
                    port = getattr(self, f"tmp_{name}" if memory == "tmp" else memory)
                    m.d.comb += [port.addr.eq(address), port.en.eq(issue & used)]
        return _any(outside)

    def _hazard(self, m: Module, now: _Iteration, tags: list[data.View]) -> Value:
        """Whether the iteration reads a tmp entry that an iteration in the pipeline will write."""
        tmp = DST_MEMORIES.index("tmp")
        hits = []
        for name, memories in (("src0", SRC0_MEMORIES), ("src1", SRC1_MEMORIES)):
            reads = (now.insn[name] == memories.index("tmp")) & ~now.param
            for tag in tags[1:]:
                writes = tag.valid & tag.write & (tag.dst == tmp)
                hits.append(reads & writes & (tag.address == now.address[name]))
        return _any(hits)

    # ---- one lane of the datapath --------------------------------------------------------------

    def _lane(self, m: Module, tags: list[data.View], lane: int) -> Signal:
        """Stages 1 to 11 for one element; returns the value to write, valid in stage 12."""
        result = self._fold(m, tags, lane)
        product = self._product(m, tags, lane, result)
        return self._finish(m, tags, lane, product)

    def _fold(self, m: Module, tags: list[data.View], lane: int) -> Signal:
        """Stages 1 to 3: operands, operator, reduction."""
        a, b, term, result = (
            Signal(signed(32), name=f"{name}_{lane}", reset_less=True)
            for name in ("a", "b", "term", "result")
        )
        channel = lane % self.params.block_out
        with m.If(tags[READ].valid):
            with m.Switch(tags[READ].src0):
                with m.Case(SRC0_MEMORIES.index("acc")):
                    m.d.sync += a.eq(self.acc.data.word_select(lane, 32).as_signed())
                with m.Case(SRC0_MEMORIES.index("inp")):
                    m.d.sync += a.eq(self.inp.data.word_select(lane, 8).as_signed())
                with m.Default():
                    m.d.sync += a.eq(self.tmp_src0.data.word_select(lane, 32).as_signed())
            with m.Switch(tags[READ].src1):
                with m.Case(SRC1_MEMORIES.index("imm")):
                    m.d.sync += b.eq(tags[READ].imm)
                with m.Case(SRC1_MEMORIES.index("par")):
                    m.d.sync += b.eq(self.par.data.word_select(channel, 32).as_signed())
                with m.Default():
                    m.d.sync += b.eq(self.tmp_src1.data.word_select(lane, 32).as_signed())
        with m.If(tags[OPERATE].valid & tags[OPERATE].param):
            m.d.sync += term.eq(b)
        with m.Elif(tags[OPERATE].valid), m.Switch(tags[OPERATE].op):
            for op in VECTOR_OPS:
                with m.Case(op.code):
                    value = op.first(AmaranthKit, a, b)
                    if op.term is not None:
                        value = Mux(tags[OPERATE].first, value, op.term(AmaranthKit, a, b))
                    m.d.sync += term.eq(value)
        with m.If(tags[FOLD].valid & (tags[FOLD].first | tags[FOLD].param)):
            m.d.sync += result.eq(term)
        with m.Elif(tags[FOLD].valid), m.Switch(tags[FOLD].op):
            for op in VECTOR_OPS:
                if op.combine is not None:
                    with m.Case(op.code):
                        m.d.sync += result.eq(op.combine(AmaranthKit, result, term))
        return result

    def _register(
        self, m: Module, tag: data.View, carry: int, name: str, shape: Shape, value: Value
    ) -> Signal:
        """A requantisation parameter, captured as the iteration that carries it passes a stage."""
        register = Signal(shape, name=name)
        with m.If(tag.valid & tag.param & (tag.carry == carry)):
            m.d.sync += register.eq(value)
        return register

    def _product(self, m: Module, tags: list[data.View], lane: int, result: Signal) -> Signal:
        """Stages 4 to 7: bias, left shift, multiplier. Without post-operation times one."""
        word = signed(32)
        biased, shifted = (
            Signal(word, name=f"{name}_{lane}", reset_less=True) for name in ("biased", "shifted")
        )
        low, high, product = (
            Signal(signed(64), name=f"{name}_{lane}", reset_less=True)
            for name in ("low", "high", "product")
        )
        bias = self._register(m, tags[BIAS], CARRY_BIAS, f"bias_{lane}", word, result)
        left = self._register(m, tags[LEFT], CARRY_SHIFT, f"left_{lane}", word, biased)
        factor = self._register(
            m, tags[PARTIAL], CARRY_MULTIPLIER, f"multiplier_{lane}", word, shifted
        )
        with m.If(tags[BIAS].valid):
            m.d.sync += biased.eq(Mux(tags[BIAS].post == NONE, result, result + bias))
        with m.If(tags[LEFT].valid):
            moves = (tags[LEFT].post == TFLITE) & (left < 0)
            m.d.sync += shifted.eq(Mux(moves, biased << (-left)[:5], biased))
        with m.If(tags[PARTIAL].valid):
            chosen = Mux(tags[PARTIAL].post == NONE, 1, factor)
            m.d.sync += [
                low.eq(shifted * chosen[:16]),
                high.eq(shifted * chosen[16:32].as_signed()),
            ]
        with m.If(tags[PRODUCT].valid):
            m.d.sync += product.eq((high << 16) + low)
        return product

    def _finish(self, m: Module, tags: list[data.View], lane: int, product: Signal) -> Signal:
        """Stages 8 to 11: rounding right shift, zero point, clamp."""
        wide = signed(64)
        value, floor, rounded = (
            Signal(wide, name=f"{name}_{lane}", reset_less=True)
            for name in ("value", "floor", "rounded")
        )
        amount = Signal(6, name=f"amount_{lane}", reset_less=True)
        half, sticky = (
            Signal(name=f"{name}_{lane}", reset_less=True) for name in ("half", "sticky")
        )
        output = Signal(signed(32), name=f"output_{lane}", reset_less=True)

        shift = self._register(
            m, tags[HIGH], CARRY_SHIFT, f"shift_{lane}", signed(32), product[:32]
        )
        with m.If(tags[HIGH].valid), m.Switch(tags[HIGH].post):
            with m.Case(TFLITE):
                # Equals nudge by sign and truncation; only -2**31 squared saturates.
                doubled = ((product + (1 << 30)) >> 31)[:33].as_signed()
                m.d.sync += value.eq(Mux(doubled == 1 << 31, (1 << 31) - 1, doubled))
                m.d.sync += amount.eq(Mux(shift < 0, 0, shift[:5]))
            with m.Case(NONE):
                m.d.sync += [value.eq(product), amount.eq(0)]
            with m.Default():
                m.d.sync += [value.eq(product), amount.eq(shift[:6])]
        with m.If(tags[SHIFT].valid):
            highest, others = dropped_bits(value, amount)
            m.d.sync += [floor.eq(value >> amount), half.eq(highest), sticky.eq(others)]
        with m.If(tags[ROUND].valid):
            ties_up = Mux(tags[ROUND].post == TFLITE, ~floor[-1], floor[0])
            m.d.sync += rounded.eq(floor + (half & (sticky | ties_up)))

        tag = tags[CLAMP]
        clamp = data.StructLayout({"zero_point": signed(8), "lo": signed(8), "hi": signed(8)})
        bounds = Signal(clamp, init={"lo": -128, "hi": 127}, name=f"clamp_{lane}")
        with m.If(tag.valid & tag.param & (tag.carry == CARRY_CLAMP)):
            m.d.sync += bounds.as_value().eq(rounded)
        plain = tag.post == NONE
        lo, hi = Mux(plain, -128, bounds.lo), Mux(plain, 127, bounds.hi)
        total = Signal(wide, name=f"total_{lane}")
        m.d.comb += total.eq(rounded + Mux(plain, 0, bounds.zero_point))
        with m.If(tag.valid):
            with m.If(plain & (tag.dst == DST_MEMORIES.index("tmp"))):
                m.d.sync += output.eq(rounded)
            with m.Elif(total < lo):
                m.d.sync += output.eq(lo)
            with m.Elif(total > hi):
                m.d.sync += output.eq(hi)
            with m.Else():
                m.d.sync += output.eq(total)
        return output
