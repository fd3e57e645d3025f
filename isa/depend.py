"""Decoupled access-execute: dependency tokens let the units run decoupled, while the linear stream
of instructions keeps its meaning.

Units run ahead of each other as far as tokens let them. :func:`dependencies` finds every pair of
accesses of different units to the same entry or byte, one of them a write, and
:func:`find_tokens` orders them as in the program. Instructions of one unit need no tokens: they
run in order. Vector clocks find the pairs that other tokens order already; these get no token of
their own.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import numpy as np

from .errors import VdlaError
from .insn import Insn
from .insn_table import InsnTable
from .native import Ints, Shorts, Table, native
from .opcodes import Unit, Units
from .params import HwParams
from .runs import SPACES, Footprints

_UNITS = len(Unit)
_LOAD, _DRAM = int(Unit.LOAD), SPACES["dram"]
#: The set of units of each mask.
_MASKS = [Units(mask) for mask in range(1 << _UNITS)]


@dataclass(frozen=True)
class Dependencies:
    """What each instruction depends on, in program order. A queue has the instructions of one
    track and one unit, which keep their order.

    Attributes
    ----------
    latest : for each instruction and queue, the latest instruction of the queue that the
        instruction depends on, or -1: int64 [instructions, queues]; -1 for its own queue
    units : the unit of each queue
    """

    latest: np.ndarray
    units: np.ndarray

    def by_unit(self) -> np.ndarray:
        """For each unit the latest instruction that each depends on, or -1: int64 [instructions,
        units]."""
        found = np.full((len(self.latest), _UNITS), -1)
        for queue, unit in enumerate(self.units.tolist()):
            np.maximum(found[:, unit], self.latest[:, queue], out=found[:, unit])
        return found


def dependencies(found: Footprints, tracks: np.ndarray | None = None) -> Dependencies:
    """Find the dependencies of each instruction, in program order.

    Parameters
    ----------
    found : the accesses of the instructions, in program order; some instructions may be left out
    tracks : track of each instruction, from 0; by default there is one
    """
    count = len(found.order)
    track_of = np.zeros(count, np.int64) if tracks is None else tracks
    queues, own_queue = np.unique(track_of * _UNITS + found.units[found.order], return_inverse=True)
    needs = np.full((count, queues.size), -1)
    queue_of = np.zeros(len(found.units), np.int64)
    queue_of[found.order] = own_queue
    queue_of = np.repeat(queue_of, np.diff(found.bounds))
    slots, own = _slots(queue_of, found)
    widths = np.array([sum(slot[0] == s for slot in slots) for s in range(len(found.sizes))])
    firsts = np.concatenate([[0], np.cumsum(widths)])
    begins = np.concatenate([[0], np.cumsum(np.repeat(found.sizes, widths))])
    history = np.zeros(int(begins[-1]), np.int32)
    table = np.array([slot[1:] for slot in slots], np.int64).reshape(-1, 2)
    _find_needs(
        found.order, own_queue, found.bounds, found.spaces, found.writes, own, found.starts,
        found.runs, begins, firsts, table, history, needs,
    )  # fmt: skip
    return Dependencies(needs, queues % _UNITS)


def _slots(queue_of: np.ndarray, found: Footprints) -> tuple[list[tuple[int, ...]], np.ndarray]:
    """Who uses each memory and how: (space, queue, whether it writes), in order; and for each
    access, the number of its slot among those of its space.
    """
    shape = len(found.sizes), int(queue_of.max(initial=0)) + 1, 2
    users = np.ravel_multi_index((found.spaces, queue_of, found.writes), shape)
    seen = np.zeros(shape, bool)
    seen.reshape(-1)[users] = True
    number = np.cumsum(seen.reshape(-1)) - 1
    first = np.cumsum(seen.sum(axis=(1, 2))) - seen.sum(axis=(1, 2))
    return [tuple(slot) for slot in np.argwhere(seen).tolist()], number[users] - first[found.spaces]


@native
def _find_needs(
    order: Ints, queues: Ints, bounds: Ints, spaces: Ints, writes: Ints, own: Ints, starts: Ints,
    runs: Table, begins: Ints, firsts: Ints, slots: Table, history: Shorts, needs: Table,
):  # fmt: skip
    """Fill ``needs``. ``history`` has, for each slot of each space and each entry of the space, the
    place behind that of the latest instruction that used the entry so, 0 for none.
    """
    for place in range(len(order)):
        queue = queues[place]
        for access in range(bounds[order[place]], bounds[order[place] + 1]):
            first = firsts[spaces[access]]
            for slot in range(first, firsts[spaces[access] + 1]):
                other = slots[slot, 0]
                if other != queue and (writes[access] or slots[slot, 1]):
                    latest = needs[place, other]
                    for run in range(starts[access], starts[access + 1]):
                        begin = begins[slot] + runs[run, 0]
                        for at in range(begin, begin + runs[run, 1]):
                            latest = max(latest, history[at] - 1)
                    needs[place, other] = latest
            for run in range(starts[access], starts[access + 1]):
                begin = begins[first + own[access]] + runs[run, 0]
                for at in range(begin, begin + runs[run, 1]):
                    history[at] = place + 1


def deadlines(found: Footprints) -> np.ndarray:
    """Find how late each instruction may come, in program order.

    For a LOAD this is the first later instruction that must come after it, because that one reads
    or overwrites what was loaded, or overwrites its source; or the number of instructions if there
    is none. For any other instruction it is its own index. int64 [instructions]
    """
    late = np.arange(len(found.order))
    late[found.units[found.order] == _LOAD] = len(late)
    offsets = np.concatenate([[0], np.cumsum(found.sizes)])
    loads = np.zeros(int(offsets[-1]), np.int32)
    _find_deadlines(
        found.order, found.units, found.bounds, found.spaces, found.writes, found.starts,
        found.runs, offsets, loads, late,
    )  # fmt: skip
    return late


@native
def _find_deadlines(
    order: Ints, units: Ints, bounds: Ints, spaces: Ints, writes: Ints, starts: Ints, runs: Table,
    offsets: Ints, loads: Shorts, late: Ints,
):  # fmt: skip
    """Lower ``late`` of the loads. ``loads`` has, for each entry, the place behind that of its last
    load, 0 for none.
    """
    for place in range(len(order)):
        is_load = units[order[place]] == _LOAD
        for access in range(bounds[order[place]], bounds[order[place] + 1]):
            waits = writes[access] or spaces[access] != _DRAM
            for run in range(starts[access], starts[access + 1]):
                begin = offsets[spaces[access]] + runs[run, 0]
                for at in range(begin, begin + runs[run, 1]):
                    if waits and loads[at] > 0:
                        late[loads[at] - 1] = min(late[loads[at] - 1], place)
                    if is_load:
                        loads[at] = place + 1


def insert_tokens(
    insns: Sequence[Insn], params: HwParams, image: Mapping[int, bytes] | None = None
) -> list[Insn]:
    """The same instructions with the tokens that their dependencies need; see
    :func:`dependencies` and :func:`find_tokens`."""
    table = InsnTable.of(insns, params)
    needs = dependencies(Footprints.of(table, image or {})).by_unit()
    masks = (found.tolist() for found in find_tokens(table.units, needs))
    return [
        insn.with_tokens(_MASKS[pop], _MASKS[push])
        for insn, pop, push in zip(insns, *masks, strict=True)
    ]


def find_tokens(units: np.ndarray, needs: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """The fewest tokens that order every dependency between units: the masks ``pop`` and ``push``
    of every instruction, int64 [instructions] each.

    Parameters
    ----------
    units : the unit of each instruction, in program order
    needs : per unit, the latest instruction that each depends on, or -1 (int64 [instructions,
        units])

    Raises
    ------
    VdlaError
        Where an instruction comes before one that it depends on.

    Notes
    -----
    The n-th pop of a unit from another takes the token of the n-th push. So a token that
    instruction *i* of unit V pushes for *j* of U says that all instructions of V up to *i* have
    ended. A dependency of *j* on *i* needs a new token only if the tokens that U has waited for so
    far do not imply it. Then *i* is later than every instruction of V that U has waited for, so
    pushes stay in order.
    """
    late = np.flatnonzero(needs.max(axis=1, initial=-1) >= np.arange(len(units)))
    if len(late):
        raise VdlaError(
            f"instruction {late[0]}: expected instruction {needs[late[0]].max()}, which it needs, "
            "before it"
        )
    pops, pushes = np.zeros(len(units), np.int64), np.zeros(len(units), np.int64)
    clocks, latest = np.full((len(units), _UNITS), -1), np.full((_UNITS, _UNITS), -1)
    _find_tokens(units, np.ascontiguousarray(needs), clocks, latest, pops, pushes)
    return pops, pushes


@native
def _find_tokens(units: Ints, needs: Table, clocks: Table, latest: Table, pops: Ints, pushes: Ints):
    """Set the masks. ``clocks[j, v]``: the last instruction of v that has certainly ended when j
    starts; ``latest``: the clock of each unit's latest instruction.
    """
    for index in range(len(units)):
        unit = units[index]
        for v in range(_UNITS):
            clocks[index, v] = latest[unit, v]
        # From the latest source to the earliest: the token of one may imply the others.
        for _ in range(_UNITS):
            other = -1
            for v in range(_UNITS):
                if (
                    v != unit
                    and needs[index, v] > clocks[index, v]
                    and (other < 0 or needs[index, v] >= needs[index, other])
                ):
                    other = v
            if other >= 0:
                source = needs[index, other]
                pushes[source] |= 1 << unit
                pops[index] |= 1 << other
                for v in range(_UNITS):
                    clocks[index, v] = max(clocks[index, v], clocks[source, v])
                clocks[index, other] = max(clocks[index, other], source)
        for v in range(_UNITS):
            latest[unit, v] = clocks[index, v]
