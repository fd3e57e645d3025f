"""The AutoScheduler's search: repeatable, resumable, better than chance; whose turn is next."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import replace
from functools import cache
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import vdla
from vdla.bench.net import Net
from vdla.compiler.choose.chooser import Chooser
from vdla.compiler.choose.records import Record, Records, append
from vdla.compiler.choose.space import Knobs
from vdla.compiler.targets.base import Options
from vdla.compiler.targets.cpu.lowering import choose_knobs
from vdla.compiler.targets.cpu.target import Cpu
from vdla.compiler.targets.cpu.templates.by_steps import expression_of_workload
from vdla.compiler.targets.vdla.target import Accelerator
from vdla.compiler.te.schedule import create_schedule
from vdla.compiler.te.steps import from_text, replay, to_text
from vdla.compiler.te.tensor import compute, placeholder, reduce_axis, sum_of
from vdla.compiler.tir.ir import For, PrimFunc, walk_stmt
from vdla.compiler.tir.lower import lower
from vdla.compiler.tune.auto import evolution
from vdla.compiler.tune.auto.builder import Kind
from vdla.compiler.tune.auto.evolution import Evolution
from vdla.compiler.tune.auto.gradient import Course, next_task
from vdla.compiler.tune.auto.programs import BY_ITSELF, ProgramFeatures, Programs
from vdla.compiler.tune.auto.rules import processor_program
from vdla.compiler.tune.boosted import BoostedTrees
from vdla.compiler.tune.search import make_programs
from vdla.compiler.tune.task import find_tasks
from vdla.isa.errors import VdlaError
from vdla.isa.memory import MEMORY_PRESETS
from vdla.isa.params import HwParams


@pytest.fixture(autouse=True)
def small_generations(monkeypatch: pytest.MonkeyPatch) -> None:
    """Generations that take little time."""
    monkeypatch.setattr(evolution, "POPULATION", 24)
    monkeypatch.setattr(evolution, "GENERATIONS", 2)


def programs() -> Programs:
    """Those of a matrix product."""
    x, w = placeholder((64, 64), "float32", "x"), placeholder((64, 64), "float32", "w")
    k = reduce_axis(64, "k")
    y = compute((64, 64), lambda i, j: sum_of(x[i, k] * w[k, j], k), "y")

    def lowered(knobs: Knobs) -> PrimFunc:
        schedule = create_schedule(y)
        replay(from_text(str(knobs["steps"]) or "[]"), schedule)
        return lower(schedule, [x, w, y])

    return Programs(lambda pick: processor_program(y, pick, 8), lowered)


def toy_cost(found: Programs, point: int) -> float:
    """Least where tiles of the reduction are 16 steps and those of the rows 4, unrolled."""
    func = found._lower(found.knobs(point))
    loops = [stmt for stmt in walk_stmt(func.body) if isinstance(stmt, For)]
    steps = [loop.extent for loop in loops if loop.var.name == "k.i"]
    tile = [loop.extent for loop in loops if loop.kind == "unrolled" and loop.var.name == "i.i"]
    away = abs(np.log2((steps or [1])[0] / 16)) + abs(np.log2((tile or [1])[-1] / 4))
    return 10.0 + float(away)


def searched(seed: int, trials: int, learns: bool = True) -> tuple[list[str], list[float]]:
    """The texts of the trials, and their costs."""
    found = programs()
    explorer = Evolution(found, seed, BoostedTrees(ProgramFeatures(found), seed), [BY_ITSELF])
    texts, costs = [], []
    while len(texts) < trials:
        points = explorer.ask(16)
        made = [toy_cost(found, point) for point in points]
        texts += [str(found.knobs(point)["steps"]) for point in points]
        costs += made
        if learns:
            explorer.tell(points, made)
    return texts, costs


@pytest.mark.more
def test_the_same_seed_makes_the_same_trials_and_no_schedule_comes_twice() -> None:
    first, again, other = searched(1, 32), searched(1, 32), searched(2, 32)
    assert first == again and first != other
    assert len(set(first[0])) == len(first[0]) == 32
    assert first[0][0] == ""


@pytest.mark.more
def test_evolution_is_better_than_chance() -> None:
    means = {
        learns: np.mean([np.mean(searched(seed, 64, learns)[1][32:]) for seed in range(2)])
        for learns in (True, False)
    }
    assert means[True] < means[False] - 0.5


def test_a_change_keeps_all_other_steps_that_are_still_possible() -> None:
    found = programs()
    explorer = Evolution(found, 3, BoostedTrees(ProgramFeatures(found)))
    (parent,) = explorer.ask(1)
    before = {each.opening.key: each.step for each in found[parent].decided}
    kinds = set()
    for _ in range(200):
        child = explorer._changed(found[parent])
        if child is None:
            continue
        after = {each.opening.key: each for each in found[child].decided}
        differ = [k for k, each in after.items() if k in before and each.step != before[k]]
        assert differ
        kinds.update(after[key].opening.kind for key in differ[:1])
        # The first difference is the change; later ones follow from it.
        options = {k: each.opening.options for k, each in after.items()}
        assert all(before[key] not in options[key] for key in differ[1:]), differ
    assert {Kind.TILE, Kind.LOCATION} <= kinds


def test_a_cross_takes_each_stage_from_one_of_two() -> None:
    found = programs()
    explorer = Evolution(found, 4, BoostedTrees(ProgramFeatures(found)))
    a, b = explorer.ask(2)
    steps = [{each.opening.key: each.step for each in found[p].decided} for p in (a, b)]
    mixed = 0
    for _ in range(50):
        child = explorer._crossed(found[a], found[b])
        if child in (None, a, b):
            continue
        sides: dict[str, set[int]] = {}
        for each in found[child].decided:
            key, options = each.opening.key, each.opening.options
            theirs = [side.get(key) for side in steps]
            both = key in steps[0] and key in steps[1] and theirs[0] != theirs[1]
            if both and all(step in options for step in theirs):
                sides.setdefault(each.opening.stage, set()).add(theirs.index(each.step))
        assert all(len(side) == 1 for side in sides.values())
        mixed += len(set.union(set(), *sides.values())) == 2
    assert mixed


def test_a_log_in_a_record_is_found_again_and_another_one_is_none() -> None:
    found, again = programs(), programs()
    explorer = Evolution(found, 5, BoostedTrees(ProgramFeatures(found)))
    for point in explorer.ask(20):
        place = again.point(found.knobs(point))
        assert place is not None and again[place].log == found[point].log
        assert again[place].decided == found[point].decided
    assert again.point({"steps": '[["split","y","i",5]]'}) is None
    assert again.point({"steps": '[["split","nothing","i",4]]'}) is None
    assert again.point({"steps": "no log"}) is None
    assert again.point({"steps": ""}) == BY_ITSELF


# ---- whose turn is next --------------------------------------------------------------------------


@cache
def falling(seed: int) -> np.ndarray:
    """[tasks, rounds]: how the costs of ten tasks fall. They differ in size and in how soon little
    is left to gain."""
    rng = np.random.default_rng(seed)
    floors, gains = 10 ** rng.uniform(-1, 1, 10), rng.uniform(0.2, 3.0, 10)
    speeds = rng.uniform(0.2, 2.0, 10)
    rounds = np.arange(400)
    return floors[:, None] * (1 + gains[:, None] * np.exp(-speeds[:, None] * rounds))


def rounds_until(target: float, costs: np.ndarray, turns: Iterator[int]) -> int:
    """Rounds until the sum of all costs is at most ``target``."""
    made = [0] * len(costs)
    for count, task in enumerate(turns, 1):
        made[task] += 1
        if min(made) and sum(costs[i, n - 1] for i, n in enumerate(made)) <= target:
            return count
    raise AssertionError


def by_gradient(costs: np.ndarray) -> Iterator[int]:
    courses = [Course(1, 0.0, str(index)) for index in range(len(costs))]
    while (turn := next_task(courses)) is not None:
        courses[turn].best.append(float(costs[turn, len(courses[turn].best)]))
        yield turn


def in_turn(costs: Sequence) -> Iterator[int]:
    for _ in range(400):
        yield from range(len(costs))


def test_the_gradient_needs_fewer_rounds_than_taking_turns() -> None:
    ratios = []
    for seed in range(10):
        costs = falling(seed)
        target = costs[:, -1].sum() / 0.99
        ratios.append(
            rounds_until(target, costs, by_gradient(costs))
            / rounds_until(target, costs, in_turn(costs))
        )
    assert np.median(ratios) <= 0.8, ratios


def test_a_task_that_the_network_has_often_comes_first_and_an_ended_one_never() -> None:
    courses = [Course(1, 0.0, "a", [2.0, 1.0]), Course(9, 0.0, "b", [2.0, 1.0])]
    assert next_task(courses) == 1
    courses[1].ended = True
    assert next_task(courses) == 0
    courses[0].ended = True
    assert next_task(courses) is None


def test_a_task_much_slower_than_similar_ones_comes_first() -> None:
    slow, fast = Course(1, 100.0, "conv", [8.0] * 9), Course(1, 100.0, "conv", [1.0] * 9)
    assert next_task([fast, slow]) == 1


@pytest.mark.parametrize("quantized", [False, True])
def test_convolutions_of_a_network_are_compared_by_their_work(quantized: bool) -> None:
    """On blocks of channels, where the second has twice the features of the first."""
    net = Net("work", quantized)
    net.output(net.conv(net.conv(net.input(1, 32, 8, 8), 32, 3, 1), 64, 3, 1))
    tasks = find_tasks(net.model(), Cpu(Options(HwParams(), MEMORY_PRESETS["vta"])), by_steps=True)
    works = [task.layer.graph.macs(task.layer.node) for task in tasks]
    assert [work for work in works if work] == [8 * 8 * 32 * 32 * 9, 8 * 8 * 32 * 64 * 9]


# ---- with the command's parts --------------------------------------------------------------------


@pytest.mark.more
@pytest.mark.slow
def test_a_tuned_model_is_compiled_by_the_steps_of_its_record(tmp_path: Path) -> None:
    net = Net("product", False)
    net.output(net.dense(net.input(8, 96), 64))
    model, records = net.model(), tmp_path / "r.jsonl"
    report = vdla.tune(model, "cpu", records=records, trials=6, tuner="auto")
    assert report["tasks"] and not any(row["failed"] for row in report["tasks"])
    again = vdla.tune(model, "cpu", records=records, trials=6, tuner="auto")
    count = sum(not record.preferred for record in Records.load(records).trials)
    assert count == sum(row["trials"] for row in again["tasks"]) == 6 * len(report["tasks"])
    tuned = vdla.compile(model, target="cpu", records=records)
    plain = vdla.compile(model, target="cpu")
    x = np.random.default_rng(0).integers(-9, 10, (8, 96)).astype(np.float32)
    np.testing.assert_allclose(tuned.run(x)[0], plain.run(x)[0], rtol=1e-5, atol=1e-4)
    best = {tuple(r["layers"]): r["best_knobs"]["steps"] for r in again["tasks"]}
    by_layer = {row["name"]: row.get("knobs", {}) for row in tuned.report["layers"]}
    for layers, steps in best.items():
        for layer in layers:
            assert by_layer[layer].get("steps", "") == steps


def test_steps_that_are_not_possible_are_refused_in_one_line() -> None:
    net = Net("product", False)
    net.output(net.dense(net.input(8, 96), 64, relu=False))
    model = net.model()
    plain = vdla.compile(model, target="cpu")
    plain.run(np.zeros((8, 96), np.float32))
    rows = plain.report["layers"]
    name = next(row["name"] for row in rows if row["macs"])
    wrong = {
        '[["split","nothing","i",4]]': r"knob steps: step 0 .* expected a stage",
        "fast": "knob steps: steps: expected a list in JSON",
    }
    for steps, message in wrong.items():
        with pytest.raises(VdlaError, match=message) as caught:
            vdla.compile(model, target="cpu", knobs={name: {"steps": steps}})
        assert "\n" not in str(caught.value)


@pytest.mark.more
@pytest.mark.slow
def test_layers_of_the_accelerator_are_compiled_by_the_steps_of_their_records(
    tmp_path: Path,
) -> None:
    net = Net("two", True)
    x = net.conv(net.input(1, 32, 10, 10), 48, 3, 1)
    net.output(net.conv(net.max_pool(x, 2, 2), 32, 1, 1))
    model, records = net.model(), tmp_path / "r.jsonl"
    report = vdla.tune(model, "sim", records=records, trials=6, tuner="auto")
    rows = report["tasks"]
    assert len(rows) == 2 and not any(row["failed"] for row in rows)
    assert all(row["best"] <= row["planner"] == row["curve"][0] for row in rows)
    assert report["total"]["tuned"] <= report["total"]["planner"]

    # Of each layer, the steps that are not the planner's, whatever they cost.
    trials = Records.load(records).trials
    alone = tmp_path / "alone.jsonl"
    for key in dict.fromkeys(trial.key for trial in trials):
        own = next(t for t in trials if t.key == key and t.knobs["steps"])
        append(alone, [replace(own, cost=1.0)])
    tuned, plain = (vdla.compile(model, records=file) for file in (alone, "/dev/null"))
    layers = [layer for layer in tuned.compiled.layers if layer.knobs.get("steps")]
    assert {layer.chosen_by for layer in layers} == {"record"} and len(layers) == 2
    image = np.random.default_rng(0).normal(size=(1, 32, 10, 10)).astype(np.float32)
    assert np.array_equal(tuned.run(image)[0], plain.run(image)[0])
    assert tuned.program.to_bytes() != plain.program.to_bytes()


def test_steps_that_need_more_than_the_share_of_a_layer_are_refused() -> None:
    net = Net("one", True)
    net.output(net.conv(net.input(1, 32, 10, 10), 48, 1, 1))
    target = Accelerator(Options(HwParams(), MEMORY_PRESETS["vta"]))
    (task,) = find_tasks(net.model(), target, by_steps=True)
    layer: Any = task.layer
    found = make_programs(task)
    point = found.made(lambda opening: opening.options[-1])
    assert point is not None and found.is_sound(point) and found.fits(point)
    knobs, context = found.knobs(point), layer.workload.context
    less = replace(context, budget=replace(context.budget, inp=1))
    space = layer.template.space(replace(layer.workload, context=less))
    assert "inp needs" in space.refuse(knobs) and "entries of 1" in space.refuse(knobs)


def test_the_cheaper_of_two_records_decides_between_steps_and_the_template() -> None:
    net = Net("product", False)
    net.output(net.dense(net.input(8, 96), 64))
    target = Cpu(Options(HwParams(), MEMORY_PRESETS["vta"]))
    steps, plain = (
        find_tasks(net.model(), target, by_steps=by_steps)[0] for by_steps in (True, False)
    )
    assert steps.key.workload == plain.key.workload
    log = to_text(
        processor_program(
            expression_of_workload(steps.layer.workload).output,
            lambda opening: opening.options[0],
            8,
        ).log
    )
    plan = plain.plan()
    assert plan is not None and log
    for cost, wanted in ((1.0, {"steps": log}), (3.0, dict(plan.knobs))):
        records = Records(
            [Record(steps.key, {"steps": log}, cost), Record(plain.key, plan.knobs, 2.0)]
        )
        chooser = Chooser(target.name, target.machine_key, records=records)
        layer = plain.layer
        assert choose_knobs(layer.graph, layer.node, target.processor, chooser) == wanted
