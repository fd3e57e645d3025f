"""Trials of a tuner: a layer's program for any knobs is what a whole compilation makes."""

import random

import pytest
from vdla.bench.workloads import TABLE_2
from vdla.compiler.build import build, prepare
from vdla.compiler.choose.chooser import Chooser
from vdla.compiler.dumps import Dumps
from vdla.compiler.partition import split_parts
from vdla.compiler.targets.base import Options
from vdla.compiler.targets.registry import find_target
from vdla.compiler.targets.vdla.machine import USUAL_EIGHTHS
from vdla.compiler.targets.vdla.plan.program_plan import USUAL_CHUNKS
from vdla.compiler.targets.vdla.target import Accelerator
from vdla.isa.errors import VdlaError
from vdla.isa.memory import MEMORY_PRESETS
from vdla.isa.params import HwParams
from vdla.sim.model.core import count_cycles, simulate

TABLE = {layer.name: layer for layer in TABLE_2}


def accelerator(memory: str = "vta") -> Accelerator:
    target = find_target("sim", Options(HwParams(), MEMORY_PRESETS[memory]))
    assert isinstance(target, Accelerator)
    return target


def layers_of(model, target):
    chooser = Chooser(target.name, target.machine_key)
    graph = prepare(model, target, chooser, Dumps())
    parts = [part for where, part in split_parts(graph, target) if where is target]
    return [layer for part in parts for layer in target.layers(part, chooser)]


def legal_point(space, rng):
    while True:
        knobs = {name: rng.choice(values) for name, values in space.knobs.items()}
        if not space.refuse(knobs):
            return knobs


@pytest.mark.more
@pytest.mark.parametrize(("name", "memory"), [("C8", "vta"), ("C11", "slow"), ("D9", "vta")])
def test_a_trial_is_the_compiled_program(name, memory):
    target = accelerator(memory)
    model = TABLE[name].model()
    (layer,) = layers_of(model, target)
    rng = random.Random(1)
    for knobs in (legal_point(layer.space, rng) for _ in range(3)):
        program = layer.program(knobs)
        usual = {"wgt_eighths": USUAL_EIGHTHS, "image_chunks": USUAL_CHUNKS}
        shares = {share: usual[share] for share in layer.node.shares if share in usual}
        (whole,) = build(model, target, {layer.node.name: knobs | shares}).programs
        assert program.encoded() == whole.encoded() and program.image == whole.image
        cycles = simulate(program, program.dram_image(), target.machine.memory).cycles
        assert count_cycles(program.table, target.machine.memory) == cycles


def test_illegal_knobs_are_refused_by_name():
    (layer,) = layers_of(TABLE["C8"].model(), accelerator())
    knobs = next(iter(layer.space.points()))
    with pytest.raises(VdlaError, match=r"layer .*: knob rows: expected .*, got 6"):
        layer.program({**knobs, "rows": 6})
