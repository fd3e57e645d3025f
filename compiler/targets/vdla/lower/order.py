"""The order in which instructions are fetched.

Fetch dispatches in program order, and one full queue holds up all units. So instructions are put in
the order in which their units are expected to take them, and nothing moves before what it depends
on. Loads then run ahead of arithmetic, across tiles and layers, as far as the scratchpads allow.

Operators of the tensor core and those of the vector unit alone are two tracks: each keeps its own
order, and a unit takes from either what can start first. So a depthwise convolution or a residual
addition works on the first results of the convolution before it while that is still computing.

Loads of constants are tracks, too: weights do not depend on results, so those of the next layers
are loaded while the load of an input still waits for the layer before.

Where several instructions could begin, a preference decides. No preference is best for all
networks, so several orders are made, and the one that is estimated to end earliest is taken.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import astuple, dataclass

import numpy as np

from .....isa.batch import batches
from .....isa.encoding import PARAM_ENTRIES
from .....isa.insn import Gemm, Insn, Load, Param, Store, Vector
from .....isa.insn import Table as SetTable
from .....isa.memory import MemoryParams
from .....isa.native import Ints, Table, native
from .....isa.opcodes import Unit
from .....isa.params import HwParams
from .....isa.timing import GEMM_DEPTH, PARAM_ITERATIONS, VECTOR_DEPTH, table_iterations
from .....isa.vector_ops import BY_NAME

#: Estimated cycles that a load takes in addition to those of its entries.
LOAD_CYCLES = 3
#: For each track, the unit that does most of its work.
ARITHMETIC = (Unit.GEMM, Unit.VECTOR)
TRACKS = len(ARITHMETIC)
_UNITS, _LOAD, _VECTOR, _STORE = len(Unit), int(Unit.LOAD), int(Unit.VECTOR), int(Unit.STORE)
#: Queues for loads of weights, and as many for loads of other constants: operators of the tensor
#: track have them in turn.
TURNS = 8


@dataclass(frozen=True)
class Preference:
    """What goes first where several instructions could begin at about the same time.

    Attributes
    ----------
    patience_cycles : cycles for which the load unit would rather wait for a load that is needed
        than begin one that is not needed until later, and keeps the bus for long
    ahead_cycles : cycles of arithmetic by which loads of the tensor track go before those of the
        vector track
    defers_tmp : whether the vector unit takes what has been ready for longer before results of the
        tensor track that pass tmp, which keep it busy at least twice; else the tensor track goes
        first
    is_in_order : whether the store unit takes what comes first in the program; else the tensor
        track goes first, and may hold up the other one while stores are what both wait for
    """

    patience_cycles: int = 0
    ahead_cycles: int = 0
    defers_tmp: bool = False
    is_in_order: bool = False


#: Preferences where loads are saved (:attr:`~.machine.Machine.saves_loads`). Which one is best
#: depends on which track has more to do where, so all are tried; one takes milliseconds.
SAVING = tuple(Preference(100, ahead, True, True) for ahead in (0, 300, 1000, 3000))


def loads_by_need(deadlines: Sequence[int]) -> list[int]:
    """Indices of the instructions in program order, but with each load directly before the first
    instruction that must come after it (:func:`~vdla.isa.depend.deadlines`). Loads are then in the
    order in which they are needed.
    """
    late = np.asarray(deadlines, np.int64)
    return np.lexsort((late == np.arange(late.size), late)).tolist()


def constants_apart(
    insns: Sequence[Insn],
    tracks: Sequence[int],
    turns: Sequence[int],
    image: Mapping[int, bytes],
) -> list[int]:
    """The tracks of the instructions, where loads of constants are tracks of their own: TRACKS
    above the others, or as many more as the ``turns`` of their operators say. Weights do not wait
    for parameters, which have fewer buffers. ``image`` has what lies in DRAM before the program
    runs.
    """
    begins = np.array(sorted(image), np.int64)
    ends = np.array([at + len(image[at]) for at in begins.tolist()], np.int64)
    apart = []
    for insn, track, turn in zip(insns, tracks, turns, strict=True):
        if isinstance(insn, Load):
            segment = int(np.searchsorted(begins, insn.dram_addr, "right")) - 1
            is_constant = segment >= 0 and insn.dram_addr < int(ends[segment])
            queue = turn + TURNS * (insn.memory != "wgt")
            track += TRACKS * (1 + queue) * is_constant
        apart.append(int(track))
    return apart


def dispatch_order(
    insns: Sequence[Insn],
    tracks: Sequence[int],
    needs: np.ndarray,
    params: HwParams,
    memory: MemoryParams,
    preferences: Sequence[Preference] = (Preference(),),
    dropped: tuple[type[Insn], ...] = (),
    insn_cycles: int = 0,
) -> list[int]:
    """Indices of the instructions in the order of their estimated starts: of the orders with these
    ``preferences``, the first one that is estimated to end earliest.

    Parameters
    ----------
    insns : instructions in program order
    tracks : the track of each instruction (:func:`constants_apart`); the lower track goes first
        where nothing else decides
    needs : for each instruction, per track and unit, the index of the latest instruction that it
        depends on, or -1 (:func:`~vdla.isa.depend.dependencies`)
    dropped : settings that are dropped afterwards where they repeat, so that only the first of
        those that a track repeats is expected to take time
    insn_cycles : cycles of the bus for an instruction, by which loads are expected to take longer
    """
    units, busy, latency = _estimates(insns, params, memory)
    loads = units == _LOAD
    busy[loads] += busy[loads] * len(insns) * insn_cycles // max(1, int(busy[loads].sum()))
    whole = [track % TRACKS for track in tracks]
    busy[repeated_settings(insns, whole, params, dropped)] = 0
    groups = _groups(insns, whole)
    members = np.array([index for group in groups for index in group], np.int64)
    group_of = np.repeat(np.arange(len(groups)), [len(group) for group in groups])
    # A queue for each track and unit has its groups in program order.
    heads = np.array([group[0] for group in groups], np.int64)
    queue_of = np.asarray(tracks, np.int64)[heads] * _UNITS + units[heads]
    queues = int(queue_of.max(initial=-1)) + 1
    waiting = np.argsort(queue_of, kind="stable")
    fronts = np.searchsorted(queue_of[waiting], np.arange(queues + 1))
    bounds = np.searchsorted(group_of, np.arange(len(groups) + 1))
    arithmetic = np.array([track * _UNITS + unit for track, unit in enumerate(ARITHMETIC)])
    pass_tmp = np.zeros(len(groups), np.int64)
    pass_tmp[group_of[[_passes_tmp(insns[index]) for index in members.tolist()]]] = 1
    work = _work_before(units, busy, np.asarray(whole, np.int64))
    found: list[tuple[int, np.ndarray]] = []
    for preference in preferences:
        order, ends = np.zeros(len(insns), np.int64), np.full(len(insns), -1)
        _find_order(
            needs.reshape(len(insns), -1), members, bounds, waiting, pass_tmp, fronts[:-1].copy(),
            fronts[1:].copy(), np.full(queues, -1), arithmetic, work, busy, latency,
            np.zeros(_UNITS, np.int64), ends, np.full(len(insns), -1), order,
            *map(int, astuple(preference)),
        )  # fmt: skip
        found.append((int(ends.max(initial=0)), order))
    _, first = min(found, key=lambda known: known[0])
    return first.tolist()


def _work_before(units: np.ndarray, busy: np.ndarray, tracks: np.ndarray) -> np.ndarray:
    """For each instruction, the cycles of its track's arithmetic before it in program order."""
    before = np.zeros(len(units), np.int64)
    for track in np.unique(tracks):
        mine = tracks == track
        work = np.where(units[mine] == ARITHMETIC[track], busy[mine], 0)
        before[mine] = np.cumsum(work) - work
    return before


