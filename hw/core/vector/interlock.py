"""Iterations wait for entries of tmp that the pipeline has still to write."""

from __future__ import annotations

from collections.abc import Callable

from amaranth.hdl import Cat, Module, Mux, Signal, Value
from amaranth.lib import wiring
from amaranth.lib.wiring import In, Out

from ....isa.encoding import VECTOR_LOOPS
from ....isa.params import HwParams
from ....isa.timing import VECTOR_DEPTH
from .logic import any_of
from .loops import LOOPS

#: Operands that may be read from tmp.
SOURCES = ("src0", "src1")


def access_signature(params: HwParams) -> wiring.Signature:
    """An access of tmp, if ``valid``. The entry has no more bits than tmp needs, because an entry
    beyond tmp stops the core.
    """
    return wiring.Signature({"valid": Out(1), "entry": Out(params.index_bits("tmp"))})


class Interlock(wiring.Component):
    """Whether the iteration must wait. That is known a cycle ahead, in a register, so that the
    units and tokens that depend on it are not behind a dozen comparators.

    Attributes
    ----------
    start, starting : an instruction begins; what its first iteration reads, for each source
    advances, following : the loop that goes on after this iteration; what the next iteration
        reads, for each loop and each source
    ends : the last pass of an iteration is issued
    writes : what is written by the pass in each stage but the last
    hazard : the iteration waits for an entry
    """

    def __init__(self, params: HwParams):
        access = access_signature(params)
        super().__init__(
            {
                "start": In(1),
                "starting": In(access).array(len(SOURCES)),
                "advances": In(VECTOR_LOOPS),
                "following": In(access).array(VECTOR_LOOPS, len(SOURCES)),
                "ends": In(1),
                "writes": In(access).array(VECTOR_DEPTH),
                "hazard": Out(1),
            }
        )

    def elaborate(self, platform) -> Module:
        m = Module()
        # The stages that are to write what the iteration reads.
        waiting = Signal(VECTOR_DEPTH)
        at_start = self._conflicts(m, self.starting, "at_start")
        following = []
        for k in LOOPS:
            with m.If(self.advances[k]):
                following += self._conflicts(m, self.following[k], f"following{k}")

        def coming(of: Callable[[Value], Value]) -> Value:
            """A property of the conflicts in the next cycle. Whether an instruction starts, and
            what it reads, are known last, so they only choose between results that are known
            before.
            """

            def read(cases: list[tuple[Value, Signal]]) -> Value:
                return any_of(Mux(valid, of(stages), 0) for valid, stages in cases)

            # The same entry, and the stages move on.
            waits = of((waiting << 1)[:VECTOR_DEPTH])
            # After a pass that is not the last comes the next pass of the same iteration.
            next_one = Mux(self.ends, read(following), 0)
            return Mux(self.start, read(at_start), Mux(self.hazard, waits, next_one))

        m.d.sync += [
            self.hazard.eq(coming(lambda stages: stages.any())),
            waiting.eq(coming(Value.cast)),
        ]
        return m

    def _conflicts(self, m: Module, reads, name: str) -> list[tuple[Value, Signal]]:
        """For every source, whether it reads tmp, and the stages that are still to write its
        entry."""
        found = []
        for source, read in zip(SOURCES, reads, strict=True):
            stages = Signal(VECTOR_DEPTH, name=f"{name}_{source}")
            m.d.comb += stages.eq(
                Cat(write.valid & (write.entry == read.entry) for write in self.writes)
            )
            found.append((read.valid, stages))
        return found
