"""What all units with an instruction queue share: taking the next instruction when its tokens are
there.
"""

from __future__ import annotations

from collections.abc import Generator, Iterator
from typing import TYPE_CHECKING, Any

import numpy as np
import simpy

from ..isa.opcodes import Unit
from .queue import Need, Queue
from .regs import account

if TYPE_CHECKING:
    from .core import Core


class Sequence:
    """A process that makes one step after another, each when all that it needs has happened."""

    def __init__(self, env: simpy.Environment):
        self.env = env
        #: Steps made so far.
        self.position = 0

    def needs(self) -> Iterator[tuple[Need, ...]]:
        """What every step needs."""
        raise NotImplementedError

    def step(self, number: int, cycle: int) -> None:
        """Make a step in ``cycle`` or later: all that it needs lies before."""
        raise NotImplementedError

    def run(self) -> Generator[Any, Any, None]:
        """The process."""
        for number, needs in enumerate(self.needs()):
            cycle = 0
            for history, event in needs:
                if event >= len(history):
                    yield history.reaches(event)
                if history[event] >= cycle:
                    cycle = history[event] + 1
            self.step(number, cycle)
            self.position = number + 1


class UnitProcess(Sequence):
    """Base of the units' processes. A step takes an instruction from the queue, which is its start,
    and says when it ends; units differ in ``step``.
    """

    unit: Unit
    #: Cycles from the last one in which an instruction keeps the unit from others to its end.
    drain = 0

    def __init__(self, core: Core):
        super().__init__(core.env)
        self.core, self.params = core, core.params
        self.insns: list[Any] = [core.insns[index] for index in core.indices[self.unit]]
        self.queue = Queue(core.env, core.params.queue_depth)
        self.ends: list[int] = []
        self._pushes = list(core.tokens.pushes(self.unit, [insn.push for insn in self.insns]))

    def busy(self) -> list[int]:
        """Cycles in which each instruction keeps the unit busy, that of its start not counted."""
        raise NotImplementedError

    def needs(self) -> Iterator[tuple[Need, ...]]:
        pops = self.core.tokens.needs(self.unit, [insn.pop for insn in self.insns])
        for number, tokens in enumerate(pops):
            yield (self.queue.item(number), *self.slots(number), *tokens)

    def slots(self, number: int) -> tuple[Need, ...]:
        """What an instruction needs besides its place in the queue and its tokens."""
        return ()

    def end(self, number: int, cycle: int) -> None:
        """An instruction ends in ``cycle`` (known in advance) and pushes its tokens."""
        self.ends.append(cycle)
        for counter in self._pushes[number]:
            counter.put(cycle)

    def missing(self) -> int:
        """Mask of units whose token the head lacks, once nothing moves any more."""
        if self.position >= len(self.queue.entered):
            return 0
        before = [insn.pop for insn in self.insns[: self.position]]
        return self.core.tokens.missing(self.unit, before, self.insns[self.position].pop)

    def causes(self) -> np.ndarray:
        """Why every cycle passed, int64 [instructions started, causes]: see :func:`account`."""
        started = self.insns[: self.position]
        ends = np.array(self.ends, np.int64)
        return account(
            np.array(self.queue.left, np.int64),
            ends - self.drain + 1,
            np.array(self.busy()[: self.position], np.int64),
            np.array(self.queue.entered[: self.position], np.int64) + 1,
            self.core.tokens.available(self.unit, [insn.pop for insn in started]),
        )
