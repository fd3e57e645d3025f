"""The controls of the vector unit's lanes, stage by stage."""

from __future__ import annotations

from functools import reduce
from operator import and_

from amaranth.hdl import Cat, Module, Mux, Value, signed
from amaranth.lib import wiring
from amaranth.lib.wiring import In, Out

from ....isa.encoding import INT8_BITS, INT8_MAX, INT8_MIN
from ....isa.opcodes import SRC0_MEMORIES, SRC1_MEMORIES
from ....isa.params import HwParams
from ..pipeline import delayed
from ..technology import SIMULATION, Technology
from .kits import Case, Choices, Source, difference_codes, merge_choices, operator_choices
from .parameters import shared_signature
from .stages import FLAGS, Stage, Tag, iteration_signature

#: Memories that are read a whole vector at a time, of which a pass takes a part.
WHOLE = ("acc", "inp", "par")
#: Fields of the pass in a stage that have many readers in each lane.
FIELDS = {
    Stage.OPERATE: ("by_power",),
    Stage.REDUCE: ("valid",),
    Stage.BIAS: ("requantized", "part"),
    Stage.SCALE: ("tflite", "part"),
    Stage.MULTIPLY: ("requantized", "part"),
    Stage.HIGH: ("requantized", "tflite", "part"),
    Stage.SATURATE: ("tflite",),
    Stage.ROUND: ("requantized",),
}
#: Fields that have few readers, and those that only enable registers (``Technology.enables``).
FIELDS_OF_FEW = {
    Stage.READ: ("imm", "valid"),
    Stage.OPERATE: ("valid",),
    Stage.ADD: ("valid",),
    **{stage: ("live",) for stage in Stage if Stage.BIAS <= stage < Stage.WRITE},
}


def source_legs(memories: tuple[str, ...], params: HwParams) -> list[tuple[str, int]]:
    """The sources that an operand may come from: a memory, and for one that is read whole, a part
    of it."""
    return [
        (memory, part)
        for memory in memories
        for part in range(params.vector_passes if memory in WHOLE else 1)
    ]


def lane_signature(params: HwParams) -> wiring.Signature:
    """The controls of a lane in each stage, by the stage's name: the fields :data:`FIELDS` and
    :data:`FIELDS_OF_FEW` of the pass in the stage (see ``stages.iteration_signature``), and the
    signals that choose between the data of the lane.

    ``src0``, ``src1``: a bit for each of :func:`source_legs`. ``difference``: the table is asked
    for the difference of the operands, where there is such an operator; ``looks_up``: its value
    counts. ``x``, ``y``, ``upper``,
    ``up``, ``merge``: a bit for each leg of ``kits.operator_choices`` and ``kits.merge_choices``.
    ``low``, ``top``: what the result is clamped to, if ``saturates``. Where there is a window:
    ``moves``: its sums move on; ``sums``: a bit for each sum, of which the result's is set.
    """
    int8 = Out(signed(INT8_BITS))
    selects = {
        Stage.READ: {
            "src0": Out(len(source_legs(SRC0_MEMORIES, params))),
            "src1": Out(len(source_legs(SRC1_MEMORIES, params))),
        },
        Stage.OPERATE: {name: Out(len(legs)) for name, legs in operator_choices(params).items()},
        Stage.REDUCE: {"merge": Out(len(merge_choices(params)))},
        Stage.CLAMP: {"low": int8, "top": int8, "saturates": Out(1)},
    }
    if difference_codes(params):
        selects[Stage.OPERATE]["difference"] = Out(1)
    selects[Stage.ADD] = {"looks_up": Out(1)} if params.vector_table else {}
    if params.vector_window:
        selects[Stage.ADD]["moves"] = Out(1)
        selects[Stage.REDUCE]["sums"] = Out(params.vector_window)
    iteration = iteration_signature(params).members
    told = {}
    for stage in Stage:
        names = FIELDS.get(stage, ()) + FIELDS_OF_FEW.get(stage, ())
        members = {name: iteration[name] for name in names} | selects.get(stage, {})
        if members:
            told[stage.name.lower()] = Out(wiring.Signature(members))
    return wiring.Signature(told)


