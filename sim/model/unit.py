"""What all units with an instruction queue share: taking the next instruction when its tokens are
there.
"""

from __future__ import annotations

from collections.abc import Generator, Iterator
from operator import add
from typing import Any

import numpy as np

from ...isa.opcodes import Unit
from .queue import Environment, Needs, Queue
from .shared import Shared


class Sequence:
    """A process that makes one step after another, each when all that it needs has happened."""

    def __init__(self, env: Environment):
        self.env = env

    def needs(self) -> Iterator[Needs]:
        """What every step needs."""
        raise NotImplementedError

    def step(self, number: int, cycle: int) -> None:
        """Make a step in ``cycle`` or later: all that it needs lies before."""
        raise NotImplementedError

    def run(self) -> Generator[Any, Any, None]:
        """The process."""
        step = self.step
        for number, needs in enumerate(self.needs()):
            cycle = 0
            for history, event in needs:
                if event >= len(history):
                    yield history.reaches(event)
                if (seen := history[event] + 1) > cycle:
                    cycle = seen
            step(number, cycle)


class UnitProcess(Sequence):
    """Base of the units' processes. A step takes an instruction from the queue, which is its start;
    the cycle of its end is known then. Units differ in ``step``.

    Attributes
    ----------
    busy : int64 [instructions]
        Cycles in which each instruction keeps the unit busy, that of its start not counted.
    ready : the next instruction can start from this cycle on
    ends : the cycle of every end so far
    """

    unit: Unit
    busy: np.ndarray

    def __init__(self, shared: Shared):
        super().__init__(shared.env)
        self.tokens = shared.tokens
        self.queue = Queue(shared.env, shared.params.queue_depth)
        self.pops, self.pushes = (masks.tolist() for masks in shared.masks(self.unit))
        self.counters = shared.tokens.given_by(self.unit)
        self.ready = 0
        self.ends: list[int] = []

    def needs(self) -> Iterator[Needs]:
        return map(add, self.queue.items(), self.tokens.needs(self.unit, self.pops))

    def end(self, number: int, cycle: int) -> None:
        """An instruction ends in ``cycle`` and pushes its tokens."""
        self.ends.append(cycle)
        for counter in self.counters[self.pushes[number]]:
            counter.put(cycle)
