"""Dependency tokens: enough, and not one too many.

What instructions touch is recorded while the oracle executes them; which instruction has certainly
ended before another starts is worked out from the tokens alone.
"""

from __future__ import annotations

from collections import defaultdict, deque
from dataclasses import replace
from typing import Any

import numpy as np
import pytest
from vdla.isa.depend import insert_tokens
from vdla.isa.errors import VdlaError
from vdla.isa.footprint import GRANULE_BYTES, MicroOps, accesses
from vdla.isa.insn import Gemm, Insn, Load, Param, Store, Vector
from vdla.isa.opcodes import Unit, Units
from vdla.isa.params import HwParams
from vdla.isa.program import Program
from vdla.sim.verify.random_programs import random_program

from .oracle import Oracle

SMALL = HwParams(
    block_in=4, block_out=4, inp_depth=16, wgt_depth=8, acc_depth=8, uop_depth=8, par_depth=4,
    tmp_depth=8, out_depth=8, max_burst_beats=8, queue_depth=2, fetch_depth=2,
)  # fmt: skip
ROOMY = HwParams(batch=2, block_in=8, block_out=8, inp_depth=64, wgt_depth=32)

PACKED = replace(ROOMY, batch=1, packed_weights=1)

#: Reads and writes of one instruction: (memory, entry or granule).
Touched = tuple[set[tuple[str, int]], set[tuple[str, int]]]


class _Recorder(list):
    """A memory of the oracle that notes who reads and writes."""

    def __init__(self, name: str, entries: list, reads: set, writes: set):
        super().__init__(entries)
        self.name, self.reads, self.writes = name, reads, writes

    def __getitem__(self, index: Any) -> Any:
        self.reads.add((self.name, index))
        return super().__getitem__(index)

    def __setitem__(self, index: Any, value: Any) -> None:
        self.writes.add((self.name, index))
        super().__setitem__(index, value)


