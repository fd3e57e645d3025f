"""The static checker: every kind of finding on a small program, then random programs against a
checker written the slow way (graph closure, one entry at a time).
"""

from __future__ import annotations

import time
from collections import deque
from collections.abc import Iterator
from dataclasses import replace
from itertools import product

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from vdla.isa.check import check
from vdla.isa.depend import insert_tokens
from vdla.isa.findings import KINDS, Finding
from vdla.isa.insn import Gemm, Insn, Load, Param, Store, Table, Uop, Vector, encode_uop
from vdla.isa.opcodes import Unit, Units
from vdla.isa.params import HwParams
from vdla.isa.program import Program

PARAMS = HwParams(
    block_in=4, block_out=4, inp_depth=32, wgt_depth=32, acc_depth=16, uop_depth=16, par_depth=32,
    tmp_depth=16, out_depth=16, max_burst_beats=256,
)  # fmt: skip
UOPS = (Uop(acc=0, inp=0, wgt=0, first=1), Uop(acc=0, inp=1, wgt=1), Uop(acc=1, inp=0, wgt=1))
UOP_ADDR, X_ADDR, W_ADDR, PAR_ADDR, OUT_ADDR, INSN_ADDR = 0, 0x100, 0x200, 0x400, 0x800, 0x1000
L, G, V, S = Units.LOAD, Units.GEMM, Units.VECTOR, Units.STORE

PIPELINE: tuple[Insn, ...] = (
    Load(memory="uop", base=0, dram_addr=UOP_ADDR, x_size=3),
    Load(memory="par", base=0, dram_addr=PAR_ADDR, x_size=3, push=V),
    Load(memory="wgt", base=0, dram_addr=W_ADDR, x_size=2),
    Load(memory="inp", base=0, dram_addr=X_ADDR, x_size=4, push=G),
    Gemm(uop_begin=0, uop_count=2, inner=3, init=1, acc_inner=1, inp_inner=1, pop=L, push=L | V),
    Param(par_base=0, pop=L),
    Vector(op="max", src0="acc", src1="imm", dst="out", post="even", extents=(1, 1, 1, 3),
           src0_strides=(0, 0, 0, 1), dst_strides=(0, 0, 0, 1), pop=G, push=G | S),
    Store(base=0, dram_addr=OUT_ADDR, x_size=3, pop=V, push=L | V),
    Load(memory="inp", base=0, dram_addr=OUT_ADDR, x_size=3, pop=G | S, push=G),
    Gemm(uop_begin=0, uop_count=1, init=1, pop=L | V, push=V),
    Vector(op="max", src0="acc", src1="imm", dst="out", pop=G | S, push=S),
    Store(base=0, dram_addr=OUT_ADDR, x_size=1, pop=V),
)  # fmt: skip


def _program(insns: tuple[Insn, ...], params: HwParams = PARAMS) -> Program:
    image = {
        UOP_ADDR: b"".join(encode_uop(uop, params) for uop in UOPS),
        W_ADDR: bytes(256),
        PAR_ADDR: bytes(256),
    }
    meta = {"dram_bytes": 0x4000, "inputs": [{"name": "x", "address": X_ADDR, "bytes": 64}]}
    return Program(params, insns, image, meta, INSN_ADDR)


def _changed(index: int, **fields: object) -> Program:
    insns = list(PIPELINE)
    insns[index] = replace(insns[index], **fields)
    return _program(tuple(insns))


def _kinds(findings: list[Finding]) -> set[tuple[str, int]]:
    assert all(f.kind in KINDS and f.detail for f in findings)
    return {(f.kind, f.instruction) for f in findings}


def test_a_right_program_has_no_findings() -> None:
    assert check(_program(PIPELINE)) == []
    assert check(_program(())) == []


def _bits(mask: Units) -> list[Units]:
    return [unit for unit in (L, G, V, S) if unit & mask]


TOKENS = [(i, side, bit) for i, insn in enumerate(PIPELINE) for side in ("pop", "push")
          for bit in _bits(getattr(insn, side))]  # fmt: skip


