"""What a device should give, compared with what it gives, in order."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Iterable
from typing import Generic, TypeVar

T = TypeVar("T")


class Scoreboard(Generic[T]):
    """A queue of expected items; each item that comes must equal the first of them.

    Parameters
    ----------
    name : str
        What is compared, for messages.
    show : callable, optional
        An item as text.
    """

    def __init__(self, name: str, show: Callable[[T], str] = repr) -> None:
        self.name, self._show = name, show
        self.matched = 0
        self._expected: deque[T] = deque()

    def expect(self, items: Iterable[T]) -> None:
        """Items that must come, after those that are expected already."""
        self._expected.extend(items)

    def check(self, items: Iterable[T], when: str = "") -> None:
        """Items that came.

        Raises AssertionError for the first that differs, or that nothing was expected for.
        """
        for item in items:
            where = f"{self.name}: item {self.matched}{when and f', {when}'}"
            assert self._expected, f"{where}: expected nothing more, got {self._show(item)}"
            wanted = self._expected.popleft()
            assert item == wanted, f"{where}: expected {self._show(wanted)}, got {self._show(item)}"
            self.matched += 1

    @property
    def empty(self) -> bool:
        """Whether all that was expected has come."""
        return not self._expected

    def finish(self) -> None:
        """Raise AssertionError if something that was expected has not come."""
        assert self.empty, (
            f"{self.name}: {len(self._expected)} items have not come, the first is "
            f"{self._show(self._expected[0])}"
        )
