"""The vector unit, joined from its parts."""

from __future__ import annotations

from amaranth.hdl import Cat, Module, Mux
from amaranth.lib import wiring
from amaranth.lib.wiring import Out, connect

from ....isa.encoding import INT8_BITS, INT32_BITS
from ....isa.params import HwParams
from ..pipeline import delayed
from ..scratchpad import read_port, write_port
from ..technology import SIMULATION, Technology
from ..unit import join_taker, unit_signature
from .controls import Controls
from .issue import Issue
from .lane import Lane
from .parameters import Parameters
from .stages import TABLE_WORD, Pipeline, Stage, Tag, table_words, word_bits

#: Neighbouring lanes that read the same copy of their controls.
LANES_OF_COPY = 2


class Vector(wiring.Component):
    """The vector unit; ports as in ``unit.unit_signature`` and one for every memory."""

    def __init__(self, params: HwParams, technology: Technology = SIMULATION):
        self.params, self.technology = params, technology
        super().__init__(
            {
                "unit": Out(unit_signature(params)),
                **{name: Out(read_port(name, params)) for name in ("acc", "inp", "par")},
                **{name: Out(read_port("tmp", params)) for name in ("tmp0", "tmp1")},
                **{f"{name}_write": Out(write_port(name, params)) for name in ("tmp", "out")},
            }
        )

    def elaborate(self, platform) -> Module:
        m = Module()
        params, unit = self.params, self.unit
        m.submodules.issue = issue = Issue(params)
        m.submodules.pipeline = pipeline = Pipeline(params)
        m.submodules.parameters = parameters = Parameters(params)
        join_taker(m, unit, issue.unit)
        connect(m, issue.iteration, pipeline.issued)
        m.d.comb += [unit.busy.eq(issue.busy), unit.stalled.eq(issue.stalled)]
        for stage, write in enumerate(issue.writes):
            its = pipeline.stages[stage]
            m.d.comb += [write.valid.eq(its.valid & its.tmp), write.entry.eq(its.dst)]
        _join_stages(m, pipeline, parameters)
        self._read(m, issue)
        lanes = self._lanes(m, pipeline, parameters)
        if params.vector_table:
            self._write_table(m, pipeline, lanes)
        self._write(m, pipeline.stages[Stage.WRITE], lanes)
        return m

    def _read(self, m: Module, issue: Issue) -> None:
        """Addresses of the operands. A row of tmp is for one pass, so its address has the pass,
        too."""
        part = issue.iteration.part
        m.d.comb += [
            self.acc.addr.eq(issue.src0),
            self.inp.addr.eq(issue.src0),
            self.tmp0.addr.eq(Cat(part, issue.src0)),
            self.tmp1.addr.eq(Cat(part, issue.src1)),
            self.par.addr.eq(issue.par),
        ]

    def _lanes(self, m: Module, pipeline: Pipeline, parameters: Parameters) -> list[Lane]:
        """The lanes, with their controls and what they read."""
        params, technology = self.params, self.technology
        together = LANES_OF_COPY if technology.copies else params.vector_lanes
        lanes = []
        for number in range(params.vector_lanes):
            if number % together == 0:
                controls = Controls(params, technology)
                m.submodules[f"controls_{number // together}"] = controls
                _join_stages(m, pipeline, controls)
                connect(m, parameters.shared, controls.shared)
            lane = Lane(params, technology)
            m.submodules[f"lane_{number}"] = lane
            connect(m, controls.lane, lane.told)
            connect(m, parameters.shared, lane.shared)
            for part, element in enumerate(self._elements(number)):
                connect(m, parameters.channels[element % params.block], lane.channels[part])
            if number < len(parameters.taps):
                connect(m, lane.taps, parameters.taps[number])
            self._words(m, lane, number)
            lanes.append(lane)
        return lanes

    def _write_table(self, m: Module, pipeline: Pipeline, lanes: list[Lane]) -> None:
        """Each word of a table that comes from par goes to all lanes, from a register: it is
        written in stage OPERATE, in which look-ups read. Those of the instructions before have
        read then, those of the instructions after come later.
        """
        its, bits = pipeline.stages[Stage.READ], word_bits(self.params)
        is_word = its.imm[: bits + 1] < table_words(self.params)
        writes = its.valid & (its.tag == Tag.TABLE) & is_word
        channel = its.imm[: (self.params.block - 1).bit_length()]
        word = delayed(m, self.par.data.word_select(channel, TABLE_WORD), "table_word")
        row = delayed(m, its.imm[:bits], "table_row")
        enable = delayed(m, writes, "table_writes", flag=True)
        for lane in lanes:
            m.d.comb += [
                lane.table.en.eq(enable), lane.table.addr.eq(row), lane.table.data.eq(word)
            ]  # fmt: skip

    def _elements(self, lane: int) -> range:
        """The elements of a vector that a lane computes, pass by pass. They are neighbours, because
        they come from neighbouring lanes of the tensor core.
        """
        passes = self.params.vector_passes
        return range(passes * lane, passes * (lane + 1))

    def _words(self, m: Module, lane: Lane, number: int) -> None:
        """What a lane gets of the memories' data."""
        for part, element in enumerate(self._elements(number)):
            channel = element % self.params.block
            m.d.comb += [
                lane.words.acc[part].eq(self.acc.data.word_select(element, INT32_BITS)),
                lane.words.inp[part].eq(self.inp.data.word_select(element, INT8_BITS)),
                lane.words.par[part].eq(self.par.data.word_select(channel, INT32_BITS)),
            ]
        m.d.comb += [
            lane.words.tmp0.eq(self.tmp0.data.word_select(number, INT32_BITS)),
            lane.words.tmp1.eq(self.tmp1.data.word_select(number, INT32_BITS)),
        ]

    def _write(self, m: Module, done, lanes: list[Lane]) -> None:
        """The results of a pass to tmp, those of all passes of an iteration to out."""
        last_part = self.params.vector_passes - 1
        m.d.comb += [
            self.unit.end.eq(done.last),
            self.unit.push.eq(Mux(done.last, done.push, 0)),
            self.tmp_write.en.eq(done.valid & done.tmp),
            self.tmp_write.addr.eq(Cat(done.part, done.dst)),
            self.out_write.en.eq(done.valid & (done.part == last_part) & done.out),
            self.out_write.addr.eq(done.dst),
        ]
        for number, lane in enumerate(lanes):
            m.d.comb += self.tmp_write.data.word_select(number, INT32_BITS).eq(lane.written)
            result = lane.written[:INT8_BITS]
            for element in reversed(self._elements(number)):
                m.d.comb += self.out_write.data.word_select(element, INT8_BITS).eq(result)
                if element % self.params.vector_passes:
                    # The element before is of the pass before.
                    result = delayed(m, result, f"waiting_{element - 1}")


def _join_stages(m: Module, pipeline: Pipeline, part: Parameters | Controls) -> None:
    for ours, its in zip(pipeline.stages, part.stages, strict=True):
        connect(m, ours, its)