def _estimates(
    insns: Sequence[Insn], params: HwParams, memory: MemoryParams
) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """Unit, and :func:`_estimate`, of every instruction."""
    units, busy, latency = (np.zeros(len(insns), np.int64) for _ in range(3))
    for batch in batches(insns):
        units[batch.rows] = batch.insn.unit
        busy[batch.rows], latency[batch.rows] = _estimate(batch.insn, params, memory)
    return units, busy, latency


@native
def _find_order(
    needs: Table, members: Ints, bounds: Ints, waiting: Ints, pass_tmp: Ints, fronts: Ints,
    backs: Ints, ready: Ints, arithmetic: Ints, work: Ints, busy: Ints, latency: Ints, free: Ints,
    ends: Ints, group_of: Ints, order: Ints, patience: int, ahead: int, defers_tmp: int,
    is_in_order: int,
):  # fmt: skip
    """Take instructions from their queues until all are in ``order``.

    Parameters
    ----------
    members : instructions by group; group g has those from ``bounds[g]`` to ``bounds[g + 1] - 1``
    waiting : groups by queue; queue q still has those from ``fronts[q]`` to ``backs[q] - 1``
    pass_tmp : by group, whether its results pass tmp
    ready : by queue, when what its first group needs has ended; -1 where that is not known
    arithmetic : by track, the queue of its arithmetic
    work : for each instruction, the cycles of its track's arithmetic before it
    free : by unit, the first cycle in which it can start something
    ends : by instruction, its last cycle; -1 where it has not started
    group_of : workspace, -1 for each instruction
    patience, ahead, defers_tmp, is_in_order : a :class:`Preference`
    """
    done = 0
    while done < len(order):
        best, best_begin, best_reserve, best_wanted = -1, 0, 0, 0
        for queue in range(len(fronts)):
            if fronts[queue] == backs[queue]:
                continue
            group = waiting[fronts[queue]]
            if ready[queue] < 0:
                ready[queue] = _when_ready(needs, members, bounds[group], bounds[group + 1], group,
                                           ends, group_of)  # fmt: skip
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
                if busiest % _UNITS == _VECTOR:
                    reserve += ahead
            wanted = begin + min(max(reserve, 0), patience)
            better = best < 0 or wanted < best_wanted
            if not better and wanted == best_wanted:
                # Queues come by track: of equal units and reserves, the lower track stays.
                other = best % _UNITS
                better = unit < other or (unit == other and reserve < best_reserve)
                is_deferred = defers_tmp and pass_tmp[waiting[fronts[best]]]
                if unit == other and unit == _VECTOR and is_deferred:
                    better = ready[queue] < ready[best]
                if unit == other and unit == _STORE and is_in_order:
                    better = members[bounds[group]] < members[bounds[waiting[fronts[best]]]]
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
    needs: Table, members: Ints, first: int, last: int, group: int, ends: Ints, group_of: Ints
) -> int:
    """When all has ended that a group needs of others; -1 if something has not started."""
    for place in range(first, last):
        group_of[members[place]] = group
    ready = 0
    for place in range(first, last):
        index = members[place]
        for k in range(needs.shape[1]):
            needed = needs[index, k]
            if needed >= 0 and group_of[needed] != group:
                if ends[needed] < 0:
                    return -1
                ready = max(ready, ends[needed])
    return ready  # type: ignore[return-value]