class _Dram(bytearray):
    """Likewise for DRAM, which the oracle takes slices of."""

    reads: set
    writes: set

    def __getitem__(self, index: Any) -> Any:
        self.reads.update(("dram", at // GRANULE_BYTES) for at in range(index.start, index.stop))
        return super().__getitem__(index)

    def __setitem__(self, index: Any, value: Any) -> None:
        self.writes.update(("dram", at // GRANULE_BYTES) for at in range(index.start, index.stop))
        super().__setitem__(index, value)


def _touched(program: Program) -> list[Touched]:
    """What every instruction reads and writes when it is executed."""
    reads: set[tuple[str, int]] = set()
    writes: set[tuple[str, int]] = set()
    dram = _Dram(program.dram_image().tobytes())
    dram.reads, dram.writes = reads, writes
    machine = Oracle(program.params, dram)
    for name in ("acc", "tmp", "out"):
        setattr(machine, name, _Recorder(name, getattr(machine, name), reads, writes))
    machine.raw = {n: _Recorder(n, e, reads, writes) for n, e in machine.raw.items()}
    found = []
    for insn in program.insns:
        machine.execute(insn)
        found.append((set(reads), set(writes)))
        reads.clear()
        writes.clear()
    return found


def _ended_before(insns: list[Insn]) -> list[int]:
    """Per instruction the set (as bits) of those that have ended when it starts, whatever the
    timing: a token tells that its giver has ended, and all before it in the giver's unit.
    """
    tokens: dict[tuple[Unit, Unit], deque[int]] = defaultdict(deque)
    for index, insn in enumerate(insns):
        for taker in Unit:
            if insn.push >> taker & 1:
                tokens[insn.unit, taker].append(index)
    ended: list[int] = []
    latest = dict.fromkeys(Unit, 0)
    before = dict.fromkeys(Unit, 0)
    prefix: list[int] = []
    for index, insn in enumerate(insns):
        known = latest[insn.unit]
        for giver in Unit:
            if insn.pop >> giver & 1:
                source = tokens[giver, insn.unit].popleft()
                assert source < index, "a token that comes from later in the program"
                known |= ended[source] | prefix[source]
        ended.append(known)
        latest[insn.unit] = known
        before[insn.unit] |= 1 << index
        prefix.append(before[insn.unit])
    assert not any(tokens.values()), "tokens that nobody takes"
    return ended


def _races(insns: list[Insn], touched: list[Touched]) -> list[tuple[int, int]]:
    """Pairs of instructions of different units that conflict and may overlap."""
    ended = _ended_before(insns)
    found = []
    for j, (reads_j, writes_j) in enumerate(touched):
        for i in range(j):
            reads_i, writes_i = touched[i]
            conflict = writes_i & (reads_j | writes_j) or reads_i & writes_j
            if insns[i].unit != insns[j].unit and conflict and not ended[j] >> i & 1:
                found.append((i, j))
    return found


def _tokens(insns: list[Insn]) -> list[tuple[int, int]]:
    """(giver, taker) of every token."""
    queues: dict[tuple[Unit, Unit], deque[int]] = defaultdict(deque)
    found = []
    for index, insn in enumerate(insns):
        for giver in Unit:
            if insn.pop >> giver & 1:
                found.append((queues[giver, insn.unit].popleft(), index))
        for taker in Unit:
            if insn.push >> taker & 1:
                queues[insn.unit, taker].append(index)
    return found


def _without(insns: list[Insn], token: tuple[int, int]) -> list[Insn]:
    giver, taker = token
    changed = list(insns)
    push = insns[giver].push & ~Units(1 << insns[taker].unit)
    changed[giver] = replace(insns[giver], push=push)
    pop = insns[taker].pop & ~Units(1 << insns[giver].unit)
    changed[taker] = replace(insns[taker], pop=pop)
    return changed


@pytest.mark.fast(2)
@pytest.mark.parametrize("params", [SMALL, ROOMY], ids=["small", "roomy"])
@pytest.mark.parametrize("seed", range(5))
def test_tokens_order_every_conflict_and_each_is_needed(params: HwParams, seed: int):
    program = random_program(params, 300 + seed, length=60)
    touched = _touched(program)
    insns = insert_tokens(program.insns, params, program.image)
    assert not _races(insns, touched)
    tokens = _tokens(insns)
    assert len(tokens) >= 5
    for token in tokens:
        assert _races(_without(insns, token), touched), f"token {token} orders nothing"


@pytest.mark.parametrize("params", [SMALL, ROOMY, PACKED], ids=["small", "roomy", "packed"])
def test_footprints_are_what_execution_touches(params: HwParams):
    program = random_program(params, 77, length=80)
    uops = MicroOps(params, program.image)
    for index, (insn, (reads, writes)) in enumerate(
        zip(program.insns, _touched(program), strict=True)
    ):
        found: Touched = (set(), set())
        for access in accesses(insn, params, uops):
            found[access.write].update((access.memory, int(e)) for e in access.entries)
        if isinstance(insn, Gemm):
            # Accumulators are read by their only writer, which orders itself.
            reads = {(m, e) for m, e in reads if m != "acc"}
        assert found == (reads, writes), f"instruction {index}: {insn}"


def _store(address: int, **fields: Any) -> Store:
    return Store(base=0, dram_addr=address, x_size=1, **fields)


def _load(address: int, **fields: Any) -> Load:
    return Load(memory="inp", base=0, dram_addr=address, x_size=1, **fields)


def _read_inp() -> Vector:
    return Vector(op="add", src0="inp", src1="imm", dst="tmp")


def test_transitive_order_needs_no_token():
    # load -> vector (reads inp) -> store (reads out): the second load is ordered through vector.
    write_out = Vector(op="add", src0="inp", src1="imm", dst="out")
    insns = insert_tokens([_load(0), write_out, _store(4096), _load(4096)], SMALL)
    assert [(i.pop, i.push) for i in insns] == [
        (Units.NONE, Units.VECTOR),
        (Units.LOAD, Units.STORE),
        (Units.VECTOR, Units.LOAD),
        (Units.STORE, Units.NONE),  # through DRAM; it implies that vector has read inp
    ]


def test_reads_do_not_wait_for_reads_and_disjoint_bytes_are_free():
    insns = insert_tokens([_load(0), _read_inp(), _read_inp(), Param(par_base=0)], SMALL)
    assert [i.pop for i in insns] == [Units.NONE, Units.LOAD, Units.NONE, Units.NONE]
    for address, pop in ((4096, Units.STORE), (4100, Units.NONE)):
        _, load = insert_tokens([_store(4096), _load(address)], SMALL)
        assert load.pop == pop


def test_old_tokens_are_replaced():
    insns = [_load(0, push=Units.STORE | Units.GEMM), _store(64, pop=Units.VECTOR)]
    assert [(i.pop, i.push) for i in insert_tokens(insns, SMALL)] == [(Units.NONE, Units.NONE)] * 2


def test_micro_ops_must_be_constant_data():
    load = Load(memory="uop", base=0, dram_addr=4096, x_size=2)
    with pytest.raises(VdlaError, match="micro-ops at 0x1000: expected constant data"):
        insert_tokens([load], SMALL, {0: bytes(64)})
    insert_tokens([load], SMALL, {4096: np.zeros(64, np.uint8).tobytes()})