@pytest.mark.parametrize(("index", "side", "bit"), TOKENS)
def test_every_token_that_is_dropped_is_found(index: int, side: str, bit: Units) -> None:
    program = _changed(index, **{side: getattr(PIPELINE[index], side) & ~bit})
    kinds = {f.kind for f in check(program)}
    assert kinds & ({"deadlock"} if side == "push" else {"tokens"})


def test_hazards_name_both_sides() -> None:
    """Whole dependencies (push and pop) taken away."""
    insns = list(PIPELINE)
    insns[3] = replace(insns[3], push=Units.NONE)
    insns[4] = replace(insns[4], pop=Units.NONE, push=V)
    insns[7] = replace(insns[7], push=V)
    insns[8] = replace(insns[8], dram_addr=X_ADDR, pop=Units.NONE, push=Units.NONE)
    insns[9] = replace(insns[9], pop=V)
    found = check(_program(tuple(insns)))
    assert {(k, i) for k, i in _kinds(found) if k != "tokens"} == {
        ("raw", 4),
        ("war", 8),
        ("raw", 9),
    }
    details = [f.detail for f in found]
    for line in (
        "inp[0..3]: load instruction 3 writes it, gemm instruction 4 reads it",
        "inp[0..2]: gemm instruction 4 reads it, load instruction 8 writes it",
        "wgt[0]: load instruction 2 writes it, gemm instruction 9 reads it",
    ):
        assert f"{line}, and no token orders them" in details


def test_findings_name_the_range() -> None:
    """Every other of six entries."""
    load = Load(memory="inp", base=0, dram_addr=X_ADDR, x_size=6)
    pick = Vector(op="max", src0="inp", src1="imm", dst="out", extents=(1, 1, 1, 3), src0_base=1,
                  src0_strides=(0, 0, 0, 2), dst_strides=(0, 0, 0, 1))  # fmt: skip
    (found,) = check(_program((load, pick)))
    assert found.detail.startswith("inp[1..5] (3 of them): load instruction 0 writes it, vector")


def test_tokens_order_through_third_units() -> None:
    """Load waits for the store only, and that store for gemm by way of vector."""
    insns = list(PIPELINE)
    insns[4] = replace(insns[4], push=V)
    insns[8] = replace(insns[8], pop=S)
    assert check(_program(tuple(insns))) == []


def test_dram_hazards() -> None:
    insns = list(PIPELINE)
    insns[7] = replace(insns[7], push=V)
    insns[8] = replace(insns[8], pop=G)
    found = check(_program(tuple(insns)))
    assert _kinds(found) == {("raw", 8)}
    assert found[0].detail.startswith(
        "dram bytes 0x800..0x80b: store instruction 7 writes it, load"
    )
    insns[11] = replace(insns[11], dram_addr=OUT_ADDR + 64)
    insns[8] = replace(insns[8], dram_addr=X_ADDR)
    assert check(_program(tuple(insns))) == []


def test_deadlock_names_who_waits_for_whom() -> None:
    found = check(_changed(3, push=Units.NONE))
    detail = "gemm waits for ever at instruction 4 for a token of load, which itself waits at "
    assert Finding("deadlock", 4, "gemm", detail + "instruction 8") in found
    assert _kinds(found) >= {("deadlock", 4), ("deadlock", 6), ("deadlock", 7), ("deadlock", 8)}
    found = check(_program((Store(base=0, dram_addr=0x800, x_size=1, pop=V),)))
    assert "a token of vector, which has ended all its instructions" in found[0].detail


def test_deadlock_by_a_full_queue() -> None:
    """The token comes from behind more instructions than the queue of load holds."""
    waits = Load(memory="inp", base=0, dram_addr=X_ADDR, x_size=1, pop=S)
    filler = Load(memory="inp", base=1, dram_addr=X_ADDR, x_size=1)
    vector = Vector(op="max", src0="inp", src1="imm", dst="out", src0_base=2)
    store = Store(base=0, dram_addr=OUT_ADDR, x_size=1, push=L)
    first = Load(memory="inp", base=2, dram_addr=X_ADDR, x_size=1, push=V)

    def program(fillers: int) -> Program:
        return _program(
            (first, replace(vector, pop=L, push=S), waits, *[filler] * fillers,
             replace(store, pop=V))
        )  # fmt: skip

    assert check(program(PARAMS.queue_depth - 1)) == []
    found = check(program(PARAMS.queue_depth))
    assert _kinds(found) == {("deadlock", 2), ("deadlock", 2 + PARAMS.queue_depth)}
    assert "whose next instruction is never dispatched" in found[0].detail
    assert "the queue of load stays full" in found[1].detail


