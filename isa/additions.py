"""Rows that a user's code adds to the package's tables: operators, targets, boards and others.

The package's own rows stand in the tables' files. A function beside a table, such as
``register_target``, adds a user's row by :func:`add`. Whoever loads a user's code can note what was
added, and take it back (``vdla/plugins.py``).
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from functools import partial
from typing import TypeVar

from .errors import VdlaError

V = TypeVar("V")


@dataclass
class Additions:
    """What some code has added.

    Attributes
    ----------
    names : what each row is, such as ``target mine``, in order
    """

    names: list[str] = field(default_factory=list)
    _undo: list[Callable[[], object]] = field(default_factory=list)

    def take_back(self) -> None:
        """Remove the rows, the last one first."""
        while self._undo:
            self._undo.pop()()
        self.names.clear()


#: What each row is that was added and not taken back, in order.
_present: list[str] = []
#: Those who note additions now; the last one does, when code that is noted loads other code.
_noting: list[Additions] = []


def add(kind: str, name: str, table: dict[str, V], value: V) -> None:
    """Add a row to a table.

    Raises
    ------
    VdlaError
        When the table has a row of this name.
    """
    check_free(kind, name, table)
    table[name] = value
    note(f"{kind} {name}", partial(table.pop, name))


def check_free(kind: str, name: str, taken: object) -> None:
    """Raise VdlaError when ``taken`` contains a name already."""
    if name in taken:  # type: ignore[operator]
        raise VdlaError(f"{kind}: expected a name that is not taken, got {name!r}, which is")


def note(name: str, undo: Callable[[], object]) -> None:
    """Note that a row was added, and the function that removes it."""
    _present.append(name)
    if _noting:
        _noting[-1].names.append(name)
        _noting[-1]._undo += [partial(_present.remove, name), undo]


def added_rows() -> tuple[str, ...]:
    """What each row is that is in the tables now beside the package's own, in order."""
    return tuple(_present)


@contextmanager
def noting() -> Iterator[Additions]:
    """Note what is added inside of the block; where it raises, that is taken back."""
    additions = Additions()
    _noting.append(additions)
    try:
        yield additions
    except BaseException:
        additions.take_back()
        raise
    finally:
        _noting.remove(additions)
