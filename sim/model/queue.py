"""The cycles of events: histories, which processes wait for; queues, each made of two histories;
and the environment in which processes run.

Every interface of the machine is registered, so an event in cycle t is seen from t + 1 on, and what
a process does next depends only on the cycles of earlier events. A history keeps these cycles.
A process never waits for time to pass, only for histories to become long enough.
"""

from __future__ import annotations

import sys
from collections import deque
from collections.abc import Callable, Iterable, Iterator
from itertools import chain, count, repeat

import simpy


class Environment(simpy.Environment):
    """SimPy without its clock: events happen in the order in which they are triggered. When none is
    left, every process waits, and ``idle`` may trigger more."""

    def __init__(self):
        super().__init__()
        self.triggered: deque[simpy.Event] = deque()

    def schedule(self, event: simpy.Event, priority: int = 1, delay: float = 0) -> None:
        """An event happens after those that were triggered before it; there is no later time."""
        self.triggered.append(event)

    def settle(self, idle: Callable[[], bool]) -> None:
        """Run until ``idle`` says that nothing more will happen."""
        triggered = self.triggered
        while triggered or idle():
            while triggered:
                event = triggered.popleft()
                callbacks, event.callbacks = event.callbacks, None  # type: ignore[assignment]
                for callback in callbacks:
                    callback(event)
                if not event.ok:
                    raise event.value  # type: ignore[misc]


class History(list[int]):
    """Cycles of one kind of event, in order; one process at most waits for the next ones."""

    __slots__ = ("_env", "_reached", "_wanted")

    def __init__(self, env: Environment):
        super().__init__()
        self._env = env
        self._wanted = sys.maxsize
        self._reached: simpy.Event

    def put(self, cycle: int) -> None:
        """The next event happens in ``cycle``."""
        self.append(cycle)
        if len(self) >= self._wanted:
            self._wake()

    def put_all(self, cycles: Iterable[int]) -> None:
        """The next events happen in ``cycles``."""
        self.extend(cycles)
        if len(self) >= self._wanted:
            self._wake()

    def reaches(self, number: int) -> simpy.Event:
        """An event that is triggered when entry ``number`` of the history is known, which it is not
        yet."""
        self._wanted, self._reached = number + 1, self._env.event()
        return self._reached

    def _wake(self) -> None:
        self._wanted = sys.maxsize
        self._reached.succeed()


#: Events that must happen before a step: the history of each, and its number there.
Needs = tuple[tuple[History, int], ...]


class Queue:
    """First in, first out, of ``depth`` entries and registered level: what enters in cycle t can
    leave from t + 1; a slot freed in t can be filled from t + 1.
    """

    def __init__(self, env: Environment, depth: int):
        self.depth = depth
        self.entered, self.left = History(env), History(env)

    def items(self) -> Iterator[Needs]:
        """What must happen before each entry can leave."""
        return zip(zip(repeat(self.entered), count()))

    def rooms(self) -> Iterator[Needs]:
        """What must happen before each entry can enter."""
        return chain(repeat((), self.depth), zip(zip(repeat(self.left), count())))
