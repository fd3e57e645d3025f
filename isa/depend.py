"""Decoupled access-execute: dependency tokens let the units run decoupled, while the linear stream
of instructions keeps its meaning.

Units run ahead of each other as far as tokens let them. :func:`dependencies` finds every pair of
accesses of different units to the same entry or byte, one of them a write, and
:func:`order_by_tokens` orders them as in the program. Instructions of one unit need no tokens: they
run in order. Vector clocks find the pairs that other tokens order already; these get no token of
their own.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import numpy as np

from .errors import VdlaError
from .insn import Insn
from .native import Ints, Shorts, Table, native
from .opcodes import Unit, Units
from .params import HwParams
from .runs import SPACES, Footprints

_UNITS = len(Unit)
_LOAD, _DRAM = int(Unit.LOAD), SPACES["dram"]
#: The set of units of each mask.
_MASKS = [Units(mask) for mask in range(1 << _UNITS)]


def dependencies(found: Footprints, tracks: Sequence[int] | None = None) -> np.ndarray:
    """Find the dependencies of each instruction, in program order.

    For each instruction the result has, per track and unit, the latest earlier instruction of that
    track and unit that it depends on, or -1 (int64 [instructions, tracks, units]). Instructions of
    one track and unit keep their order anyway, so the entry of the instruction's own track and unit
    is always -1.

    Parameters
    ----------
    found : the accesses of the instructions, in program order; some instructions may be left out
    tracks : track of each instruction, from 0; by default there is one
    """
    count = len(found.order)
    track_of = np.zeros(count, np.int64) if tracks is None else np.asarray(tracks, np.int64)
    rows = track_of * _UNITS + found.units[found.order]
    total = (int(track_of.max(initial=0)) + 1) * _UNITS
    needs = np.full((count, total), -1, np.int64)
    row_of = np.zeros(len(found.units), np.int64)
    row_of[found.order] = rows
    row_of = np.repeat(row_of, np.diff(found.bounds))
    slots, own = _slots(row_of, found)
    widths = np.array([sum(slot[0] == s for slot in slots) for s in range(len(found.sizes))])
    firsts = np.concatenate([[0], np.cumsum(widths)])
    begins = np.concatenate([[0], np.cumsum(np.repeat(found.sizes, widths))])
    history = np.zeros(int(begins[-1]), np.int32)
    table = np.array([slot[1:] for slot in slots], np.int64).reshape(-1, 2)
    _find_needs(
        found.order, rows, found.bounds, found.spaces, found.writes, own, found.starts, found.runs,
        begins, firsts, table, history, needs,
    )  # fmt: skip
    return needs.reshape(count, -1, _UNITS)


def _slots(row_of: np.ndarray, found: Footprints) -> tuple[list[tuple[int, ...]], np.ndarray]:
    """Who uses each memory and how: (space, row, whether it writes), in order; and for each access,
    the number of its slot among those of its space. A *row* of instructions is a track and unit.
    """
    shape = len(found.sizes), int(row_of.max(initial=0)) + 1, 2
    users = np.ravel_multi_index((found.spaces, row_of, found.writes), shape)
    seen = np.zeros(shape, bool)
    seen.reshape(-1)[users] = True
    number = np.cumsum(seen.reshape(-1)) - 1
    first = np.cumsum(seen.sum(axis=(1, 2))) - seen.sum(axis=(1, 2))
    return [tuple(slot) for slot in np.argwhere(seen).tolist()], number[users] - first[found.spaces]


@native
def _find_needs(
    order: Ints, rows: Ints, bounds: Ints, spaces: Ints, writes: Ints, own: Ints, starts: Ints,
    runs: Table, begins: Ints, firsts: Ints, slots: Table, history: Shorts, needs: Table,
):  # fmt: skip
    """Fill ``needs``. ``history`` has, for each slot of each space and each entry of the space, the
    place behind that of the latest instruction that used the entry so, 0 for none.
    """
    for place in range(len(order)):
        row = rows[place]
        for access in range(bounds[order[place]], bounds[order[place] + 1]):
            first = firsts[spaces[access]]
            for slot in range(first, firsts[spaces[access] + 1]):
                other = slots[slot, 0]
                if other != row and (writes[access] or slots[slot, 1]):
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


def deadlines(found: Footprints) -> list[int]:
    """Find how late each instruction may come, in program order.

    For a LOAD this is the first later instruction that must come after it, because that one reads
    or overwrites what was loaded, or overwrites its source; or the number of instructions if there
    is none. For any other instruction it is its own index.
    """
    late = np.arange(len(found.order))
    late[found.units[found.order] == _LOAD] = len(late)
    offsets = np.concatenate([[0], np.cumsum(found.sizes)])
    loads = np.zeros(int(offsets[-1]), np.int32)
    _find_deadlines(
        found.order, found.units, found.bounds, found.spaces, found.writes, found.starts,
        found.runs, offsets, loads, late,
    )  # fmt: skip
    return late.tolist()


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
    :func:`dependencies` and :func:`order_by_tokens`."""
    return order_by_tokens(insns, dependencies(Footprints.of(insns, params, image or {}))[:, 0])


def order_by_tokens(insns: Sequence[Insn], needs: np.ndarray) -> list[Insn]:
    """The same instructions with the fewest tokens that order every dependency between units;
    their ``pop`` and ``push`` masks are replaced.

    Parameters
    ----------
    insns : instructions in program order
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
    late = np.flatnonzero(needs.max(axis=1, initial=-1) >= np.arange(len(insns)))
    if len(late):
        raise VdlaError(
            f"instruction {late[0]}: expected instruction {needs[late[0]].max()}, which it needs, "
            "before it"
        )
    units = np.array([insn.unit for insn in insns], np.int64)
    pops, pushes = np.zeros(len(insns), np.int64), np.zeros(len(insns), np.int64)
    clocks, latest = np.full((len(insns), _UNITS), -1), np.full((_UNITS, _UNITS), -1)
    _find_tokens(units, np.ascontiguousarray(needs), clocks, latest, pops, pushes)
    return [
        insn.with_tokens(_MASKS[pop], _MASKS[push])
        for insn, pop, push in zip(insns, pops.tolist(), pushes.tolist(), strict=True)
    ]


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


def reorder(
    insns: Sequence[Insn], needs: np.ndarray, order: Sequence[int]
) -> tuple[list[Insn], np.ndarray]:
    """Put instructions in another order, which must keep every dependency and the order within
    every track and unit. Returns the instructions, and for each the latest instruction that it
    depends on in the new order, per unit (int64 [instructions, units]).

    ``needs`` : per track and unit (:func:`dependencies`)
    """
    place = np.empty(len(insns) + 1, np.int64)
    place[list(order)] = np.arange(len(insns))
    place[-1] = -1  # -1, no dependency, stays -1
    return [insns[i] for i in order], place[needs[list(order)]].max(axis=1)
