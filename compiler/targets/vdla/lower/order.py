"""The order in which instructions are fetched.

Fetch dispatches in program order, and one full queue holds up all units. So instructions are put in
the order in which their units are expected to take them, and nothing moves before what it depends
on. Loads then run ahead of arithmetic, across tiles and layers, as far as the scratchpads allow.

Operators of the tensor core and those of the vector unit alone are two tracks: each keeps its own
order, and a unit takes from either what can start first. So a depthwise convolution or a residual
addition works on the first results of the convolution before it while that is still computing. A
mean and the classifier behind it may have a track each.

Loads of constants are tracks, too: weights do not depend on results, so those of the next layers
are loaded while the load of an input still waits for the layer before.

Where several instructions could begin, a preference decides. No preference is best for all
networks, so several orders are made, and the one that is estimated to end earliest is taken.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import numpy as np

from .....isa.depend import Dependencies
from .....isa.encoding import PARAM_ENTRIES
from .....isa.insn import Gemm, Insn, Load, Param, Store, Vector
from .....isa.insn import Table as SetTable
from .....isa.insn_table import InsnTable
from .....isa.memory import MemoryParams
from .....isa.native import Ints, Table, native
from .....isa.opcodes import DST_MEMORIES, LOADABLE, SRC0_MEMORIES, Opcode, Unit
from .....isa.params import HwParams
from .....isa.timing import GEMM_DEPTH, PARAM_ITERATIONS, VECTOR_DEPTH, table_iterations
from .....isa.vector_ops import POST_BY_NAME, VECTOR_OPS
from ..machine import Track

#: Estimated cycles that a load takes in addition to those of its entries.
LOAD_CYCLES = 3
#: For each track, the unit that does most of its work.
ARITHMETIC = (Unit.GEMM, Unit.VECTOR, Unit.VECTOR, Unit.GEMM)
TRACKS = len(ARITHMETIC)
_UNITS, _LOAD, _GEMM = len(Unit), int(Unit.LOAD), int(Unit.GEMM)
_VECTOR, _STORE = int(Unit.VECTOR), int(Unit.STORE)
_TENSOR, _CLASSIFIER = int(Track.TENSOR), int(Track.CLASSIFIER)
_PARAM, _TABLE, _VECTOR_INSN = int(Opcode.PARAM), int(Opcode.TABLE), int(Opcode.VECTOR)
#: Queues for loads of weights, and as many for loads of other constants: operators of the tensor
#: track have them in turn.
TURNS = 8
_NO_POST = POST_BY_NAME["none"].code


#: Cycles of arithmetic by which loads of the tensor track go before those of the vector track. The
#: best number depends on which track has more to do where, so all are tried; one takes
#: milliseconds.
AHEAD_CYCLES = (0, 300, 1000, 3000)
#: Cycles for which the load unit would rather wait for a load that is needed than begin one that is
#: not needed until later, and keeps the bus for long.
PATIENCE_CYCLES = 100


def loads_by_need(deadlines: np.ndarray) -> np.ndarray:
    """Indices of the instructions in program order, but with each load directly before the first
    instruction that must come after it (:func:`~vdla.isa.depend.deadlines`). Loads are then in the
    order in which they are needed.
    """
    return np.lexsort((deadlines == np.arange(deadlines.size), deadlines))


def constants_apart(
    insns: InsnTable,
    tracks: np.ndarray,
    turns: np.ndarray,
    image: Mapping[int, bytes],
) -> np.ndarray:
    """The tracks of the instructions, where loads of constants are tracks of their own: TRACKS
    above the others, or as many more as the ``turns`` of their operators say. Weights do not wait
    for parameters, which have fewer buffers. ``image`` has what lies in DRAM before the program
    runs.
    """
    begins = np.array(sorted(image), np.int64)
    ends = np.array([at + len(image[at]) for at in begins.tolist()], np.int64)
    if not begins.size:
        return tracks
    addresses = insns.column("dram_addr")
    segments = np.searchsorted(begins, addresses, "right") - 1
    is_constant = (segments >= 0) & (addresses < ends[segments]) & (insns.opcodes == Opcode.LOAD)
    queues = turns + TURNS * (insns.column("memory") != LOADABLE.index("wgt"))
    return tracks + TRACKS * (1 + queues) * is_constant


def dispatch_order(
    insns: InsnTable,
    tracks: np.ndarray,
    needs: Dependencies,
    memory: MemoryParams,
    ahead_cycles: Sequence[int],
    insn_cycles: int,
) -> np.ndarray:
    """Indices of the instructions in the order of their estimated starts: of the orders with one of
    these ``ahead_cycles``, the first one that is estimated to end earliest.

    Parameters
    ----------
    insns : instructions in program order
    tracks : the track of each instruction (:func:`constants_apart`); the lower track goes first
        where nothing else decides
    needs : what each instruction depends on
    insn_cycles : cycles of the bus for an instruction, by which loads are expected to take longer
    """
    units = insns.units
    busy, latency = _estimates(insns, memory)
    loads = units == _LOAD
    busy[loads] += busy[loads] * len(insns) * insn_cycles // max(1, int(busy[loads].sum()))
    whole = tracks % TRACKS
    # Of the settings that a track repeats, only the first one stays.
    busy[repeated_settings(insns, whole)] = 0
    leaders = _find_groups(insns, whole)
    members = np.argsort(leaders, kind="stable")
    heads, group_of = np.unique(leaders[members], return_inverse=True)
    # A queue for each track and unit has its groups in program order.
    queue_of = tracks[heads] * _UNITS + units[heads]
    queues = int(queue_of.max(initial=-1)) + 1
    waiting = np.argsort(queue_of, kind="stable")
    fronts = np.searchsorted(queue_of[waiting], np.arange(queues + 1))
    bounds = np.searchsorted(group_of, np.arange(heads.size + 1))
    arithmetic = np.array([track * _UNITS + unit for track, unit in enumerate(ARITHMETIC)])
    pass_tmp = np.zeros(heads.size, np.int64)
    pass_tmp[group_of[_pass_tmp(insns)[members]]] = 1
    work = _work_before(units, busy, whole)
    needed = needs.latest[needs.latest >= 0]
    firsts = np.concatenate([[0], np.cumsum((needs.latest >= 0).sum(axis=1))])
    found: list[tuple[int, np.ndarray]] = []
    for ahead in ahead_cycles:
        order, ends = np.zeros(len(insns), np.int64), np.full(len(insns), -1)
        _find_order(
            needed, firsts, members, bounds, np.unique(queue_of), waiting, pass_tmp,
            fronts[:-1].copy(), fronts[1:].copy(), np.full(queues, -1), arithmetic, work, busy,
            latency, np.zeros(_UNITS, np.int64), ends, np.full(len(insns), -1), order,
            ahead,
        )  # fmt: skip
        found.append((int(ends.max(initial=0)), order))
    _, first = min(found, key=lambda known: known[0])
    return first


def _work_before(units: np.ndarray, busy: np.ndarray, tracks: np.ndarray) -> np.ndarray:
    """For each instruction, the cycles of its track's arithmetic before it in program order."""
    before = np.zeros(len(units), np.int64)
    for track in np.unique(tracks):
        mine = tracks == track
        work = np.where(units[mine] == ARITHMETIC[track], busy[mine], 0)
        before[mine] = np.cumsum(work) - work
    return before


