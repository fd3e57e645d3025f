"""The error of schedules."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

from ...isa.errors import VdlaError


class ScheduleError(VdlaError):
    """A schedule is not possible, or the loop program that it leads to is not sound.

    For the user who wrote the schedule this is an error like any other. A schedule that the
    compiler made for a model must never raise it: see :func:`own_schedules`.
    """


@contextmanager
def own_schedules() -> Iterator[None]:
    """Report a wrong schedule as a bug of the compiler, and not as a mistake in the user's model.

    The schedules that are made inside this context (or decorated function) are the compiler's.

    Raises
    ------
    AssertionError
        In place of a :class:`ScheduleError`, which is its cause.
    """
    try:
        yield
    except ScheduleError as error:
        raise AssertionError(f"the compiler made a wrong schedule: {error}") from error
