"""What happened when: the histories that processes wait for, and queues made of two of them.

Every interface of the machine is registered, so an event in cycle t is seen from t + 1 on, and what
a process does next depends only on the cycles of earlier events. A history keeps these cycles.
Nobody waits for time to pass, only for histories to become long enough.
"""

from __future__ import annotations

import simpy


class History(list[int]):
    """Cycles of one kind of event, in order; one process at most waits for the next ones."""

    def __init__(self, env: simpy.Environment):
        super().__init__()
        self.env = env
        self._wanted = 0
        self._reached: simpy.Event

    def put(self, cycle: int) -> None:
        """The next event happens in ``cycle``."""
        self.append(cycle)
        if len(self) == self._wanted:
            self._reached.succeed()

    def reaches(self, number: int) -> simpy.Event:
        """Triggered when event ``number``, counted from 0, is known; it must not be yet."""
        self._wanted, self._reached = number + 1, self.env.event()
        return self._reached


#: The event of a history, by its number, that must lie before a step.
Need = tuple[History, int]


class Queue:
    """First in, first out, of ``depth`` entries and registered level: what enters in cycle t can
    leave from t + 1; a slot freed in t can be filled from t + 1.
    """

    def __init__(self, env: simpy.Environment, depth: int):
        self.depth = depth
        self.entered, self.left = History(env), History(env)

    def item(self, number: int) -> Need:
        """What must happen before an entry can leave."""
        return self.entered, number

    def room(self, number: int) -> tuple[Need, ...]:
        """What must happen before an entry can enter."""
        return ((self.left, number - self.depth),) if number >= self.depth else ()