def _estimates(insns: InsnTable, memory: MemoryParams) -> tuple[np.ndarray, np.ndarray]:
    """:func:`_estimate` of every instruction."""
    busy, latency = (np.zeros(len(insns), np.int64) for _ in range(2))
    for batch in insns.batches:
        busy[batch.rows], latency[batch.rows] = _estimate(batch.insn, insns.params, memory)
    return busy, latency


@native
def _find_order(
    needed: Ints, firsts: Ints, members: Ints, bounds: Ints, used: Ints, waiting: Ints,
    pass_tmp: Ints, fronts: Ints, backs: Ints, ready: Ints, arithmetic: Ints, work: Ints,
    busy: Ints, latency: Ints, free: Ints, ends: Ints, group_of: Ints, order: Ints, ahead: int,
):  # fmt: skip
    """Take instructions from their queues until all are in ``order``.

    Parameters
    ----------
    needed : what instructions depend on; instruction i has those from ``firsts[i]`` to
        ``firsts[i + 1] - 1``
    members : instructions by group; group g has those from ``bounds[g]`` to ``bounds[g + 1] - 1``
    used : the queues that have groups
    waiting : groups by queue; queue q still has those from ``fronts[q]`` to ``backs[q] - 1``
    pass_tmp : by group, whether its results pass tmp
    ready : by queue, when what its first group needs has ended; -1 where that is not known
    arithmetic : by track, the queue of its arithmetic
    work : for each instruction, the cycles of its track's arithmetic before it
    free : by unit, the first cycle in which it can start something
    ends : by instruction, its last cycle; -1 where it has not started
    group_of : workspace, -1 for each instruction
    ahead : one of the :data:`AHEAD_CYCLES`
    """
    done = 0
    while done < len(order):
        best, best_begin, best_reserve, best_wanted = -1, 0, 0, 0
        for turn in range(len(used)):
            queue = used[turn]
            if fronts[queue] == backs[queue]:
                continue
            group = waiting[fronts[queue]]
            if ready[queue] < 0:
                ready[queue] = _when_ready(needed, firsts, members, bounds[group],
                                           bounds[group + 1], group, ends, group_of)  # fmt: skip
                if ready[queue] < 0:
                    continue
            unit = queue % _UNITS
            begin = max(ready[queue], free[unit])
            # Cycles for which the track's arithmetic is busy before it needs the next load.
            reserve = 0
            busiest = arithmetic[queue // _UNITS % TRACKS]
            if unit == _LOAD and busiest < len(fronts) and fronts[busiest] < backs[busiest]:
                first = members[bounds[waiting[fronts[busiest]]]]
                reserve = work[members[bounds[group]]] - work[first]
                if queue // _UNITS % TRACKS != _TENSOR:
                    reserve += ahead
            wanted = begin + min(max(reserve, 0), PATIENCE_CYCLES)
            better = best < 0 or wanted < best_wanted
            if not better and wanted == best_wanted:
                # Queues come by track: of equal units and reserves, the lower track stays.
                other = best % _UNITS
                better = unit < other or (unit == other and reserve < best_reserve)
                # Results that pass tmp keep the vector unit busy at least twice: what has been
                # ready for longer goes before them.
                if unit == other and unit == _VECTOR and pass_tmp[waiting[fronts[best]]]:
                    better = ready[queue] < ready[best]
                is_earlier = members[bounds[group]] < members[bounds[waiting[fronts[best]]]]
                # Else a track may hold up the other one while stores are what both wait for.
                if unit == other and unit == _STORE:
                    better = is_earlier
                # Products of one track may read what those of the other one make.
                if unit == other and unit == _GEMM:
                    # A classifier's are few, and its next weights wait for them.
                    better = is_earlier or queue // _UNITS % TRACKS == _CLASSIFIER
                    better = better and best // _UNITS % TRACKS != _CLASSIFIER
            if better:
                best, best_begin, best_reserve, best_wanted = queue, begin, reserve, wanted
        group, unit, begin = waiting[fronts[best]], best % _UNITS, best_begin
        fronts[best] += 1
        ready[best] = -1
        for place in range(bounds[group], bounds[group + 1]):
            index = members[place]
            # Every instruction takes its unit for a cycle at least.
            free[unit] = begin + max(1, busy[index])
            ends[index] = begin + busy[index] + latency[index]
            begin = free[unit]
            order[done] = index
            done += 1


@native
def _when_ready(
    needed: Ints, firsts: Ints, members: Ints, first: int, last: int, group: int, ends: Ints,
    group_of: Ints,
) -> int:  # fmt: skip
    """When all has ended that a group needs of others; -1 if something has not started."""
    for place in range(first, last):
        group_of[members[place]] = group
    ready = 0
    for place in range(first, last):
        index = members[place]
        for k in range(firsts[index], firsts[index + 1]):
            if group_of[needed[k]] != group:
                if ends[needed[k]] < 0:
                    return -1
                ready = max(ready, ends[needed[k]])
    return ready  # type: ignore[return-value]


def without_repeated_settings(insns: InsnTable) -> np.ndarray:
    """Indices of the instructions, in order, without each PARAM and each TABLE that sets what is
    set already."""
    params, repeats = insns.params, np.zeros(len(insns), np.int64)
    names = ("par_base", "zero_point", "lo", "hi")
    settings = np.stack([insns.column(name) for name in names], axis=1)
    into_par = insns.column("memory") == LOADABLE.index("par")
    into_par &= insns.opcodes == Opcode.LOAD
    ends = np.zeros(len(insns), np.int64)
    for batch in insns.batches_of(Opcode.LOAD):
        ends[batch.rows] = batch.insn.base + batch.insn.entries
    _find_repeats(
        insns.opcodes, settings, into_par.astype(np.int64), insns.column("base"), ends,
        PARAM_ENTRIES, params.table_entries, repeats,
    )  # fmt: skip
    return np.flatnonzero(repeats == 0)


@native
def _find_repeats(
    opcodes: Ints, settings: Table, into_par: Ints, begins: Ints, ends: Ints, param_entries: int,
    table_entries: int, repeats: Ints,
):  # fmt: skip
    """Set ``repeats`` where an instruction sets what is set already.

    ``settings`` has the fields of each PARAM and TABLE, the first one its entry of par; loads into
    par have the entries from ``begins`` to ``ends`` - 1.
    """
    param, table = -1, -1  # the instructions that have set what is set
    for index in range(len(opcodes)):
        if opcodes[index] == _PARAM:
            if param >= 0:
                repeats[index] = 1
                for k in range(settings.shape[1]):
                    if settings[index, k] != settings[param, k]:
                        repeats[index] = 0
            param = index
        elif opcodes[index] == _TABLE:
            if table >= 0 and settings[index, 0] == settings[table, 0]:
                repeats[index] = 1
            table = index
        elif into_par[index]:
            begin, end = begins[index], ends[index]
            if (
                param >= 0
                and begin - param_entries < settings[param, 0]
                and (settings[param, 0] < end)
            ):
                param = -1
            if (
                table >= 0
                and begin - table_entries < settings[table, 0]
                and (settings[table, 0] < end)
            ):
                table = -1


def _pass_tmp(insns: InsnTable) -> np.ndarray:
    """Which instructions are one of several passes over the same results: bool [n]."""
    tmp = SRC0_MEMORIES.index("tmp"), DST_MEMORIES.index("tmp")
    passes = (insns.column("src0") == tmp[0]) | (insns.column("dst") == tmp[1])
    return passes & (insns.opcodes == Opcode.VECTOR)


def repeated_settings(insns: InsnTable, tracks: np.ndarray) -> np.ndarray:
    """Indices of the settings that repeat what their own track has set."""
    found = [np.zeros(0, np.int64)]
    for track in np.unique(tracks):
        mine = np.flatnonzero(tracks == track)
        found.append(np.delete(mine, without_repeated_settings(insns.take(mine))))
    return np.concatenate(found)


def _find_groups(insns: InsnTable, tracks: np.ndarray) -> np.ndarray:
    """The group of each instruction, which no instruction of another track may interrupt, named by
    its first one: a PARAM or a TABLE and all instructions that use what it sets are a group; any
    other instruction is a group by itself. int64 [n]
    """
    leaders = np.arange(len(insns))
    if np.unique(tracks).size == 1:
        return leaders
    looks_up = np.isin(insns.column("op"), [op.code for op in VECTOR_OPS if op.lut_bytes])
    uses = (insns.opcodes == Opcode.VECTOR) & (looks_up | (insns.column("post") != _NO_POST))
    _join_groups(
        insns.opcodes, tracks, uses.astype(np.int64), np.full(TRACKS, -1), np.full(TRACKS, -1),
        np.full(len(insns), -1), leaders,
    )  # fmt: skip
    return leaders


@native
def _join_groups(
    opcodes: Ints, tracks: Ints, uses: Ints, firsts: Ints, lasts: Ints, before: Ints, leaders: Ints
):
    """Lower ``leaders``. By track, ``firsts`` has the last PARAM or TABLE and ``lasts`` the latest
    VECTOR since; ``before`` the VECTOR before each one. ``uses``: whether an instruction uses what
    is set.
    """
    for index in range(len(opcodes)):
        track = tracks[index]
        if opcodes[index] == _PARAM or opcodes[index] == _TABLE:
            firsts[track] = index
            lasts[track] = index
        elif opcodes[index] == _VECTOR_INSN and firsts[track] >= 0:
            before[index] = lasts[track]
            lasts[track] = index
            if uses[index]:
                member = index
                while member > firsts[track] and leaders[member] == member:
                    leaders[member] = firsts[track]
                    member = before[member]


def _estimate(insn: Insn, params: HwParams, memory: MemoryParams) -> tuple[int, int]:
    """Estimated cycles for which an instruction occupies its unit, and from then to its end."""
    match insn:
        case Load():
            beats = max(1, insn.dram_entry_bytes(params) // params.bus_bytes)
            moved = insn.x_size * insn.y_size * insn.z_size
            return insn.entries + moved * (beats - 1) + LOAD_CYCLES, memory.read_latency_cycles
        case Store():
            beats = max(1, params.entry_bytes("out") // params.bus_bytes)
            return insn.entries * beats, memory.write_latency_cycles
        case Gemm():
            return insn.iterations, GEMM_DEPTH
        case Vector():
            return params.vector_passes * insn.iterations, VECTOR_DEPTH
        case Param():
            return params.vector_passes * PARAM_ITERATIONS, VECTOR_DEPTH
        case SetTable():
            return params.vector_passes * table_iterations(params), VECTOR_DEPTH
    raise TypeError(f"instruction expected, got {insn!r}")
