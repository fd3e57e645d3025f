"""A queue of registered level: what enters in cycle t can leave from t+1; a slot freed in t can be
filled from t+1.

Items and free slots carry the cycle from which they can be used, so the order of events within a
cycle never matters.
"""

from __future__ import annotations

from collections.abc import Generator
from typing import Any

import simpy


class Queue:
    """First in, first out, of ``depth`` entries."""

    def __init__(self, env: simpy.Environment, depth: int):
        self.env = env
        self.items = simpy.Store(env)
        self.slots = simpy.Store(env, capacity=depth)
        for _ in range(depth):
            self.slots.put(0)

    def room(self) -> Generator[Any, Any, int]:
        """Wait for a slot and reserve it; returns the first cycle in which it can be filled."""
        return (yield self.slots.get())

    def put(self, item: Any, cycle: int) -> None:
        """Fill the reserved slot in ``cycle``."""
        self.items.put((item, cycle + 1))

    def get(self) -> Generator[Any, Any, tuple[Any, int]]:
        """Wait for the head; returns it and the first cycle in which it can be taken."""
        return (yield self.items.get())

    def taken(self, cycle: int) -> None:
        """The head was taken in ``cycle``."""
        self.slots.put(cycle + 1)
