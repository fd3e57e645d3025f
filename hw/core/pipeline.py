"""Pipelines: stages with names, and values that move from stage to stage with their iteration."""

from __future__ import annotations

from enum import IntEnum

from amaranth.hdl import Module, Signal, Value

from .technology import COPY


class PipelineStage(IntEnum):
    """Base of the table of a unit's stages, in their order: ``NAME = "what happens in it"``. The
    value of a stage is the number of cycles since the iteration was issued.
    """

    doc: str

    def __new__(cls, doc: str) -> PipelineStage:
        """Number the stages in their order."""
        member = int.__new__(cls, len(cls.__members__))
        member._value_ = len(cls.__members__)
        member.doc = doc
        return member


def delayed(m: Module, value, name: str, *, flag: bool = False, copy: bool = False) -> Signal:
    """The value one cycle later, in a register.

    Parameters
    ----------
    flag : it says whether other values count, and so it is reset; nothing else needs a reset
    copy : it is one of several registers with this value, each for some of the readers (see
        ``Technology.copies``); ``hw/fpga/devices.py`` has synthesis keep them apart
    """
    attrs = {COPY: 1} if copy else {}
    later = Signal(len(value), name=name, reset_less=not flag, attrs=attrs)
    m.d.sync += later.eq(value)
    return later


class Pipelined:
    """A value that moves down a pipeline with its iteration, a stage a cycle.

    Parameters
    ----------
    value, name : the value in its ``first`` stage, and the name of its registers
    first, last : stages in which it is there
    flag : as for :func:`delayed`
    """

    def __init__(
        self, m: Module, value, name: str, first: int, last: int, *, flag: bool = False
    ) -> None:
        self._at = {int(first): value}
        for stage in range(first + 1, last + 1):
            before = self._at[stage - 1]
            self._at[stage] = delayed(m, before, f"{name}_{stage}", flag=flag)

    def at(self, stage: int) -> Value:
        """The value of the iteration that is in this stage now."""
        return self._at[stage]
