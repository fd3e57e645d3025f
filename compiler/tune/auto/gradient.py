"""Which of a network's tasks gets the next trials (as in Ansor)."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field

#: How much the past counts for what more trials will gain; the rest is hope (Ansor's alpha).
PAST = 0.2
#: Rounds over which the past gain is measured (Ansor's window).
WINDOW = 3
#: How much slower than the fastest similar task a task may hope to stay (Ansor's beta).
SLOWER = 2.0


@dataclass
class Course:
    """How far the search of a task has come.

    Attributes
    ----------
    weight : how often the network has the task
    work : operations of the task; 0 if unknown
    kind : tasks of one kind may become equally fast for their work
    best : the least cost after each round
    ended : whether nothing is left to be tried
    """

    weight: int
    work: float
    kind: str
    best: list[float] = field(default_factory=list)
    ended: bool = False


def next_task(courses: Sequence[Course]) -> int | None:
    """The task whose next round promises the largest gain for the whole network: each has one round
    first. None where all have ended.
    """
    open_ones = [index for index, course in enumerate(courses) if not course.ended]
    if not open_ones:
        return None
    fresh = [index for index in open_ones if not courses[index].best]
    if fresh:
        return fresh[0]
    return max(open_ones, key=lambda index: (promise(courses[index], courses), -index))


def promise(course: Course, others: Sequence[Course]) -> float:
    """What a round of a task is expected to take off the network's cost."""
    rounds, cost = len(course.best), course.best[-1]
    if cost == float("inf"):
        return float("inf")
    before = course.best[max(0, rounds - 1 - WINDOW)]
    if before == float("inf"):
        before = cost
    past = (before - cost) / min(WINDOW, max(1, rounds - 1))
    # At best the cost vanishes within as many rounds again; or it becomes that of similar tasks.
    hope = cost / rounds
    rates = [c.best[-1] / c.work for c in others if c.kind == course.kind and c.work and c.best]
    if course.work and rates:
        hope = min(hope, max(0.0, SLOWER * cost - min(rates) * course.work))
    return course.weight * (PAST * past + (1.0 - PAST) * hope)
