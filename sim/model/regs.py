"""Accounting: why every cycle of a unit passed, as the core's counters record it
(``docs/timing.md``).
"""

from __future__ import annotations

import numpy as np

from ...isa.opcodes import Unit
from ...isa.regmap import CAUSES


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