def without_repeated_settings(
    insns: Sequence[Insn], params: HwParams, kinds: tuple[type[Insn], ...] = (Param, SetTable)
) -> list[int]:
    """Indices of the instructions, in order, without each PARAM and each TABLE, or those of
    ``kinds``, that sets what is set already."""
    kept = []
    param: Param | None = None
    table: SetTable | None = None
    for index, insn in enumerate(insns):
        match insn:
            case Param():
                same = param is not None and insn.with_tokens(param.pop, param.push) == param
                param = insn
            case SetTable():
                same = table is not None and insn.par_base == table.par_base
                table = insn
            case Load(memory="par", base=base):
                same, end = False, base + insn.entries
                if param and param.par_base < end and base < param.par_base + PARAM_ENTRIES:
                    param = None
                if table and table.par_base < end and base < table.par_base + params.table_entries:
                    table = None
            case _:
                same = False
        if not (same and isinstance(insn, kinds)):
            kept.append(index)
    return kept


def _passes_tmp(insn: Insn) -> bool:
    """Whether an instruction is one of several passes over the same results."""
    return isinstance(insn, Vector) and "tmp" in (insn.src0, insn.dst)


def repeated_settings(
    insns: Sequence[Insn], tracks: Sequence[int], params: HwParams, kinds: tuple[type[Insn], ...]
) -> list[int]:
    """Indices of the settings of ``kinds`` that repeat what their own track has set."""
    found: list[int] = []
    for track in sorted(set(tracks)) if kinds else ():
        mine = [index for index, other in enumerate(tracks) if other == track]
        kept = without_repeated_settings([insns[index] for index in mine], params, kinds)
        found += sorted(set(mine) - {mine[index] for index in kept})
    return found


def _groups(insns: Sequence[Insn], tracks: Sequence[int]) -> list[list[int]]:
    """Groups of indices, which no instruction of another track may interrupt: a PARAM or a TABLE
    and all instructions that use what it sets are a group; any other instruction is a group by
    itself.
    """
    if len(set(tracks)) == 1:
        return [[index] for index in range(len(insns))]
    groups: list[list[int]] = []
    spans: dict[int, list[int]] = {}  # by track: its last PARAM or TABLE and the VECTORs since
    for index, (insn, track) in enumerate(zip(insns, tracks, strict=True)):
        groups.append([index])
        match insn:
            case Param() | SetTable():
                spans[track] = [index]
            case Vector(op=op, post=post) if track in spans:
                spans[track].append(index)
                if post != "none" or BY_NAME[op].looks_up:
                    first, *rest = spans[track]
                    groups[first] = [first, *rest]
                    for member in rest:
                        groups[member] = []
    return [group for group in groups if group]


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
