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
from dataclasses import replace

import numpy as np

from .errors import VdlaError
from .footprint import Access, MicroOps, accesses
from .insn import Insn, Load
from .opcodes import Unit, Units
from .params import MEMORIES, HwParams

#: The set of units of each mask.
_MASKS = [Units(mask) for mask in range(1 << len(Unit))]


class _History:
    """The last write and the last read of each entry of one memory (instruction index, -1 for
    never), for each *row* of instructions, that is for each track and unit.
    """

    def __init__(self, size: int):
        self.size = size
        self.written: dict[int, np.ndarray] = {}
        self.read: dict[int, np.ndarray] = {}

    def record(self, access: Access, row: int, index: int) -> None:
        """Note an access by instruction ``index``, which is in ``row``."""
        users = self.written if access.write else self.read
        if row not in users:
            users[row] = np.full(self.size, -1, np.int32)
        users[row][access.entries] = index


def program_accesses(
    insns: Sequence[Insn], params: HwParams, image: Mapping[int, bytes] | None = None
) -> list[list[Access]]:
    """The accesses of every instruction of a program.

    ``image`` : constant DRAM contents by address, from which micro-ops are read
    """
    uops = MicroOps(params, image or {})
    return [accesses(insn, params, uops) for insn in insns]


def _sizes(found: Sequence[Sequence[Access]], params: HwParams) -> dict[str, int]:
    """Entries of every memory; of DRAM those up to the last one that is accessed."""
    dram = (a.entries.max(initial=-1) for each in found for a in each if a.memory == "dram")
    return {name: params.depth(name) for name in MEMORIES} | {
        "dram": int(max(dram, default=-1)) + 1
    }


def dependencies(
    insns: Sequence[Insn],
    found: Sequence[Sequence[Access]],
    params: HwParams,
    tracks: Sequence[int] | None = None,
) -> list[np.ndarray]:
    """Find the dependencies of each instruction, in program order.

    For each instruction the result has, per track and unit, the latest earlier instruction of that
    track and unit that it depends on, or -1 (int64 [tracks, units]). Instructions of one track and
    unit keep their order anyway, so the entry of the instruction's own track and unit is always -1.

    Parameters
    ----------
    insns : instructions in program order
    found : their accesses (:func:`program_accesses`)
    tracks : track of each instruction, from 0; by default there is one
    """
    tracks = [0] * len(insns) if tracks is None else tracks
    count = max(tracks, default=0) + 1
    history = {name: _History(size) for name, size in _sizes(found, params).items()}
    needs = np.full((len(insns), count * len(Unit)), -1, np.int64)
    for index, (insn, track, its) in enumerate(zip(insns, tracks, found, strict=True)):
        row = track * len(Unit) + insn.unit
        for other, latest in _needs(its, row, history).items():
            needs[index, other] = latest
        for access in its:
            history[access.memory].record(access, row, index)
    return list(needs.reshape(len(insns), count, len(Unit)))


def deadlines(
    insns: Sequence[Insn], found: Sequence[Sequence[Access]], params: HwParams
) -> list[int]:
    """Find how late each instruction may come, in program order.

    For a LOAD this is the first later instruction that must come after it, because that one reads
    or overwrites what was loaded, or overwrites its source; or the number of instructions if there
    is none. For any other instruction it is its own index. ``found`` has the accesses of each
    (:func:`program_accesses`).
    """
    #: The last load of each entry, -1 for none.
    loads = {name: np.full(size, -1, np.int32) for name, size in _sizes(found, params).items()}
    late = np.arange(len(insns) + 1)
    late[-1] = -1  # of no load
    for index, (insn, its) in enumerate(zip(insns, found, strict=True)):
        loading = isinstance(insn, Load)
        if loading:
            late[index] = len(insns)
        for access in its:
            last = loads[access.memory]
            if access.write or access.memory != "dram":
                touched = last[access.entries]
                late[touched] = np.minimum(late[touched], index)
            if loading:
                last[access.entries] = index
    return late[:-1].tolist()


def insert_tokens(
    insns: Sequence[Insn], params: HwParams, image: Mapping[int, bytes] | None = None
) -> list[Insn]:
    """The same instructions with the tokens that their dependencies need; see
    :func:`dependencies` and :func:`order_by_tokens`."""
    found = program_accesses(insns, params, image)
    return order_by_tokens(insns, [need[0] for need in dependencies(insns, found, params)])


def order_by_tokens(insns: Sequence[Insn], needs: Sequence[np.ndarray]) -> list[Insn]:
    """The same instructions with the fewest tokens that order every dependency between units;
    their ``pop`` and ``push`` masks are replaced.

    Parameters
    ----------
    insns : instructions in program order
    needs : per unit, the latest instruction that each depends on, or -1 (int64 [units])

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
    pops, pushes = [0] * len(insns), [0] * len(insns)
    # clocks[j][v]: index of the last instruction of v that has certainly ended when j starts.
    clocks: list[list[int]] = []
    latest = [[-1] * len(Unit) for _ in Unit]
    for index, (insn, need) in enumerate(zip(insns, needs, strict=True)):
        unit, sources = insn.unit, need.tolist()
        clock = latest[unit]
        for source, other in sorted(zip(sources, range(len(Unit)), strict=True), reverse=True):
            if other == unit or source <= clock[other]:
                continue
            if source >= index:
                raise VdlaError(
                    f"instruction {index}: expected instruction {source}, which it needs, before it"
                )
            pushes[source] |= 1 << unit
            pops[index] |= 1 << other
            clock = list(map(max, clock, clocks[source]))
            clock[other] = max(clock[other], source)
        clocks.append(clock)
        latest[unit] = clock
    return [
        replace(insn, pop=_MASKS[pop], push=_MASKS[push])
        for insn, pop, push in zip(insns, pops, pushes, strict=True)
    ]


def reorder(
    insns: Sequence[Insn], needs: Sequence[np.ndarray], order: Sequence[int]
) -> tuple[list[Insn], list[np.ndarray]]:
    """Put instructions in another order, which must keep every dependency and the order within
    every track and unit. Returns the instructions, and for each the latest instruction that it
    depends on in the new order, per unit (int64 [units]).

    ``needs`` : per track and unit (:func:`dependencies`)
    """
    place = np.empty(len(insns) + 1, np.int64)
    place[list(order)] = np.arange(len(insns))
    place[-1] = -1  # -1, no dependency, stays -1
    return [insns[i] for i in order], [place[needs[i]].max(axis=0) for i in order]


def _needs(found: Sequence[Access], row: int, history: Mapping[str, _History]) -> dict[int, int]:
    """Per other row of instructions, the latest one that the accesses depend on; -1 for none."""
    needs: dict[int, int] = {}
    for access in found:
        past = history[access.memory]
        for users in (past.written, past.read) if access.write else (past.written,):
            for other, last in users.items():
                if other != row:
                    latest = int(last[access.entries].max(initial=-1))
                    needs[other] = max(needs.get(other, -1), latest)
    return needs
