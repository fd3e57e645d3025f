"""The records of the package: what they say is so, and the compiler uses them by default."""

from __future__ import annotations

import re
from pathlib import Path

import pytest
import vdla
from vdla.bench.tuned import MODELS
from vdla.compiler.build import build
from vdla.compiler.choose.records import Key
from vdla.compiler.choose.shipped import shipped
from vdla.compiler.targets.base import Options
from vdla.compiler.targets.registry import find_target
from vdla.compiler.targets.vdla.layer import Layer
from vdla.compiler.tune.task import tasks_of
from vdla.isa.memory import MemoryParams
from vdla.isa.params import HwParams
from vdla.isa.platform import load_platform
from vdla.sim.model.core import count_cycles

#: Rows of the table of networks: network, machine, memory, cycles by the planner and as tuned.
ROWS = re.compile(r"^\| (\S+) \| (\S+) \| `(\w+)` \| ([\d,]+) \| ([\d,]+) \| [\d.]+ % \|$", re.M)
TABLE = ROWS.findall((Path(__file__).parents[3] / "docs" / "tuning.md").read_text())
#: The networks of the table.
NAMED = {
    "DQN": "dqn", "DCGAN": "dcgan", "MobileNet-V1": "mobilenet_v1",
    "MobileNet-V2-style": "mobilenet_v2", "ResNet-18": "resnet18",
}  # fmt: skip
#: A network and a machine that have records.
NETWORK, MACHINE, MEMORY = "dqn", "8x8-plain", "slow"


@pytest.fixture(scope="module")
def platform() -> tuple[HwParams, MemoryParams]:
    return load_platform(MACHINE, MEMORY)


def test_every_record_says_what_it_is_about_and_none_stands_twice() -> None:
    records = shipped()
    keys = [record.key for record in records.trials]
    assert keys and len(keys) == len(set(keys))
    for record in records.trials:
        assert isinstance(record.key, Key) and record.key.target == "accel"
        assert record.cost and record.knobs and record.versions and not record.who


@pytest.mark.slow
def test_a_record_costs_what_it_says_and_less_than_the_planners_choice(
    platform: tuple[HwParams, MemoryParams],
) -> None:
    """Replays the records of one network."""
    target = find_target("sim", Options(*platform))
    replayed = 0
    for task in tasks_of(MODELS[NETWORK](1, True), target, shipped()):
        plan, layer = task.plan(), task.layer
        assert plan is not None and isinstance(layer, Layer)
        for record in shipped().of(task.key):
            cycles = count_cycles(layer.program(record.knobs).table, platform[1])
            planner = count_cycles(layer.program(plan.knobs).table, platform[1])
            assert cycles == record.cost < planner
            replayed += 1
    assert replayed


@pytest.mark.slow
def test_compile_uses_them_unless_it_is_given_others(
    platform: tuple[HwParams, MemoryParams], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delenv("VDLA_RECORDS", raising=False)
    model = MODELS[NETWORK](1, True).SerializeToString()
    empty = tmp_path / "empty.jsonl"
    empty.touch()
    by_planner = build(model, find_target("sim", Options(*platform)))
    cycles = {}
    for name, given in (("shipped", {}), ("none", {"records": empty}), ("single", {"vthreads": 1})):
        compiled = vdla.compile(model, hw=MACHINE, memory=MEMORY, **given).compiled
        cycles[name] = sum(
            count_cycles(program.table, platform[1]) for program in compiled.programs
        )
        used = {layer.chosen_by for layer in compiled.layers}
        assert ("record" in used) == (name == "shipped")
    assert cycles["shipped"] < cycles["none"]
    assert cycles["none"] == sum(count_cycles(p.table, platform[1]) for p in by_planner.programs)


def test_the_table_has_every_network() -> None:
    assert {row[0] for row in TABLE} == set(NAMED)
    assert set(NAMED.values()) == set(MODELS)


@pytest.mark.sweep
@pytest.mark.parametrize("row", TABLE, ids=" ".join)
def test_no_network_of_the_table_is_slower_with_the_records(row: tuple[str, ...]) -> None:
    """The planner's cycles are those of the table; the records of other networks may add to what
    its own save."""
    name, machine, memory, *cycles = row
    params, memory_params = load_platform(machine, memory)
    model, target = MODELS[NAMED[name]](1, True), find_target("sim", Options(params, memory_params))
    planner, tuned = (
        sum(count_cycles(p.table, memory_params) for p in build(model, target, records=r).programs)
        for r in (None, shipped())
    )
    told = [int(text.replace(",", "")) for text in cycles]
    assert planner == told[0] and tuned <= told[1] <= planner
