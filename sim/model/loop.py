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
from ...isa.opcodes import Opcode, Unit
from ...isa.timing import GEMM_DEPTH, LOAD_END, STORE_BURSTS, STORE_DATA, STORE_END, VECTOR_DEPTH
from .dma import NEVER, page_words
from .gemm import iterations
from .load import plans
from .regs import Moments
from .sdram import (
    BEAT,
    BESIDE,
    FIRST_BEAT,
    LAST_BEAT,
    READY,
    VALID,
    answer_cycle,
    controller,
    receive,
    schedule,
)
from .shared import Shared
from .store import beat_cycles, bursts_of_stores
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
#: presented, its number, the number after its last, the word from which they count, when the
#: receiver takes a beat, how long one occupies it, the latest grant, how many beats have come
#: together with padding, and when the first beat of the latest burst was valid and transferred.
_FETCH, _LOADS = range(2)
(_PRESENT, _BURST, _BEHIND, _PAGE, _READY, _BEAT_CYCLES, _GRANTED, _BESIDE, _VALID,
 _FIRST) = range(10)  # fmt: skip
#: Columns of ``bursts``, of reads and of writes.
_PADDING, _MEANWHILE, _BEATS, _WORD = range(4)
#: Of ``channel``, the memory: the first cycle in which the next grant is possible, and the same
#: for the next beat; how many reads it has had, the latest arrival, how many writes have arrived.
_FREE, _NEXT_BEAT, _BURSTS, _LATEST, _WRITTEN = range(5)
#: Of ``held``, the latest read that was granted: its port; when it arrives, -1 if it has; its burst
#: and the word from which that counts; whether it is the last.
_HELD_PORT, _HELD_UNTIL, _HELD_BURST, _HELD_PAGE, _HELD_ENDS = range(5)
#: Columns of ``complete``, writes that have not arrived: the cycle of the last beat, first word,
#: beats, whether it is its STORE's last.
_LAST_BEAT, _FIRST_WORD, _WRITE_BEATS, _ENDS = range(4)
#: What an SDRAM says of what has happened: that nothing can any more; a port's last burst was
#: granted, or its data have come; a STORE was answered; or something else.
_NOTHING, _ELSE, _ALL_GRANTED, _ALL_RECEIVED, _ANSWERED = range(5)
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
    loads, vectors, stores = plans(shared), patterns(shared), bursts_of_stores(shared)
    kinds = {
        Unit.LOAD: loads.of, Unit.GEMM: iterations(shared), Unit.VECTOR: vectors.of,
        Unit.STORE: stores.of,
    }  # fmt: skip
    insns = np.full((count, 2), -1, np.int64)
    for unit in Unit:
        insns[own[unit], _KIND] = kinds[unit]
        insns[own[unit][params.queue_depth :], _FREED_BY] = own[unit][: -params.queue_depth]
    chunk, beats = params.fetch_chunk, params.insn_bytes // params.bus_bytes
    # The bursts of each plan, then that of a chunk of 1, 2, ... instructions.
    bursts = [plan.pieces for plan in loads.made]
    bursts += [((0, 0, n * beats, 0),) for n in range(1, chunk + 1)]
    writes = [[(0, 0, *burst) for burst in each] for each in stores.made]
    known = np.full((count + 1, 5), -1, np.int64)
    known[:, _OVERLAPS] = 0
    ports = np.full((2, 10), -1, np.int64)
    ports[:, _PRESENT], ports[:, _BEAT_CYCLES], ports[:, _BESIDE] = _NEVER, 1, 0
    pages = np.zeros(count, np.int64)
    for opcode in (Opcode.LOAD, Opcode.STORE):
        pages[own[opcode.unit]] = page_words(shared.table.columns(opcode), params)
    unanswered = min(memory.outstanding, STORE_BURSTS)
    _settle(
        insns, shared.givers, np.concatenate([own[unit] for unit in Unit]),
        _bounds([own[unit] for unit in Unit]), known, pages,
        _bounds(bursts), _table([burst for each in bursts for burst in each], 4),
        _table([(plan.behind, plan.beat_cycles) for plan in loads.made], 2),
        *_flat(vectors.made),
        _bounds(writes), _table([burst for each in writes for burst in each], 4),
        np.zeros(_UNITS, np.int64), np.zeros(_UNITS, np.int64), ports,
        np.array([0, 0, 0, -1, 0], np.int64),
        np.full(memory.outstanding, -1, np.int64), np.full(unanswered, -1, np.int64),
        np.full(params.loads_in_flight, -1, np.int64),
        np.full(params.stores_in_flight, -1, np.int64),
        np.full(params.tmp_depth, -VECTOR_DEPTH - 1, np.int64),
        *controller(memory), np.zeros(5, np.int64), np.full(5, -1, np.int64),
        np.zeros((unanswered, 4), np.int64),
        chunk, params.fetch_depth, beats, shared.program_addr // params.bus_bytes,
        beat_cycles(params), memory.read_latency_cycles, memory.write_latency_cycles,
        memory.cycles_per_beat, int(bool(memory.part)),
    )  # fmt: skip
    costs = {
        Unit.LOAD: [plan.busy for plan in loads.made],
        Unit.VECTOR: [pattern.passes * pattern.iterations for pattern in vectors.made],
        Unit.STORE: [sum(beats for beats, _ in each) for each in stores.made],
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
    insns: Table, givers: Table, of_unit: Ints, first_of: Ints, known: Table, pages: Ints,
    burst_bounds: Ints, bursts: Table, plans: Table, patterns: Table, entries: Ints,
    store_bounds: Ints, stores: Table,
    taken: Ints, ready: Ints, ports: Table, channel: Ints, last_beats: Ints, answers: Ints,
    descriptors: Ints, responses: Ints, written: Ints,
    state: Ints, rows: Ints, closable: Ints, rules: Ints, segments: Table, received: Ints,
    held: Ints, complete: Table,
    chunk: int, fetch_depth: int, insn_beats: int, program: int, store_beat_cycles: int,
    read_latency: int, write_latency: int, spacing: int, sdram: int,
):  # fmt: skip
    """Fill ``known``.

    Of each unit, ``of_unit`` has the instructions, ``taken`` how many it has taken, ``ready`` from
    when on it can take the next. ``written`` has the cycle of the last pass that wrote each entry
    of tmp. The others hold the latest cycles of a kind, as rings: last beats of reads, answers of
    writes, when the placing half took descriptors, and ends of stores. ``state`` and what follows
    it are of ``sdram.py``.
    """
    count = len(insns)
    presented, fetched = 0, 0  # instructions of the chunks that fetch has presented, and has
    dispatched, dispatch_cycle = 0, -1
    # LOADs whose bursts are all granted, whose descriptor the placing half has taken, that ended.
    granted, described, placed = 0, 0, 0
    idle = 0  # the placing half of the load unit is idle from this cycle on
    # Of the write channel: when a beat is possible; bursts sent, and answered; STOREs that ended;
    # bursts of the STORE that is under way, and when its next one is presented.
    next_beat, writes, answered, stored = 0, 0, 0, 0
    burst, behind, present, page = 0, 0, 0, 0
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
                word = program + presented * insn_beats
                _request(ports, burst_bounds, _FETCH, cycle, len(plans) + size - 1, word)
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
                # Of the one before, all bursts must be granted, or sent, and a slot must be free.
                if unit == _LOAD and (
                    granted < taken[_LOAD] or described <= taken[_LOAD] - len(descriptors)
                ):
                    break
                if unit == _STORE and (burst < behind or stored <= taken[_STORE] - len(responses)):
                    break
                index = of_unit[first_of[unit] + taken[unit]]
                start = _startable(givers, known, index)
                if start < 0:
                    break
                start = max(start, ready[unit])
                kind = insns[index, _KIND]
                if unit == _LOAD:
                    start = max(start, descriptors[taken[_LOAD] % len(descriptors)] + 1)
                    ready[_LOAD] = start + 1
                    if burst_bounds[kind] < burst_bounds[kind + 1]:
                        _request(ports, burst_bounds, _LOADS, start + 1, kind, pages[index])
                    else:
                        granted += 1
                elif unit == _GEMM:
                    ready[_GEMM] = start + kind
                    known[index, _END] = ready[_GEMM] + GEMM_DEPTH
                elif unit == _VECTOR:
                    ready[_VECTOR] = _last_pass(patterns, entries, kind, start, written)
                    known[index, _END] = ready[_VECTOR] + VECTOR_DEPTH
                else:
                    start = max(start, responses[taken[_STORE] % len(responses)] + 1)
                    burst, behind = store_bounds[kind], store_bounds[kind + 1]
                    present, page = start + 1, pages[index]
                known[index, _START] = start
                taken[unit] += 1
                moved = 1
                if unit == _LOAD and described == placed:
                    break  # its descriptor is taken first
                if unit == _STORE:
                    break  # its data are sent first
        # The placing half takes a descriptor when it is known when it was done with the one before.
        if described == placed and placed < taken[_LOAD]:
            index = of_unit[first_of[_LOAD] + described]
            kind = insns[index, _KIND]
            cycle = max(idle, known[index, _START] + 1)
            descriptors[described % len(descriptors)] = cycle
            ports[_LOADS, _READY] = cycle + 1
            ports[_LOADS, _BEAT_CYCLES] = plans[kind, _PLAN_BEAT_CYCLES]
            described += 1
            if burst_bounds[kind] == burst_bounds[kind + 1]:
                idle = cycle + 1 + plans[kind, _PLAN_PADDING]
                known[index, _END] = idle - 1 + LOAD_END
                placed += 1
            moved = 1
        # The store unit sends data, as far as it is known when addresses are accepted.
        while burst < behind and writes - answered < len(answers):
            slot = writes % len(answers)
            accepted = max(present, answers[slot] + 1)
            first = max(next_beat, accepted + STORE_DATA + store_beat_cycles - 1)
            beats = stores[burst, _BEATS]
            burst += 1
            writes += 1
            if sdram:
                last = first + (beats - 1) * store_beat_cycles
                next_beat = last + 1
                complete[slot, _LAST_BEAT] = last
                complete[slot, _FIRST_WORD] = page + stores[burst - 1, _WORD]
                complete[slot, _WRITE_BEATS] = beats
                complete[slot, _ENDS] = 0
                if burst == behind:
                    complete[slot, _ENDS] = 1
            else:
                last = first + (beats - 1) * max(spacing, store_beat_cycles)
                next_beat = last + spacing
                answer = answers[(writes - 2) % len(answers)] + 1
                answers[slot] = max(last + write_latency, answer)
                answered += 1
                if burst == behind:
                    cycle = answers[slot] + STORE_END
                    responses[stored % len(responses)] = cycle
                    known[of_unit[first_of[_STORE] + stored], _END] = cycle
                    stored += 1
            present = last + 1
            ready[_STORE] = present
            moved = 1
        if moved:
            continue
        # Every process waits: something happens at the memory.
        port = _LOADS
        if sdram:
            what = _happen(
                ports, bursts, channel, last_beats, answers, state, rows, closable, rules,
                segments, received, held, complete, writes,
            )  # fmt: skip
            if what == _NOTHING:
                break
            moved = 1
            port = held[_HELD_PORT]
            if channel[_WRITTEN] > answered:
                answered += 1
            if what == _ANSWERED:
                cycle = answers[(answered - 1) % len(answers)] + STORE_END
                responses[stored % len(responses)] = cycle
                known[of_unit[first_of[_STORE] + stored], _END] = cycle
                stored += 1
            if what == _ALL_GRANTED and port == _LOADS:
                granted += 1
                ready[_LOAD] = ports[_LOADS, _GRANTED] + 1
            if what != _ALL_RECEIVED:
                continue
        else:
            # The arbiter grants bursts of load, as far as they come before that of fetch, and then
            # that one.
            before = ports[_FETCH, _PRESENT]
            if ports[_LOADS, _PRESENT] == _NEVER or not _grant(
                ports, bursts, channel, last_beats, _LOADS, before, read_latency, spacing
            ):
                if before == _NEVER:
                    break
                port = _FETCH
                _grant(ports, bursts, channel, last_beats, _FETCH, _NEVER, read_latency, spacing)
            else:
                granted += 1
                ready[_LOAD] = ports[_LOADS, _GRANTED] + 1
        moved = 1
        if port == _LOADS:
            index = of_unit[first_of[_LOAD] + placed]
            idle = ports[_LOADS, _READY] + plans[insns[index, _KIND], _PLAN_PADDING]
            known[index, _END] = idle - 1 + LOAD_END
            known[index, _OVERLAPS] = ports[_LOADS, _BESIDE]
            ports[_LOADS, _BESIDE] = 0
            placed += 1
        else:
            for number in range(min(chunk, count - fetched)):
                beat = (number + 1) * insn_beats - 1
                known[fetched + number, _ARRIVED] = max(
                    ports[_FETCH, _FIRST] + beat, ports[_FETCH, _VALID] + beat * spacing
                )
            fetched += min(chunk, count - fetched)


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
def _request(ports: Table, bounds: Ints, port: int, present: int, kind: int, page: int):
    """Present the bursts of a kind from a cycle on."""
    ports[port, _PRESENT] = present
    ports[port, _BURST] = bounds[kind]
    ports[port, _BEHIND] = bounds[kind + 1]
    ports[port, _PAGE] = page
    ports[port, _GRANTED] = present - 1


