"""Instructions in another order compute the same: loads by need, all by estimated start."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

import numpy as np
import pytest
from vdla.bench.modern import FloatNet
from vdla.bench.net import Net
from vdla.compiler.targets.vdla.lower.order import (
    AHEAD_CYCLES,
    TURNS,
    constants_apart,
    dispatch_order,
    loads_by_need,
    repeated_settings,
    without_repeated_settings,
)
from vdla.isa.check import check
from vdla.isa.depend import deadlines, dependencies, find_tokens
from vdla.isa.insn import Gemm, Insn, Load, Param, Table, Vector
from vdla.isa.insn_table import InsnTable
from vdla.isa.memory import MEMORY_PRESETS
from vdla.isa.opcodes import Unit, Units
from vdla.isa.params import HwParams
from vdla.isa.program import Program
from vdla.isa.reference import run
from vdla.isa.runs import Footprints
from vdla.sim.model.core import simulate
from vdla.sim.verify.random_programs import random_program

from ....building import build_for
from ..test_squeeze import quantised

VTA = MEMORY_PRESETS["vta"]
PARAMS = HwParams(
    block_in=4, block_out=4, inp_depth=64, wgt_depth=16, acc_depth=32, uop_depth=32, par_depth=16,
    tmp_depth=16, out_depth=32,
)  # fmt: skip


def ordered(
    program: Program,
    tracks: list[int] | None = None,
    ahead_cycles: Sequence[int] = AHEAD_CYCLES[:1],
    insn_cycles: int = 0,
) -> tuple[Program, list[int]]:
    """The program as the compiler would order it, and the places before. Each 16 instructions are
    another operator's."""
    insns, image = program.table, program.image
    found = Footprints.of(insns, image)
    late = loads_by_need(deadlines(found))
    insns = insns.take(late)
    own = np.array(tracks or [0] * len(insns))[late]
    own = constants_apart(insns, own, late // 16 % TURNS, image)
    needs = dependencies(found.reordered(late), own)
    order = dispatch_order(insns, own, needs, VTA, ahead_cycles, insn_cycles)
    insns, needs = insns.take(order), dependencies(found.reordered(late[order]))
    insns = insns.with_tokens(*find_tokens(insns.units, needs.by_unit()))
    return replace(program, insns=tuple(insns.insns())), late[order].tolist()


def two_tracks(program: Program) -> tuple[Program, list[int]]:
    """The program with a PARAM directly before every instruction that uses its registers, and two
    tracks that take turns with about eight instructions each."""
    insns: list[Insn] = []
    tracks: list[int] = []
    param = None
    for insn in program.insns:
        if isinstance(insn, Param):
            param = insn
            continue
        lane = len(insns) // 8 % 2
        if isinstance(insn, Vector) and insn.post != "none":
            assert param is not None
            insns.append(param)
            tracks.append(lane)
        insns.append(insn)
        tracks.append(lane)
    return replace(program, insns=tuple(insns)), tracks


def assert_same(program: Program, moved: Program, order: list[int]) -> None:
    """Both programs compute the same; the reordered one passes the checker and runs with its
    tokens."""
    assert sorted(order) == list(range(len(program.insns)))
    # Random programs read what nothing has written; that is all there may be.
    assert {finding.kind for finding in check(moved)} <= {"uninitialised"}
    before, after, timed = (program.dram_image() for _ in range(3))
    run(program, before)
    run(moved, after)
    result = simulate(moved, timed, VTA)
    assert np.array_equal(before, after) and np.array_equal(before, timed)
    assert min(result.ends) >= 0


@pytest.mark.slow
@pytest.mark.parametrize("seed", range(12))
def test_any_program_computes_the_same_in_the_new_order(seed: int) -> None:
    program = random_program(PARAMS, seed)
    assert_same(program, *ordered(program))


@pytest.mark.parametrize("seed", range(12))
def test_any_program_computes_the_same_in_two_tracks(seed: int) -> None:
    """With any preference, of which two each are tried in turn."""
    program, tracks = two_tracks(random_program(PARAMS, seed))
    moved, order = ordered(program, tracks, AHEAD_CYCLES[seed % len(AHEAD_CYCLES) :][:2])
    assert_same(program, moved, order)
    assert set(tracks) == {0, 1}
    for pair in ((lane, unit) for lane in (0, 1) for unit in Unit if unit is not Unit.LOAD):
        mine = [i for i in order if (tracks[i], program.insns[i].unit) == pair]
        assert mine == sorted(mine)


def test_random_programs_are_really_reordered() -> None:
    orders = [ordered(random_program(PARAMS, seed))[1] for seed in range(12)]
    assert any(order != sorted(order) for order in orders)
    overtaken = 0
    for seed in range(12):
        program, tracks = two_tracks(random_program(PARAMS, seed))
        order = [i for i in ordered(program, tracks)[1] if program.insns[i].unit is Unit.VECTOR]
        overtaken += order != sorted(order)
    assert overtaken, "no lane overtakes the other on the vector unit"


def test_the_best_order_is_taken() -> None:
    """Of several orders, the one that is estimated to end first: one of those that each preference
    makes, and not the same preference's for all programs."""
    chosen = set()
    for seed in range(12):
        program, tracks = two_tracks(random_program(PARAMS, seed))
        alone = [ordered(program, tracks, [ahead])[1] for ahead in AHEAD_CYCLES]
        chosen.add(alone.index(ordered(program, tracks, AHEAD_CYCLES)[1]))
    assert len(chosen) > 1


@pytest.mark.slow
def test_loads_are_expected_to_take_longer_where_instructions_need_the_bus() -> None:
    """Some programs then have another order, in which they compute the same."""
    moved = 0
    for seed in range(12):
        program, tracks = two_tracks(random_program(PARAMS, seed))
        other, order = ordered(program, tracks, insn_cycles=40)
        assert_same(program, other, order)
        moved += order != ordered(program, tracks)[1]
    assert moved


def test_parameters_do_not_hold_up_weights() -> None:
    """Loads of weights, of parameters and of activations are three tracks."""
    loads = [
        Load(memory=memory, base=0, dram_addr=address, x_size=1)
        for memory, address in (("wgt", 0), ("par", 64), ("inp", 256))
    ]
    table, tracks = InsnTable.of(loads, PARAMS), np.zeros(3, np.int64)
    apart = constants_apart(table, tracks, tracks + 1, {0: bytes(128)}).tolist()
    assert len(set(apart)) == 3 and apart[2] == 0


def test_the_second_step_keeps_every_unit_in_order() -> None:
    program = random_program(PARAMS, 3)
    needs = dependencies(Footprints.of(program.table, program.image))
    tracks = np.zeros(len(program.insns), np.int64)
    order = dispatch_order(program.table, tracks, needs, VTA, AHEAD_CYCLES, 0).tolist()
    for unit in Unit:
        mine = [i for i in order if program.insns[i].unit is unit]
        assert mine == sorted(mine)
    place = {index: position for position, index in enumerate(order)}
    for index, need in enumerate(needs.latest.tolist()):
        assert all(place[i] < place[index] for i in need if i >= 0)


def test_weights_are_loaded_before_the_results_that_they_are_multiplied_by() -> None:
    """Two dense layers: the weights of the second one do not wait for the result of the first,
    where windows slide."""
    net = Net("two")
    net.output(net.dense(net.dense(net.input(1, 64), 64), 64))
    program = build_for("sim", net.model(), HwParams(vector_window=3), VTA).program
    first, second = (layer["name"] for layer in program.meta["layers"])

    def loads(layer: str, memory: str) -> dict[int, Load]:
        return {
            index: insn
            for index, (insn, note) in enumerate(zip(program.insns, program.notes, strict=True))
            if isinstance(insn, Load) and insn.memory == memory and note.layer == layer
        }

    [image] = loads(second, "inp")
    assert min(loads(second, "wgt")) < image
    # They have other entries of wgt, and so do not wait for products of the first layer.
    entries = [
        {entry for load in loads(layer, "wgt").values()
         for entry in range(load.base, load.base + load.entries)}
        for layer in (first, second)
    ]  # fmt: skip
    assert all(entries) and not entries[0] & entries[1]


@pytest.mark.slow
@pytest.mark.short(1)
@pytest.mark.parametrize("depth, size", [(64, 28), (16, 48)], ids=["products", "vector unit"])
def test_a_depthwise_convolution_follows_a_table_closely(depth: int, size: int) -> None:
    """It works on the first results that were looked up, whatever bounds the convolution before:
    its products, or the vector unit, which takes what has been ready for longer."""
    net = FloatNet("two")
    x = net.silu(net.conv(net.input(1, depth, size, size), 96, 1, relu=False))
    net.output(net.conv(x, 96, 3, groups=96))
    hw = HwParams(vector_window=3, vector_table=2)
    program = build_for("sim", quantised(net.model()), hw, VTA).program
    first, second = (
        [
            index
            for index, (insn, note) in enumerate(zip(program.insns, program.notes, strict=True))
            if isinstance(insn, Vector) and note.layer == layer["name"]
        ]
        for layer in program.meta["layers"]
    )
    assert sum(index < first[-1] for index in second) > len(second) // 4


def test_of_two_products_that_are_ready_the_earlier_one_goes_first() -> None:
    """Whichever track it is on: the other one may wait for what it makes."""
    insns = InsnTable.of([Gemm(uop_begin=0, uop_count=1, outer=9, inner=9)] * 4, PARAMS)
    tracks = np.array([1, 1, 0, 0])
    needs = dependencies(Footprints.of(insns, {}), tracks)
    needs = replace(needs, latest=np.full_like(needs.latest, -1))
    assert dispatch_order(insns, tracks, needs, VTA, (0,), 0).tolist() == [0, 1, 2, 3]


def kept_settings(insns: Sequence[Insn], params: HwParams) -> list[int]:
    """Which instructions stay."""
    return without_repeated_settings(InsnTable.of(insns, params)).tolist()


def test_settings_that_a_track_repeats_are_expected_to_take_no_time() -> None:
    """Whatever the other track sets between them."""
    params = replace(PARAMS, par_depth=64, vector_table=1)
    tables = InsnTable.of([Table(par_base=at) for at in (0, 32, 0, 0)], params)

    assert repeated_settings(tables, np.array([0, 1, 0, 1])).tolist() == [2]
    assert repeated_settings(tables, np.array([0, 0, 0, 0])).tolist() == [3]


def test_parameters_are_not_set_again() -> None:
    """A PARAM goes if the one before it set the same, and nothing was loaded into its entries."""
    first, other = Param(par_base=8), Param(par_base=8, lo=0)

    def load(base: int) -> Load:
        return Load(memory="par", base=base, dram_addr=0, x_size=1)

    def kept(*insns: Insn) -> list[int]:
        return kept_settings(insns, PARAMS)

    assert kept(first, first.with_tokens(Units.LOAD, Units.STORE), first) == [0]
    assert kept(first, other, first) == [0, 1, 2]
    assert kept(first, load(8), first) == kept(first, load(10), first) == [0, 1, 2]
    for apart in (load(7), load(11), replace(load(8), memory="inp")):
        assert kept(first, apart, first) == [0, 1]


def load(base: int, memory: str = "inp") -> Insn:
    return Load(memory=memory, base=base, dram_addr=64 * base, x_size=1)


def test_a_load_moves_to_its_first_reader_and_not_past_its_buffers_next_use() -> None:
    """Loads 0 and 1 fill two entries, 2 overwrites the first: nothing reads either."""
    loads = [load(0), load(1), load(0)]
    found = Footprints.of(InsnTable.of(loads, PARAMS), {})
    assert deadlines(found).tolist() == [2, 3, 3]
    assert loads_by_need(np.array([2, 3, 3])).tolist() == [0, 1, 2]
    # An instruction that is no load keeps its place behind the loads that it needs.
    assert loads_by_need(np.array([2, 1, 2, 3, 4])).tolist() == [1, 0, 2, 3, 4]


def test_a_table_is_not_set_again() -> None:
    """A TABLE goes if the one before it took the same entries of par, and nothing was loaded into
    them since."""
    params = replace(PARAMS, par_depth=64, vector_table=1)
    last = params.table_entries - 1
    look_up = Vector(op="table", src0="inp", src1="imm", dst="out")
    first, second = Table(par_base=0), Table(par_base=32)

    def load(base: int, memory: str = "par") -> Load:
        return Load(memory=memory, base=base, dram_addr=0, x_size=1)

    def kept(*insns: Insn) -> list[int]:
        return kept_settings(insns, params)

    assert kept(first, look_up, first, look_up, first) == [0, 1, 3]
    assert kept(first, second, first) == [0, 1, 2]
    assert kept(second, load(32), second) == kept(second, load(32 + last), second) == [0, 1, 2]
    for apart in (load(31), load(33 + last), load(32, "inp")):
        assert kept(second, apart, second) == [0, 1]