def test_overflow_of_a_token_counter() -> None:
    params = replace(PARAMS, token_bits=4, queue_depth=32)
    load = Load(memory="inp", base=0, dram_addr=X_ADDR, x_size=1, push=V)
    vector = Vector(op="max", src0="inp", src1="imm", dst="out", src0_base=9, pop=L)
    first = replace(load, base=9)

    def program(count: int) -> Program:
        return _program((first, *[load] * (count - 1), *[vector] * count), params)

    assert check(program(15)) == []
    assert _kinds(check(program(16))) == {("overflow", 15)}
    assert check(replace(program(16), params=replace(params, token_bits=5))) == []
    lagging = [
        replace(insn, **{name: k})
        for k in range(20)
        for insn, name in ((load, "base"), (vector, "src0_base"))
    ]
    assert _kinds(check(_program(tuple(lagging), params))) == {
        ("overflow", 2 * k) for k in range(15, 20)
    }
    paced = tuple(insn for _ in range(99) for insn in (first, vector))
    short = replace(params, queue_depth=4)
    assert {f.kind for f in check(_program(paced, short))} == {"war"}


@pytest.mark.parametrize(
    ("index", "fields", "expected"),
    [
        (3, {"dram_addr": 0x3FF8}, {("dram", 3)}),
        (3, {"y_size": 2, "y_stride": 0x4000}, {("dram", 3)}),
        (7, {"dram_addr": 0x3FF8}, {("dram", 7), ("uninitialised", 8)}),
        (7, {"dram_addr": INSN_ADDR}, {("program", 7), ("uninitialised", 8)}),
        (3, {"dram_addr": X_ADDR + 56}, {("uninitialised", 3)}),
        (3, {"base": 16}, {("uninitialised", 4)}),
        (4, {"init": 0}, {("uninitialised", 4)}),
        (4, {"uop_begin": 1}, {("uninitialised", 4)}),
        (4, {"uop_begin": 2}, {("uninitialised", 4)}),
        (4, {"uop_count": 3, "inner": 1}, {("uninitialised", 4)}),  # acc[0] begins, acc[1] not
        (4, {"inp_inner": 15}, {("uninitialised", 4)}),
        (4, {"inp_inner": 16}, {("address", 4), ("uninitialised", 6)}),
        (4, {"acc_inner": 8}, {("address", 4), ("uninitialised", 6)}),
        (5, {"par_base": 1}, {("uninitialised", 5)}),
        (6, {"src1": "par", "src1_base": 3}, {("uninitialised", 6)}),
        (7, {"x_size": 4}, {("uninitialised", 7)}),
        (4, {"inner": 0}, {("illegal", 4)}),
        (3, {"base": 29}, {("illegal", 3)}),
        (0, {"dram_addr": OUT_ADDR}, {("uninitialised", 0)}),
    ],
    # Sorted: a set's order differs from process to process.
    ids=lambda value: str(sorted(value) if isinstance(value, set) else value),
)
def test_other_findings(index: int, fields: dict, expected: set[tuple[str, int]]) -> None:
    found = _kinds(check(_changed(index, **fields)))
    assert expected <= found
    assert {kind for kind, _ in found} <= {kind for kind, _ in expected} | {"uninitialised"}


