"""Which entries of a scratchpad an operator uses, where operators have different ones in turn."""

from __future__ import annotations

import numpy as np


class Rotation:
    """A scratchpad of ``depth`` entries."""

    def __init__(self, depth: int):
        #: For each entry, the number of the last operator that used it.
        self.last = np.zeros(depth, np.int64)

    def take(self, entries: int, kept: int = 0) -> int:
        """Take entries in a row for the next operator: those that have been left alone for longest,
        of equals the first ones. The last ``kept`` are for others, unless there are too few.
        Returns the first entry.
        """
        end = max(self.last.size - kept, entries)
        windows = np.lib.stride_tricks.sliding_window_view(self.last[:end], max(entries, 1))
        first = int(windows.max(axis=1).argmin())
        self.last[first : first + entries] = self.last.max() + 1
        return first
