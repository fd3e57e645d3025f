"""Which of a network's tasks gets the next trials (after Ansor's gradient scheduler)."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field

#: How much the past counts for what more trials will gain; the rest is hope. Ansor has 0.2.
PAST = 0.5
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
    # Of draws by chance, the gain of one more falls with the square of their number. Ansor hopes
    # for the cost by the number of rounds, and so goes on with large tasks that gain nothing.
    hope = cost / rounds**2
    rates = [c.best[-1] / c.work for c in others if c.kind == course.kind and c.work and c.best]
    if course.work and rates:
        hope = max(hope, (cost - SLOWER * min(rates) * course.work) / rounds)
    return course.weight * (PAST * past + (1.0 - PAST) * hope)