@native
def _grant(
    ports: Table, bursts: Table, channel: Ints, last_beats: Ints, port: int, before: int,
    latency: int, spacing: int,
) -> int:  # fmt: skip
    """Grant the bursts of a port whose turn comes before a cycle; return whether these were all."""
    ready, beat_cycles = ports[port, _READY], ports[port, _BEAT_CYCLES]
    step = max(beat_cycles, spacing)
    grant = max(ports[port, _PRESENT], channel[_FREE])
    while ports[port, _BURST] < ports[port, _BEHIND] and grant < before:
        burst = ports[port, _BURST]
        ready += bursts[burst, _PADDING]
        span = (bursts[burst, _BEATS] - 1) * step
        ports[port, _GRANTED] = grant
        oldest = channel[_BURSTS] % len(last_beats)
        grant = 1 + max(grant, last_beats[oldest])
        first = max(max(grant + latency, ready), channel[_NEXT_BEAT])
        padded = ready + bursts[burst, _MEANWHILE]
        last = first + span
        if first < padded:
            ports[port, _BESIDE] += 1
            if span > 0:
                last = max(last, padded + span - step)
        last_beats[oldest] = last
        ready = max(last + beat_cycles, padded)
        ports[port, _VALID] = first
        ports[port, _FIRST] = first
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
def _happen(
    ports: Table, bursts: Table, channel: Ints, last_beats: Ints, answers: Ints,
    state: Ints, rows: Ints, closable: Ints, rules: Ints, segments: Table, received: Ints,
    held: Ints, complete: Table, writes: int,
) -> int:  # fmt: skip
    """Let the next thing happen at an SDRAM, of a grant, a read that arrives, and a write that
    does."""
    port, reads = _LOADS, _NEVER
    arrives = held[_HELD_UNTIL] >= 0
    if arrives:
        reads = held[_HELD_UNTIL]
    else:
        if ports[_FETCH, _PRESENT] <= max(ports[_LOADS, _PRESENT], channel[_FREE]):
            port = _FETCH
        if ports[port, _PRESENT] < _NEVER:
            reads = max(ports[port, _PRESENT], channel[_FREE])
    if channel[_WRITTEN] < writes:
        slot = channel[_WRITTEN] % len(answers)
        cycle = max(complete[slot, _LAST_BEAT], channel[_LATEST]) + 1
        if cycle < reads:
            channel[_LATEST] = cycle
            channel[_WRITTEN] += 1
            count = schedule(
                state, rows, closable, rules, segments, cycle, complete[slot, _FIRST_WORD],
                complete[slot, _WRITE_BEATS], 1,
            )  # fmt: skip
            answers[slot] = answer_cycle(segments, count, rules)
            if complete[slot, _ENDS]:
                return _ANSWERED
            return _ELSE
    if reads == _NEVER:
        return _NOTHING
    oldest = channel[_BURSTS] % len(last_beats)
    if not arrives:
        burst = ports[port, _BURST]
        held[_HELD_PORT] = port
        held[_HELD_BURST] = burst
        held[_HELD_PAGE] = ports[port, _PAGE]
        held[_HELD_UNTIL] = 1 + max(reads, last_beats[oldest])
        channel[_FREE] = held[_HELD_UNTIL]
        ports[port, _GRANTED] = reads
        ports[port, _PRESENT] = reads + 1
        ports[port, _BURST] = burst + 1
        if burst + 1 < ports[port, _BEHIND]:
            held[_HELD_ENDS] = 0
            return _ELSE
        held[_HELD_ENDS] = 1
        ports[port, _PRESENT] = _NEVER
        return _ALL_GRANTED
    port, burst = held[_HELD_PORT], held[_HELD_BURST]
    held[_HELD_UNTIL] = -1
    channel[_LATEST] = reads
    count = schedule(
        state, rows, closable, rules, segments, reads, held[_HELD_PAGE] + bursts[burst, _WORD],
        bursts[burst, _BEATS], 0,
    )  # fmt: skip
    receive(
        segments, count, rules[BEAT], ports[port, _READY] + bursts[burst, _PADDING],
        bursts[burst, _MEANWHILE], ports[port, _BEAT_CYCLES], channel[_NEXT_BEAT], received,
    )  # fmt: skip
    ports[port, _VALID] = received[VALID]
    ports[port, _FIRST] = received[FIRST_BEAT]
    ports[port, _READY] = received[READY]
    ports[port, _BESIDE] += received[BESIDE]
    last_beats[oldest] = received[LAST_BEAT]
    channel[_NEXT_BEAT] = received[LAST_BEAT] + 1
    channel[_BURSTS] += 1
    if held[_HELD_ENDS]:
        return _ALL_RECEIVED
    return _ELSE


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