@pytest.mark.parametrize(("value_bytes", "op"), [(1, "table"), (2, "table"), (2, "table_diff")])
def test_looking_up_needs_a_table(value_bytes: int, op: str) -> None:
    params = replace(PARAMS, par_depth=64, vector_table=value_bytes)
    image = {0: bytes(1024)}
    load = Load(memory="par", base=0, dram_addr=0, x_size=params.table_entries, push=Units.VECTOR)
    table = Table(par_base=0, pop=Units.LOAD)
    look_up = Vector(op=op, src0="inp", src1="imm", dst="tmp")
    inputs = Load(memory="inp", base=0, dram_addr=0, x_size=1, push=Units.VECTOR)
    taken = replace(look_up, pop=Units.LOAD)

    def found(*insns: Insn) -> list[tuple[str, int]]:
        return [(f.kind, f.instruction) for f in check(Program(params, insns, image, {}, 4096))]

    assert not found(load, inputs, table, taken)
    assert ("uninitialised", 2) in found(load, inputs, taken, table)
    # It reads all of its entries, in order with what loads them.
    assert found(replace(load, x_size=params.table_entries - 1), inputs, table, taken) == [
        ("uninitialised", 2)
    ]
    assert ("raw", 2) in found(
        replace(load, push=Units.NONE), inputs, replace(table, pop=Units.NONE), taken
    )
    assert found(replace(table, pop=Units.NONE, par_base=64 - params.table_entries + 1)) == [
        ("illegal", 0)
    ]


def test_no_table_where_the_configuration_has_none() -> None:
    for insn in (Table(par_base=0), Vector(op="table", src0="inp", src1="imm", dst="tmp")):
        [finding] = check(_program((insn,)))
        assert finding.kind == "illegal" and "set vector_table = 1" in finding.detail
    difference = Vector(op="table_diff", src0="inp", src1="imm", dst="tmp")
    for table in (0, 1):
        params = replace(PARAMS, par_depth=64, vector_table=table)
        [finding] = check(Program(params, (difference,), {}, {}, 4096))
        assert finding.kind == "illegal" and "set vector_table = 2" in finding.detail


def test_packed_weights_are_as_many_bytes_as_they_are() -> None:
    """Of 8 x 8: 8 bytes of scales and 32 of weights each. They must be there, and nobody may store
    to the last of them at any time; what is behind is nobody's."""
    params = replace(PARAMS, block_in=8, block_out=8, packed_weights=1)
    load = Load(memory="wgt", base=0, dram_addr=0x800, x_size=3, widen=1)
    meta = {"inputs": [{"name": "w", "address": 0x800, "bytes": 3 * 40}]}

    def found(*insns: Insn, meta: dict = meta) -> list[tuple[str, int]]:
        return [(f.kind, f.instruction) for f in check(Program(params, insns, {}, meta, 4096))]

    less = {"inputs": [{"name": "w", "address": 0x800, "bytes": 3 * 40 - 8}]}
    assert found(load) == [] and found(load, meta=less) == [("uninitialised", 0)]
    for place, hazard in ((3 * 40 - 8, True), (3 * 40, False)):
        store = Store(base=0, dram_addr=0x800 + place, x_size=1)
        assert (("war", 1) in found(load, store)) is hazard


WINDOW = Vector(op="window", src0="inp", src1="par", dst="tmp", imm=2, reduce=1,
                extents=(1, 1, 6, 3), src0_strides=(0, 0, 1, 6), src1_strides=(0, 0, 0, 1),
                dst_strides=(0, 0, 1, 0))  # fmt: skip


@pytest.mark.parametrize(("changes", "window", "said"), [
    ({}, 0, "set vector_window = 3"),
    ({"imm": 3}, 3, "0 to 2 and less than the 6"),
    ({"imm": -1}, 3, "0 to 2 and less than the 6"),
    ({"extents": (1, 6, 2, 3)}, 3, "0 to 2 and less than the 2"),
    ({"reduce": 4, "dst_strides": (0,) * 4}, 3, "expected a loop that is not reduced"),
    ({"dst_base": PARAMS.tmp_depth - 3}, 3, f"last tmp entry is {PARAMS.tmp_depth}"),
])  # fmt: skip
def test_windows_that_are_not_legal(changes: dict, window: int, said: str) -> None:
    params = replace(PARAMS, vector_window=window)
    [finding] = check(Program(params, (replace(WINDOW, **changes),), {}, {}, 4096))
    assert finding.kind == "illegal" and said in finding.detail


