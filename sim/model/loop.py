"""The processes of this folder as one loop of machine code: cycles only, for searches.

A search runs many programs for their cycles alone. Most of that time is then what SimPy's processes
take to wait for and to wake each other. Here all of them are asked in turn, and each goes as far as
it can; a history is a column of an array. What instructions cost comes from the same tables as for
the processes, and each rule below is one of theirs: tests hold both to the same cycles. Why there
are two: ``docs/adr/0030-cycles-in-one-loop.md``.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from ...isa.native import Ints, Table, native
from ...isa.opcodes import Unit
from ...isa.timing import GEMM_DEPTH, LOAD_END, STORE_BURSTS, STORE_DATA, STORE_END, VECTOR_DEPTH
from .dma import NEVER
from .gemm import iterations
from .load import plans
from .regs import Moments
from .shared import Shared
from .store import beat_cycles, beats_of_bursts
from .vector import Pattern, patterns

_UNITS = len(Unit)
_LOAD, _GEMM, _VECTOR, _STORE = (int(u) for u in (Unit.LOAD, Unit.GEMM, Unit.VECTOR, Unit.STORE))

#: Columns of ``insns``: the instruction whose start frees the slot of the queue that this one
#: enters, or -1; the number of its plan, its iterations, its pattern or its list of bursts.
_FREED_BY, _KIND = range(2)
#: Columns of ``known``: the cycles of an instruction's events, -1 until they are known, and how
#: many beats came together with padding. The last row is an instruction that never happens.
_ARRIVED, _DISPATCHED, _START, _END, _OVERLAPS = range(5)
#: Rows of ``ports``, the read port's clients, and columns: from when on the next burst is
#: presented, its number, the number after its last, when the receiver takes a beat, how long one
#: occupies it, the latest grant, and how many beats have come together with padding.
_FETCH, _LOADS = range(2)
_PRESENT, _BURST, _BEHIND, _READY, _BEAT_CYCLES, _GRANTED, _BESIDE = range(7)
#: Of ``channel``, the read channel: the first cycle in which the next grant is possible, and the
#: same for the next beat; how many bursts it has had.
_FREE, _NEXT_BEAT, _BURSTS = range(3)
#: Columns of ``plans``, of LOADs: cycles of padding after the last burst, cycles of a beat.
_PLAN_PADDING, _PLAN_BEAT_CYCLES = range(2)
#: Columns of ``patterns``: as the attributes of ``Pattern``, with where the entries of each operand
#: in tmp begin among ``entries``, or -1.
_PASSES, _ITERATIONS, _GROUP, _LEFT, _RIGHT, _RESULT = range(6)
_NEVER = NEVER


def run_loop(shared: Shared) -> Moments:
    """When everything happens in a program. The memory's bus must have the configuration's
    width."""
    params, memory, own = shared.params, shared.memory, shared.indices
    count = len(shared.unit_of)
    loads, vectors, stores = plans(shared), patterns(shared), beats_of_bursts(shared)
    kinds = {
        Unit.LOAD: loads.of, Unit.GEMM: iterations(shared), Unit.VECTOR: vectors.of,
        Unit.STORE: stores.of,
    }  # fmt: skip
    insns = np.full((count, 2), -1, np.int64)
    for unit in Unit:
        insns[own[unit], _KIND] = kinds[unit]
        insns[own[unit][params.queue_depth :], _FREED_BY] = own[unit][: -params.queue_depth]
    chunk = params.fetch_chunk
    insn_cycles = params.insn_bytes // params.bus_bytes * memory.cycles_per_beat
    # The bursts of each plan, then that of a chunk of 1, 2, ... instructions.
    bursts = [plan.pieces for plan in loads.made]
    bursts += [((0, 0, n * insn_cycles - memory.cycles_per_beat),) for n in range(1, chunk + 1)]
    known = np.full((count + 1, 5), -1, np.int64)
    known[:, _OVERLAPS] = 0
    ports = np.full((2, 7), -1, np.int64)
    ports[:, _PRESENT] = _NEVER
    _settle(
        insns, shared.givers, np.concatenate([own[unit] for unit in Unit]),
        _bounds([own[unit] for unit in Unit]), known,
        _bounds(bursts), _table([burst for each in bursts for burst in each], 3),
        _table([(plan.behind, plan.beat_cycles) for plan in loads.made], 2),
        *_flat(vectors.made),
        _bounds(stores.made), np.array([n for each in stores.made for n in each], np.int64),
        np.zeros(_UNITS, np.int64), np.zeros(_UNITS, np.int64), ports, np.zeros(3, np.int64),
        np.full(memory.outstanding, -1, np.int64),
        np.full(min(memory.outstanding, STORE_BURSTS), -1, np.int64),
        np.full(params.loads_in_flight, -1, np.int64),
        np.full(params.stores_in_flight, -1, np.int64),
        np.full(params.tmp_depth, -VECTOR_DEPTH - 1, np.int64),
        chunk, params.fetch_depth, insn_cycles, beat_cycles(params),
        memory.read_latency_cycles, memory.write_latency_cycles, memory.cycles_per_beat,
    )  # fmt: skip
    costs = {
        Unit.LOAD: [plan.busy for plan in loads.made],
        Unit.VECTOR: [pattern.passes * pattern.iterations for pattern in vectors.made],
        Unit.STORE: [sum(each) for each in stores.made],
    }
    busy = insns[:, _KIND].copy()  # right for GEMM
    for unit, cycles in costs.items():
        busy[own[unit]] = np.array(cycles, np.int64)[busy[own[unit]]]
    known = known[:-1]
    return Moments(
        known[:, _DISPATCHED], known[:, _START], known[:, _END], busy - known[:, _OVERLAPS]
    )


def _bounds(lists: Sequence[Sequence[object]] | Sequence[np.ndarray]) -> np.ndarray:
    """Where each of several lists begins in all of them together, and where the last ends."""
    return np.cumsum([0, *(len(each) for each in lists)], dtype=np.int64)


def _table(rows: Sequence[tuple[int, ...]], columns: int) -> np.ndarray:
    return np.array(rows, np.int64).reshape(-1, columns)


def _flat(made: Sequence[Pattern]) -> tuple[np.ndarray, np.ndarray]:
    """Patterns as rows of numbers, and the entries of tmp that they read and write."""
    rows, parts, at = [], [np.zeros(0, np.int64)], 0
    for pattern in made:
        left, right = (*pattern.reads, None, None)[:2]
        begins = []
        for entries in (left, right, pattern.written):
            begins.append(-1 if entries is None else at)
            if entries is not None:
                parts.append(entries)
                at += entries.size
        rows.append((pattern.passes, pattern.iterations, pattern.group, *begins))
    return _table(rows, 6), np.concatenate(parts)


@native
def _settle(
    insns: Table, givers: Table, of_unit: Ints, first_of: Ints, known: Table,
    burst_bounds: Ints, bursts: Table, plans: Table, patterns: Table, entries: Ints,
    store_bounds: Ints, beats: Ints,
    taken: Ints, ready: Ints, ports: Table, channel: Ints, last_beats: Ints, answers: Ints,
    descriptors: Ints, responses: Ints, written: Ints,
    chunk: int, fetch_depth: int, insn_cycles: int, store_beat_cycles: int,
    read_latency: int, write_latency: int, spacing: int,
):  # fmt: skip
    """Fill ``known``.

    Of each unit, ``of_unit`` has the instructions, ``taken`` how many it has taken, ``ready`` from
    when on it can take the next. ``written`` has the cycle of the last pass that wrote each entry
    of tmp. The others hold the latest cycles of a kind, as rings: last beats of reads, answers of
    writes, when the placing half took descriptors, and ends of stores.
    """
    count = len(insns)
    presented = 0  # instructions of the chunks that fetch has presented
    dispatched, dispatch_cycle = 0, -1
    placed = 0  # loads that have ended
    idle = 0  # the placing half of the load unit is idle from this cycle on
    next_beat, writes = 0, 0  # of the write channel: when a beat is possible; bursts so far
    moved = 1
    while moved:
        moved = 0
        # Fetch presents a chunk when the last one is granted and the buffer has room for it.
        if presented < count and ports[_FETCH, _PRESENT] == _NEVER:
            size = min(chunk, count - presented)
            frees = presented + size - 1 - fetch_depth
            if frees < 0 or known[frees, _DISPATCHED] >= 0:
                cycle = ports[_FETCH, _GRANTED] + 1
                if frees >= 0:
                    cycle = max(cycle, known[frees, _DISPATCHED] + 1)
                _request(ports, burst_bounds, _FETCH, cycle, len(plans) + size - 1, 0, 1)
                presented += size
                moved = 1
        # Dispatch: in order, at most one a cycle, when the unit's queue has room.
        while dispatched < count and known[dispatched, _ARRIVED] >= 0:
            cycle = max(dispatch_cycle, known[dispatched, _ARRIVED]) + 1
            frees = insns[dispatched, _FREED_BY]
            if frees >= 0:
                if known[frees, _START] < 0:
                    break
                cycle = max(cycle, known[frees, _START] + 1)
            dispatch_cycle = cycle
            known[dispatched, _DISPATCHED] = cycle
            dispatched += 1
            moved = 1
        for unit in range(_UNITS):
            while first_of[unit] + taken[unit] < first_of[unit + 1]:
                if unit == _LOAD and placed < taken[_LOAD]:
                    break  # bursts of the one before are not granted yet
                index = of_unit[first_of[unit] + taken[unit]]
                start = _startable(givers, known, index)
                if start < 0:
                    break
                start = max(start, ready[unit])
                kind = insns[index, _KIND]
                if unit == _LOAD:
                    slot = taken[_LOAD] % len(descriptors)
                    start = max(start, descriptors[slot] + 1)
                    descriptors[slot] = max(idle, start + 1)
                    _request(
                        ports, burst_bounds, _LOADS, start + 1, kind, descriptors[slot] + 1,
                        plans[kind, _PLAN_BEAT_CYCLES],
                    )  # fmt: skip
                elif unit == _GEMM:
                    ready[_GEMM] = start + kind
                    known[index, _END] = ready[_GEMM] + GEMM_DEPTH
                elif unit == _VECTOR:
                    ready[_VECTOR] = _last_pass(patterns, entries, kind, start, written)
                    known[index, _END] = ready[_VECTOR] + VECTOR_DEPTH
                else:
                    slot = taken[_STORE] % len(responses)
                    start = max(start, responses[slot] + 1)
                    present = start + 1
                    for burst in range(store_bounds[kind], store_bounds[kind + 1]):
                        accepted = max(present, answers[writes % len(answers)] + 1)
                        first = max(next_beat, accepted + STORE_DATA + store_beat_cycles - 1)
                        last = first + (beats[burst] - 1) * max(spacing, store_beat_cycles)
                        answer = answers[(writes - 1) % len(answers)] + 1
                        answers[writes % len(answers)] = max(last + write_latency, answer)
                        writes += 1
                        next_beat, present = last + spacing, last + 1
                    ready[_STORE] = present
                    responses[slot] = answers[(writes - 1) % len(answers)] + STORE_END
                    known[index, _END] = responses[slot]
                known[index, _START] = start
                taken[unit] += 1
                moved = 1
        if moved:
            continue
        # Every process waits: the arbiter grants bursts of load, as far as they come before that
        # of fetch, and then that one.
        before = ports[_FETCH, _PRESENT]
        if ports[_LOADS, _PRESENT] < _NEVER and _grant(
            ports, bursts, channel, last_beats, _LOADS, before, read_latency, spacing
        ):
            index = of_unit[first_of[_LOAD] + placed]
            ready[_LOAD] = ports[_LOADS, _GRANTED] + 1
            idle = ports[_LOADS, _READY] + plans[insns[index, _KIND], _PLAN_PADDING]
            known[index, _END] = idle - 1 + LOAD_END
            known[index, _OVERLAPS] = ports[_LOADS, _BESIDE]
            placed += 1
            moved = 1
        elif before < _NEVER:
            _grant(ports, bursts, channel, last_beats, _FETCH, _NEVER, read_latency, spacing)
            cycle = ports[_FETCH, _READY] - 1
            for index in range(presented - 1, (presented - 1) // chunk * chunk - 1, -1):
                known[index, _ARRIVED] = cycle
                cycle -= insn_cycles
            moved = 1


@native
def _startable(givers: Table, known: Table, index: int) -> int:
    """From which cycle on an instruction is at the head of its queue and its tokens are there, if
    those before it have left; -1 if that is not known yet."""
    cycle = known[index, _DISPATCHED]
    for unit in range(_UNITS):
        if givers[index, unit] >= 0:
            given = known[givers[index, unit], _END]
            if given < 0:
                return -1
            cycle = max(cycle, given)
    return cycle + 1 if known[index, _DISPATCHED] >= 0 else -1


@native
def _request(
    ports: Table, bounds: Ints, port: int, present: int, kind: int, ready: int, beat_cycles: int
):
    """Present the bursts of a kind from a cycle on."""
    ports[port, _PRESENT] = present
    ports[port, _BURST] = bounds[kind]
    ports[port, _BEHIND] = bounds[kind + 1]
    ports[port, _READY] = ready
    ports[port, _BEAT_CYCLES] = beat_cycles
    ports[port, _GRANTED] = present - 1
    ports[port, _BESIDE] = 0


@native
def _grant(
    ports: Table, bursts: Table, channel: Ints, last_beats: Ints, port: int, before: int,
    latency: int, spacing: int,
) -> int:  # fmt: skip
    """Grant the bursts of a port whose turn comes before a cycle; return whether these were all."""
    ready, beat_cycles = ports[port, _READY], ports[port, _BEAT_CYCLES]
    grant = max(ports[port, _PRESENT], channel[_FREE])
    while ports[port, _BURST] < ports[port, _BEHIND] and grant < before:
        burst = ports[port, _BURST]
        padding, beside, span = bursts[burst, 0], bursts[burst, 1], bursts[burst, 2]
        ports[port, _GRANTED] = grant
        oldest = channel[_BURSTS] % len(last_beats)
        grant = 1 + max(grant, last_beats[oldest])
        first = max(max(grant + latency, ready + padding), channel[_NEXT_BEAT])
        padded = ready + padding + beside
        last = first + span
        if first < padded:
            ports[port, _BESIDE] += 1
            if span > 0:
                last = max(last, padded + span - max(beat_cycles, spacing))
        last_beats[oldest] = last
        ready = max(last + beat_cycles, padded)
        channel[_FREE] = grant
        channel[_NEXT_BEAT] = last + spacing
        channel[_BURSTS] += 1
        ports[port, _BURST] += 1
    ports[port, _READY] = ready
    if ports[port, _BURST] < ports[port, _BEHIND]:
        ports[port, _PRESENT] = ports[port, _GRANTED] + 1
        return 0
    ports[port, _PRESENT] = _NEVER
    return 1


@native
def _last_pass(patterns: Table, entries: Ints, kind: int, start: int, written: Ints) -> int:
    """The last pass of an instruction of the vector unit: reads of tmp wait for writes."""
    passes = patterns[kind, _PASSES]
    left, right = patterns[kind, _LEFT], patterns[kind, _RIGHT]
    result = patterns[kind, _RESULT]
    if left < 0 and right < 0 and result < 0:
        return start + passes * patterns[kind, _ITERATIONS]
    cycle = start
    for i in range(patterns[kind, _ITERATIONS]):
        if left >= 0:
            cycle = max(cycle, written[entries[left + i]] + VECTOR_DEPTH)
        if right >= 0:
            cycle = max(cycle, written[entries[right + i]] + VECTOR_DEPTH)
        cycle += passes
        ends = i % patterns[kind, _GROUP] == patterns[kind, _GROUP] - 1
        if result >= 0 and ends and entries[result + i] >= 0:
            written[entries[result + i]] = cycle
    return cycle
