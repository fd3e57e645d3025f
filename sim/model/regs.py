"""When everything happened, and what follows from it: why every cycle of a unit passed, as the
core's counters record it (``docs/timing.md``), and who waits at the end.
"""

from __future__ import annotations

from typing import NamedTuple

import numpy as np

from ...isa.opcodes import Unit
from ...isa.regmap import CAUSES
from ...isa.timing import GEMM_DEPTH, VECTOR_DEPTH
from .shared import Shared

#: Cycles from the last one in which an instruction blocks its unit for others to its end.
DRAIN = {Unit.LOAD: 0, Unit.GEMM: GEMM_DEPTH, Unit.VECTOR: VECTOR_DEPTH, Unit.STORE: 0}


class Moments(NamedTuple):
    """When everything happened: int64 [instructions] each.

    Attributes
    ----------
    dispatched, starts, ends : cycles, -1 where that did not happen
    busy : cycles in which an instruction keeps its unit busy, that of its start not counted
    """

    dispatched: np.ndarray
    starts: np.ndarray
    ends: np.ndarray
    busy: np.ndarray

    def causes(self, shared: Shared) -> np.ndarray:
        """Why every cycle passed, int64 [instructions, causes]: see :func:`account`."""
        givers, ends = shared.givers, np.append(self.ends, -1)
        causes = np.zeros((self.starts.size, len(CAUSES)), np.int64)
        for unit, own in shared.indices.items():
            own = own[self.starts[own] >= 0]
            tokens = np.where(givers[own] >= 0, ends[givers[own]] + 1, 0)
            until = self.ends[own] - DRAIN[unit] + 1
            causes[own] = account(
                self.starts[own], until, self.busy[own], self.dispatched[own] + 1, tokens
            )
        return causes

    def waiting(self, shared: Shared) -> dict[Unit, tuple[int, int]]:
        """For each unit whose next instruction lacks tokens once no process can go on: this
        instruction, and a mask of the units whose token it lacks."""
        ends, found = np.append(self.ends, -1), {}
        for unit, own in shared.indices.items():
            for index in own[(self.dispatched[own] >= 0) & (self.starts[own] < 0)][:1].tolist():
                givers = shared.givers[index]
                lacking = (givers >= 0) & (ends[givers] < 0)
                found[unit] = index, int((lacking << np.arange(len(Unit))).sum())
        return found


def account(
    starts: np.ndarray, until: np.ndarray, busy: np.ndarray, visible: np.ndarray, tokens: np.ndarray
) -> np.ndarray:
    """Cycles, by cause, that the instructions of a unit account for. Each instruction accounts for
    the cycles since the one before it.

    Parameters
    ----------
    starts : int64 [instructions]
    until : int64 [instructions]
        First cycle that an instruction does not account for.
    busy : int64 [instructions]
        Busy cycles, that of the start not counted.
    visible : int64 [instructions]
        Cycle from which an instruction is at the head of its queue, if those before it have left.
    tokens : int64 [instructions, units]
        Cycles from which the tokens that it takes are there.

    Returns
    -------
    int64 [instructions, causes], causes as in ``CAUSES``
    """
    causes = np.zeros((starts.size, len(CAUSES)), np.int64)
    column = {cause: causes[:, position] for position, cause in enumerate(CAUSES)}
    cursor = np.concatenate(([0], until[:-1]))[: starts.size]
    waits = starts >= cursor
    begin = np.minimum(np.maximum(cursor, visible), starts)
    column["empty"][waits] = (begin - cursor)[waits]
    # The lowest-numbered unit whose token is missing is the cause.
    for giver in Unit:
        reached = np.clip(tokens[:, giver], begin, np.maximum(begin, starts))
        column[f"token_{giver.name.lower()}"][waits] = (reached - begin)[waits]
        begin = reached
    column["busy"][:] = busy + waits
    column["stalled"][:] = until - np.maximum(cursor, starts) - column["busy"]
    return causes