class Controls(wiring.Component):
    """Drives the controls of some lanes; in an FPGA from registers of their own.

    Attributes
    ----------
    stages : the pass that is in each stage;  shared : parameters that all channels share
    lane : the controls of each lane
    """

    def __init__(self, params: HwParams, technology: Technology = SIMULATION):
        self.params, self.copies = params, technology.copies
        super().__init__(
            {
                "stages": In(iteration_signature(params)).array(len(Stage)),
                "shared": In(shared_signature()),
                "lane": Out(lane_signature(params)),
            }
        )

    def elaborate(self, platform) -> Module:
        m = Module()
        for fields, read in ((FIELDS, self._near), (FIELDS_OF_FEW, self._field)):
            for stage, names in fields.items():
                told = getattr(self.lane, stage.name.lower())
                for name in names:
                    m.d.comb += getattr(told, name).eq(read(m, stage, name))
        self._sources(m)
        for name, choices in operator_choices(self.params).items():
            chosen = self._chosen(m, name, choices, Stage.OPERATE)
            m.d.comb += getattr(self.lane.operate, name).eq(chosen)
        merges = self._chosen(m, "merge", merge_choices(self.params), Stage.REDUCE)
        m.d.comb += self.lane.reduce.merge.eq(merges)
        if self.params.vector_table:
            self._table(m)
        if self.params.vector_window:
            self._window(m)
        self._limits(m)
        return m

    def _delayed(self, m: Module, value, name: str, flag: bool = False) -> Value:
        return delayed(m, value, name, flag=flag, copy=self.copies)

    def _field(self, _m: Module, stage: Stage, name: str) -> Value:
        """A field of the pass in a stage."""
        return getattr(self.stages[stage], name)

    def _near(self, m: Module, stage: Stage, name: str) -> Value:
        """The same field, in an FPGA from a register for these lanes."""
        if not self.copies:
            return self._field(m, stage, name)
        early = self._field(m, Stage(stage - 1), name)
        return self._delayed(m, early, f"{name}_{stage.name.lower()}", name in FLAGS)

    def _sources(self, m: Module) -> None:
        """Which memory, and which part of a whole vector, the operands come from."""
        issued = self.stages[Stage.ISSUE]
        for name, memories in (("src0", SRC0_MEMORIES), ("src1", SRC1_MEMORIES)):
            bits = []
            for memory, part in source_legs(memories, self.params):
                chosen = getattr(issued, name)[memories.index(memory)]
                if memory in WHOLE:
                    chosen &= issued.part == part
                bits.append(self._delayed(m, chosen, f"{name}_{memory}_{part}"))
            m.d.comb += getattr(self.lane.read, name).eq(Cat(bits))

    def _chosen(self, m: Module, name: str, choices: Choices, stage: Stage) -> Value:
        """For every leg whether it is chosen in a stage, decoded in the stage before."""
        before = self.stages[stage - 1]
        bits = []
        for number, cases in enumerate(choices.values()):
            chosen = Cat(_applies(case, before) for case in cases).any()
            bits.append(self._delayed(m, chosen, f"{name}_{number}"))
        return Cat(bits)

    def _table(self, m: Module) -> None:
        """Whether the table is asked for a difference, and whether its value counts."""
        if codes := difference_codes(self.params):
            op = self.stages[Stage.OPERATE - 1].op
            asked = Cat(op == code for code in codes).any()
            m.d.comb += self.lane.operate.difference.eq(self._delayed(m, asked, "difference"))
        legs = operator_choices(self.params)["x"].items()
        choices = {leg: cases for leg, cases in legs if leg.source is Source.TABLE}
        looks_up = self._chosen(m, "looks_up", choices, Stage.ADD)
        m.d.comb += self.lane.add.looks_up.eq(looks_up)

    def _window(self, m: Module) -> None:
        """Whether the sums of the window move on, and which of them is the result."""
        moves = self._delayed(m, self.stages[Stage.ADD - 1].first, "moves")
        number = self.stages[Stage.REDUCE - 1].imm[:INT8_BITS]
        sums = (self._delayed(m, number == i, f"sum_{i}") for i in range(self.params.vector_window))
        m.d.comb += [self.lane.add.moves.eq(moves), self.lane.reduce.sums.eq(Cat(sums))]

    def _limits(self, m: Module) -> None:
        """What stage CLAMP clamps to, and whether it does."""
        before, shared, told = self.stages[Stage.CLAMP - 1], self.shared, self.lane.clamp
        low = Mux(before.requantized, shared.lo, INT8_MIN)[:INT8_BITS]
        top = Mux(before.requantized, shared.hi, INT8_MAX)[:INT8_BITS]
        m.d.comb += [
            told.low.eq(self._delayed(m, low, "low")),
            told.top.eq(self._delayed(m, top, "top")),
            told.saturates.eq(self._delayed(m, before.requantized | before.out, "saturates")),
        ]


def _applies(case: Case, its) -> Value:
    """Whether a pass belongs to a case."""
    parameter = its.tag != Tag.DATA
    conditions = []
    if case.parameter is not None:
        conditions.append(parameter if case.parameter else ~parameter)
    if case.op is not None:
        conditions.append(its.op == case.op)
    if case.first is not None:
        conditions.append(its.first if case.first else ~its.first)
    return reduce(and_, conditions)
