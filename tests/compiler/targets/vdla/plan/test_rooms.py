"""What programs may use of machines with more than a preset has."""

from __future__ import annotations

from dataclasses import asdict, replace

import pytest
from vdla.bench.networks import find_model
from vdla.compiler.build import CompiledModel, build
from vdla.compiler.targets.base import Options
from vdla.compiler.targets.registry import find_target
from vdla.compiler.targets.vdla.machine import Budget, Machine
from vdla.isa.memory import MEMORY_PRESETS, MemoryParams
from vdla.isa.params import PRESETS, HwParams
from vdla.sim.model.core import count_cycles

VTA = MEMORY_PRESETS["vta"]
HW = PRESETS["16x16"]
#: Where more weights fit, the cost model prefers tiles that are slower.
LARGER = replace(HW, wgt_depth=4 * HW.wgt_depth)


def machine(hw: HwParams = HW, memory: MemoryParams = VTA) -> Machine:
    return Machine(hw, memory, 2)


def compiled(hw: HwParams, knobs: dict | None = None) -> CompiledModel:
    return build(find_model("C11", 1), find_target("sim", Options(hw, VTA)), knobs=knobs)


def cycles_of(model: CompiledModel) -> int:
    [program] = model.programs
    return count_cycles(program.table, VTA)


@pytest.mark.parametrize("name", PRESETS)
def test_presets_have_one_room(name: str) -> None:
    for memory in VTA, MEMORY_PRESETS["slow"], MEMORY_PRESETS["ulx3s"]:
        assert machine(PRESETS[name], memory).rooms == (None,)


def test_rooms_end_with_all_entries() -> None:
    larger = machine(replace(HW, inp_depth=9000, par_depth=200))
    assert larger.rooms == (1, 2, 4, None)
    assert larger.room(1) == Budget.whole(HW)
    assert larger.room(2) == replace(Budget.whole(HW), inp=4096, par=200)
    assert larger.room(4) == replace(larger.room(2), inp=8192)
    assert larger.room(None) == replace(larger.room(2), inp=9000)


def test_a_smaller_scratchpad_stays_as_it_is() -> None:
    mixed = machine(replace(HW, inp_depth=4096, acc_depth=64))
    assert mixed.rooms == (1, None)
    assert asdict(mixed.room(1)) == {**asdict(Budget.whole(HW)), "acc": 64}


def test_faster_memories_are_planned_for_as_slower_ones() -> None:
    fast = replace(VTA, bus_bits=256, read_latency_cycles=5)
    found = machine(replace(HW, bus_bits=256), fast)
    assert found.rooms == (1, 2, None)
    seen = [found.estimated(times) for times in found.rooms]
    assert [m.memory.read_latency_cycles for m in seen] == [16, 8, 5]
    assert [m.memory.bus_bits for m in seen] == [m.params.bus_bits for m in seen] == [64, 128, 256]


def test_a_bus_that_is_too_narrow_for_instructions_is_not_planned_for() -> None:
    hw = replace(HW, bus_bits=256, max_burst_beats=4)
    assert machine(hw, replace(VTA, bus_bits=256)).estimated(1).params == hw


@pytest.mark.slow
def test_the_fastest_program_is_taken_and_made_again() -> None:
    """Its knobs, given by hand, make the same program; those of more room a slower one."""
    usual, found = compiled(HW), compiled(LARGER)
    [layer] = [layer for layer in found.layers if layer.target == "accel"]
    knobs = layer.knobs
    assert knobs and knobs["room_times"] == 1 and found.plan["room_times"] == 1
    assert cycles_of(found) == cycles_of(usual)
    again = compiled(LARGER, {layer.name: knobs})
    assert again.programs[0].encoded() == found.programs[0].encoded()
    assert cycles_of(compiled(LARGER, {layer.name: {"room_times": 4}})) > cycles_of(found)