def test_a_window_writes_its_whole_results() -> None:
    """Four of six, one after the other; what is behind them is not written."""
    params = replace(PARAMS, vector_window=3)
    loads = [
        Load(memory=name, base=0, dram_addr=0, x_size=x_size, push=push)
        for name, x_size, push in (("inp", 18, Units.NONE), ("par", 3, Units.VECTOR))
    ]
    window = replace(WINDOW, pop=L, dst_base=3)

    def found(entry: int) -> list[str]:
        read = Vector(op="add", src0="tmp", src1="imm", dst="out", src0_base=entry)
        program = Program(params, (*loads, window, read), {0: bytes(4096)}, {}, 8192)
        return [f.kind for f in check(program)]

    assert [found(entry) for entry in (2, 7)] == [["uninitialised"]] * 2
    assert [found(entry) for entry in (3, 6)] == [[]] * 2


def test_requantisation_needs_parameters() -> None:
    insns = tuple(replace(i, pop=Units.NONE) if i.pop & L and i.unit == Unit.VECTOR else i
                  for i in PIPELINE)  # fmt: skip
    late = replace(PIPELINE[5], pop=Units.NONE)
    found = check(_program((*insns[:5], insns[6], late, *insns[7:])))
    assert "requantises before any PARAM instruction" in {f.detail for f in found}


def test_micro_ops_from_stored_memory_are_unknown() -> None:
    insns = list(PIPELINE)
    insns[8] = replace(insns[8], memory="uop", x_size=1)
    insns[9] = replace(insns[9])
    assert _kinds(check(_program(tuple(insns)))) == {("unknown", 9)}


def test_micro_ops_come_from_given_memory() -> None:
    """The same program is right with the one and wrong with the other micro-ops in DRAM."""
    program = replace(_program(PIPELINE), image={W_ADDR: bytes(256), PAR_ADDR: bytes(256)})
    program.meta["inputs"].append({"name": "uops", "address": UOP_ADDR, "bytes": 64})
    assert ("uninitialised", 4) in _kinds(check(program))
    assert check(program, dram=_program(PIPELINE).dram_image()) == []


def test_in_place_chains_in_tmp() -> None:
    """tmp[1] += tmp[0] and so on: only the first entry must exist already."""
    seed = Vector(op="add", src0="inp", src1="imm", dst="tmp", pop=L)
    chain = Vector(op="add", src0="tmp", src1="imm", dst="tmp", extents=(1, 1, 1, 5),
                   src0_strides=(0, 0, 0, 1), dst_base=1, dst_strides=(0, 0, 0, 1))  # fmt: skip
    load = Load(memory="inp", base=0, dram_addr=X_ADDR, x_size=1, push=V)
    assert check(_program((load, seed, chain))) == []
    assert _kinds(check(_program((load, replace(chain, pop=L))))) == {("uninitialised", 1)}
    late = replace(chain, src0_base=2, dst_base=0)
    assert _kinds(check(_program((load, seed, late)))) == {("uninitialised", 2)}


def test_a_reduction_writes_at_its_end() -> None:
    """It folds tmp[0] and tmp[1] into tmp[1], which does not exist when it is read."""
    seed = Vector(op="add", src0="inp", src1="imm", dst="tmp", pop=L)
    fold = Vector(op="add", src0="tmp", src1="imm", dst="tmp", extents=(1, 1, 1, 2), reduce=1,
                  src0_strides=(0, 0, 0, 1), dst_base=1)  # fmt: skip
    load = Load(memory="inp", base=0, dram_addr=X_ADDR, x_size=1, push=V)
    assert _kinds(check(_program((load, seed, fold)))) == {("uninitialised", 2)}


def test_padded_micro_ops() -> None:
    """A row and a column of padding before three micro-ops: the first of them is number 5."""
    insns = list(PIPELINE)
    insns[0] = replace(insns[0], pad_top=1, pad_left=1)
    for index in (4, 9):
        insns[index] = replace(insns[index], uop_begin=5)
    assert check(_program(tuple(insns))) == []
    for padding in (1, 4):
        insns[4] = replace(insns[4], uop_begin=padding)
        assert _kinds(check(_program(tuple(insns)))) == {("uninitialised", 4)}


def test_the_limit_holds() -> None:
    insns = (Vector(op="max", src0="tmp", src1="imm", dst="out"),) * 50
    assert len(check(_program(insns), limit=7)) == 7


# ---- the slow checker ----


def _entries(base: int, extents: tuple[int, ...], strides: tuple[int, ...]) -> list[int]:
    return [
        base + sum(i * s for i, s in zip(at, strides, strict=True))
        for at in product(*map(range, extents))
    ]


def _steps(insn: Insn, uops: dict[int, Uop]) -> Iterator[tuple[str, str, int]]:
    """(read or write, memory, entry or DRAM byte), in the order of execution."""
    match insn:
        case Load():
            size = insn.dram_entry_bytes(PARAMS)
            for z, y, b in product(*map(range, (insn.z_size, insn.y_size, insn.x_size * size))):
                yield "read", "dram", insn.dram_addr + z * insn.z_stride + y * insn.y_stride + b
            for entry in range(insn.entries):
                yield "write", insn.memory, insn.base + entry
        case Gemm():
            for o, i, u in product(range(insn.outer), range(insn.inner), range(insn.uop_count)):
                yield "read", "uop", insn.uop_begin + u
                uop = uops[insn.uop_begin + u]
                yield "read", "inp", uop.inp + o * insn.inp_outer + i * insn.inp_inner
                yield "read", "wgt", uop.wgt + o * insn.wgt_outer + i * insn.wgt_inner
                acc = uop.acc + o * insn.acc_outer + i * insn.acc_inner
                if not (insn.init and uop.first):
                    yield "read", "acc", acc
                yield "write", "acc", acc
        case Vector():
            a = _entries(insn.src0_base, insn.extents, insn.src0_strides)
            b = _entries(insn.src1_base, insn.extents, insn.src1_strides)
            r = _entries(insn.dst_base, insn.extents, insn.dst_strides)
            fold = int(np.prod(insn.extents[4 - insn.reduce :]))
            for t in range(len(a)):
                yield "read", insn.src0, a[t]
                if insn.src1 != "imm":
                    yield "read", insn.src1, b[t]
                if t % fold == fold - 1:
                    yield "write", insn.dst, r[t]
        case Param():
            for k in range(3):
                yield "read", "par", insn.par_base + k
        case Store():
            for entry in range(insn.entries):
                yield "read", "out", insn.base + entry
            size = PARAMS.entry_bytes("out")
            for z, y, b in product(*map(range, (insn.z_size, insn.y_size, insn.x_size * size))):
                yield "write", "dram", insn.dram_addr + z * insn.z_stride + y * insn.y_stride + b


def _reach(insns: tuple[Insn, ...]) -> np.ndarray:
    """[i, j]: instruction i ends before j starts, by closing a graph of starts and ends."""
    n = len(insns)
    edge = np.zeros((2 * n, 2 * n), bool)
    last: dict[Unit, int] = {}
    tokens: dict[tuple[Unit, Unit], deque[int]] = {}
    for j, insn in enumerate(insns):
        edge[j, n + j] = True
        if insn.unit in last:
            edge[last[insn.unit], j] = edge[n + last[insn.unit], n + j] = True
        last[insn.unit] = j
        for unit in Unit:
            if insn.push >> unit & 1:
                tokens.setdefault((insn.unit, unit), deque()).append(j)
    for j, insn in enumerate(insns):
        for unit in Unit:
            if insn.pop >> unit & 1:
                edge[n + tokens[unit, insn.unit].popleft(), j] = True
    for k in range(2 * n):
        edge |= np.outer(edge[:, k], edge[k])
    return edge[n:, :n]


def _slow_check(insns: tuple[Insn, ...], uops_in_dram: tuple[Uop, ...]) -> set[tuple[str, int]]:
    before = _reach(insns)
    found = set()
    writes: dict[tuple[str, int], list[int]] = {}
    reads: dict[tuple[str, int], list[int]] = {}
    uops = {k: Uop(acc=0, inp=0, wgt=0) for k in range(PARAMS.uop_depth)}
    for j, insn in enumerate(insns):
        if isinstance(insn, Load) and insn.memory == "uop":
            for x in range(insn.x_size):
                uops[insn.base + x] = uops_in_dram[insn.dram_addr // 4 + x]
        for what, memory, entry in _steps(insn, uops):
            where = memory, entry
            if what == "read":
                if not writes.get(where) and memory != "dram":
                    found.add(("uninitialised", j))
                others, kind = writes, "raw"
            else:
                others, kind = reads, "war"
            for i in others.get(where, ()):
                if insns[i].unit != insn.unit and not before[i, j]:
                    found.add((kind, j))
            (reads if what == "read" else writes).setdefault(where, []).append(j)
        params = any(isinstance(other, Param) for other in insns[:j])
        if isinstance(insn, Vector) and insn.post != "none" and not params:
            found.add(("uninitialised", j))
    return found


@st.composite
def _random_program(draw: st.DrawFn) -> tuple[tuple[Insn, ...], tuple[Uop, ...]]:
    """A few instructions that crowd into a few entries, with tokens of random pairs."""

    def n(low: int, high: int) -> int:
        return draw(st.integers(low, high))

    def four(high: int, low: int = 0) -> tuple[int, ...]:
        return n(low, high), n(low, high), n(low, high), n(low, high)

    def insn() -> Insn:
        match n(0, 6):
            case 0:
                return Load(memory="uop", base=n(0, 3), dram_addr=4 * n(0, 5), x_size=n(1, 3))
            case 1 | 2:
                memory = draw(st.sampled_from(("inp", "wgt", "par")))
                return Load(memory=memory, base=n(0, 3), dram_addr=64 + 8 * n(0, 9),
                            x_size=n(1, 2), y_size=n(0, 2), y_stride=8 * n(0, 3), z_size=n(1, 2),
                            z_stride=8 * n(0, 3), pad_left=1, pad_top=1)  # fmt: skip
            case 3:
                return Gemm(uop_begin=n(0, 3), uop_count=n(1, 3), outer=n(1, 2), inner=n(1, 2),
                            init=n(0, 1), acc_outer=n(0, 2), acc_inner=n(0, 2), inp_outer=n(0, 2),
                            inp_inner=n(0, 2), wgt_outer=n(0, 1), wgt_inner=n(0, 1))  # fmt: skip
            case 4:
                reduce = n(0, 4)
                return Vector(op="max", src0=draw(st.sampled_from(("acc", "inp", "tmp"))),
                              src1=draw(st.sampled_from(("imm", "par", "tmp"))),
                              dst=draw(st.sampled_from(("tmp", "out"))), reduce=reduce,
                              post=draw(st.sampled_from(("none", "even"))), extents=four(2, 1),
                              src0_base=n(0, 3), src0_strides=four(2), src1_base=n(0, 3),
                              src1_strides=four(2), dst_base=n(0, 3),
                              dst_strides=four(2)[: 4 - reduce] + (0,) * reduce)  # fmt: skip
            case 5:
                return Param(par_base=n(0, 3))
        return Store(base=n(0, 3), dram_addr=64 + 4 * n(0, 19), x_size=n(1, 2), y_size=n(1, 2),
                     y_stride=4 * n(0, 5), z_size=n(1, 2), z_stride=4 * n(0, 5))  # fmt: skip

    insns = [insn() for _ in range(n(2, 14))]
    for _ in range(n(0, 20)):
        i = n(0, len(insns) - 2)
        j = n(i + 1, len(insns) - 1)
        a, b = insns[i], insns[j]
        push, pop = Units(1 << b.unit), Units(1 << a.unit)
        if a.unit != b.unit and not a.push & push and not b.pop & pop:
            insns[i] = replace(a, push=a.push | push)
            insns[j] = replace(insns[j], pop=b.pop | pop)
    uops = tuple(Uop(acc=n(0, 3), inp=n(0, 3), wgt=n(0, 3), first=n(0, 1)) for _ in range(8))
    return tuple(insns), uops


@pytest.mark.slow
@settings(max_examples=300, deadline=None)
@given(drawn=_random_program())
def test_random_programs_against_the_slow_checker(
    drawn: tuple[tuple[Insn, ...], tuple[Uop, ...]],
) -> None:
    insns, uops = drawn
    image = {0: b"".join(encode_uop(uop, PARAMS) for uop in uops)}
    program = Program(PARAMS, insns, image, {"dram_bytes": 0x4000}, INSN_ADDR)
    assert _kinds(check(program, limit=10_000)) == _slow_check(insns, uops)


# ---- the compiler's tokens ----


def _pairs(insns: tuple[Insn, ...]) -> list[tuple[int, int]]:
    """Pushing and popping instruction of every token."""
    pairs = []
    for source, target in product(Unit, Unit):
        pushes = [i for i, n in enumerate(insns) if n.unit == source and n.push >> target & 1]
        pops = [i for i, n in enumerate(insns) if n.unit == target and n.pop >> source & 1]
        pairs += zip(pushes, pops, strict=True)
    return pairs


@pytest.mark.slow
@settings(max_examples=200, deadline=None)
@given(drawn=_random_program())
def test_inserted_tokens_suffice_and_none_can_be_spared(
    drawn: tuple[tuple[Insn, ...], tuple[Uop, ...]],
) -> None:
    bare, uops = drawn
    image = {0: b"".join(encode_uop(uop, PARAMS) for uop in uops)}
    insns = tuple(insert_tokens(bare, PARAMS, image))

    def kinds(stream: tuple[Insn, ...]) -> set[str]:
        program = Program(PARAMS, stream, image, {"dram_bytes": 0x4000}, INSN_ADDR)
        return {f.kind for f in check(program)} - {"uninitialised"}

    assert kinds(insns) == set()
    for i, j in _pairs(insns):
        fewer = list(insns)
        fewer[i] = replace(insns[i], push=insns[i].push & ~Units(1 << insns[j].unit))
        fewer[j] = replace(insns[j], pop=insns[j].pop & ~Units(1 << insns[i].unit))
        assert kinds(tuple(fewer)) & {"raw", "war"}


# ---- speed ----


def long_program(tiles: int) -> Program:
    """A 3x3 convolution tile by tile, in two alternating halves of every scratchpad."""
    params = HwParams()
    uops = [Uop(acc=k * 392, inp=k * 512 + i, wgt=k * 9 + i, first=i == 0)
            for k in range(2) for i in range(9)]  # fmt: skip
    insns: list[Insn] = [Load(memory="uop", base=0, dram_addr=0, x_size=18)]
    insns.append(Load(memory="par", base=0, dram_addr=0x1000, x_size=3, push=V))
    insns.append(Param(par_base=0, pop=L))
    for tile in range(tiles):
        k, old = tile % 2, tile >= 2
        x, y = 0x2000 + 2048 * (tile % 64), 0x40000 + 4096 * (tile % 64)
        taken = {"pop": G} if old else {}
        insns += [
            Load(memory="wgt", base=9 * k, dram_addr=0x30000, x_size=9, **taken),
            Load(memory="inp", base=512 * k, dram_addr=x, x_size=16, y_size=16, y_stride=256,
                 pad_left=1, pad_right=1, pad_top=1, pad_bottom=1, push=G),
            Gemm(uop_begin=9 * k, uop_count=9, outer=14, inner=14, init=1, acc_outer=14,
                 acc_inner=1, inp_outer=18, inp_inner=1, pop=L | (V if old else 0), push=L | V),
            Vector(op="add", src0="acc", src1="imm", dst="out", post="even",
                   extents=(1, 1, 14, 14), src0_base=392 * k, src0_strides=(0, 0, 14, 1),
                   dst_base=200 * k, dst_strides=(0, 0, 14, 1), pop=G | (S if old else 0),
                   push=G | S),
            Store(base=200 * k, dram_addr=y, x_size=14, y_size=14, y_stride=256, pop=V, push=V),
        ]  # fmt: skip
    tail = [("pop", Unit.LOAD, G), ("pop", Unit.GEMM, V), ("pop", Unit.VECTOR, S)]
    drain = {
        Unit.LOAD: Load(memory="wgt", base=99, dram_addr=0x30000, x_size=1),
        Unit.GEMM: Gemm(uop_begin=0, uop_count=1, init=1),
        Unit.VECTOR: Param(par_base=0),
    }
    for name, unit, bit in tail:
        insns += [replace(drain[unit], **{name: bit})] * 2
    image = {0: b"".join(encode_uop(uop, params) for uop in uops), 0x1000: bytes(192)}
    return Program(params, tuple(insns), image, {"dram_bytes": 0x400000}, 0x100000)


@pytest.mark.slow
def test_long_programs_take_seconds() -> None:
    """20,000 instructions; the limit leaves room for a busy machine."""
    program = long_program(4000)
    start = time.perf_counter()
    findings = check(program)
    assert time.perf_counter() - start < 30
    assert findings == []
