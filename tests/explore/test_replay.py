"""Searches replayed on a space whose designs are all known, by a formula."""

from __future__ import annotations

import gzip
import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from vdla.bench.networks import find_model
from vdla.bench.sweep import Results, measure_point
from vdla.explore import enumeration
from vdla.explore.enumeration import Enumeration, enumerate_designs, possible
from vdla.explore.exploration import Exploration
from vdla.explore.front import front
from vdla.explore.ladder import Design, Ladder
from vdla.explore.replay import METHODS, choose_methods, curve, replay_rows
from vdla.explore.spec import Spec
from vdla.explore.surrogate import Process, SurrogateSearch
from vdla.isa.errors import VdlaError
from vdla.isa.params import HwParams

MACS = 1_000_000
SPEC = Spec(
    networks={"dqn": 1.0},
    objectives=("cycles", "bram"),
    limits={},
    knobs={
        "block": (4, 8, 16), "vector_passes": (1, 2, 4), "acc_depth": (128, 512, 2048),
        "wgt_depth": (64, 256, 1024), "inp_depth": (256, 1024), "loads_in_flight": (1, 4),
    },
)  # fmt: skip


def formula(params: HwParams) -> dict[str, Any]:
    """Cycles above the bound that depend on all knobs."""
    cycles = MACS / params.peak_macs_per_cycle * (1.3 + 90 / params.acc_depth)
    cycles *= 1 + 8 * params.block / params.wgt_depth / params.loads_in_flight
    cycles *= 1 + 0.2 * (params.vector_passes - 1) * params.block / 16 + 100 / params.inp_depth
    accesses = {n: {"read": 9, "written": 3} for n in ("inp", "wgt", "uop", "acc", "out")}
    return {
        "cycles": round(cycles),
        "coverage": {"macs_on_accelerator": MACS, "macs_total": MACS},
        "dram": {"read_bytes": 4000, "written_bytes": 500},
        "accesses": accesses | {n: {"read": 1, "written": 0} for n in ("par", "tmp")},
        "error": None, "layers": ["not kept"],
    }  # fmt: skip


@pytest.fixture
def table(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Enumeration:
    def measure(points, results, workers, progress):
        return [formula(point.params) for point in points], False

    monkeypatch.setattr(enumeration, "measure_points", measure)
    return enumerate_designs(SPEC, Results(tmp_path / "r.jsonl"), 1, lambda *_: None)


def test_every_possible_design_is_there(table: Enumeration) -> None:
    ladder = Ladder(SPEC)
    designs = list(possible(SPEC, ladder))
    assert 0 < len(designs) < SPEC.size  # some exceed the device
    assert list(table.rows) == [tuple(design.knobs.values()) for design in designs]
    for design in designs:
        params = design.params
        assert params is not None and ladder.over(ladder.of_machine(design)) == 0
        (row,) = table.rows[tuple(design.knobs.values())]
        assert row["cycles"] == formula(params)["cycles"] and "layers" not in row


def test_a_table_is_read_as_it_was_written(table: Enumeration, tmp_path: Path) -> None:
    one, other = tmp_path / "one.json.gz", tmp_path / "other.json.gz"
    table.save(one)
    found = Enumeration.load(one)
    assert found.spec == table.spec and found.first == table.first and found.rows == table.rows
    found.save(other)
    assert one.read_bytes() == other.read_bytes()


#: Tables of the package, with the fewest designs that each has.
MADE = {"dqn": 500, "digits": 2000}


@pytest.mark.fast(1)
@pytest.mark.parametrize("name", MADE)
def test_a_table_of_the_package_is_of_its_space(name: str) -> None:
    table = Enumeration.load(enumeration.TABLES / f"{name}.json.gz")
    assert table.spec == Spec.load(enumeration.TABLES / f"{name}.toml")
    designs = list(possible(table.spec, Ladder(table.spec)))
    assert list(table.rows) == [tuple(design.knobs.values()) for design in designs]
    assert len(designs) >= MADE[name]


@pytest.mark.slow
@pytest.mark.parametrize(
    ("name", "part"), [("dqn", 0.0), ("dqn", 0.99), ("digits", 0.3), ("digits", 0.8)]
)
def test_a_table_of_the_package_has_the_cycles_of_the_simulator(name: str, part: float) -> None:
    """If not: ``vdla bench explore --make explore/tables/NAME.toml``."""
    table = Enumeration.load(enumeration.TABLES / f"{name}.json.gz")
    knobs = list(table.rows)[int(part * len(table.rows))]
    design = Design.of(table.spec, dict(zip(table.spec.knobs, knobs, strict=True)))
    assert design.params is not None and design.memory is not None
    for network, known in zip(table.spec.networks, table.rows[knobs], strict=True):
        row = measure_point(None, network, design.params, design.memory, design.vthreads)
        part_of = {name: row[name] for name in known}
        if "coverage" in known:  # the tables have its MACs alone
            part_of["coverage"] = {name: row["coverage"][name] for name in known["coverage"]}
        assert known == part_of


@pytest.mark.parametrize(
    "data",
    [b"text", gzip.compress(b"{}"), gzip.compress(json.dumps({"version": 0}).encode())],
    ids=["text", "empty", "old"],
)
def test_something_else_is_refused(data: bytes, tmp_path: Path) -> None:
    path = tmp_path / "t.json.gz"
    path.write_bytes(data)
    with pytest.raises(VdlaError, match=r"t.json.gz: expected a table of vdla bench explore"):
        Enumeration.load(path)


def test_a_table_lies_where_its_models_are(table: Enumeration, tmp_path: Path) -> None:
    """It names files from its own place, so that a copied pair works, and says which is missing."""
    model, folder = tmp_path / "models" / "m.onnx", tmp_path / "tables"
    model.parent.mkdir()
    folder.mkdir()
    model.write_bytes(find_model("C8", 1).SerializeToString())
    renamed = replace(table.spec, networks={str(model): 1.0})
    Enumeration(renamed, table.first, table.rows).save(folder / "t.json.gz")
    found = Enumeration.load(folder / "t.json.gz")
    (name,) = found.spec.networks
    assert Path(name).samefile(model) and "tables" in name
    model.unlink()
    with pytest.raises(VdlaError, match=r"t.json.gz: model: expected a file, .*m.onnx"):
        Enumeration.load(folder / "t.json.gz")


def test_an_interrupted_enumeration_makes_no_table(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(enumeration, "measure_points", lambda *_: ([], True))
    with pytest.raises(VdlaError, match="interrupted; the same command goes on"):
        enumerate_designs(SPEC, Results(tmp_path / "r.jsonl"), 1, lambda *_: None)


@pytest.mark.slow
@pytest.mark.parametrize("method", ["random", "random-bounds"])
def test_a_search_through_everything_has_the_whole_front(table: Enumeration, method: str) -> None:
    (row,) = replay_rows(table, [method], 1, len(table.rows))
    assert row["curve"][-1] == pytest.approx(1)
    assert row["curve"] == sorted(row["curve"]) and row["curve"][0] < 0.9
    needed = row["trials_to_99pct"]
    assert row["curve"][needed - 1] >= 0.99 > row["curve"][needed - 2]
    assert row["regret"] == pytest.approx(1 - np.mean(row["curve"]))


def test_a_replay_does_what_an_exploration_does(table: Enumeration) -> None:
    """With the bounds on, it is the same search."""
    found = curve(table, METHODS["nsga2-bounds"], 3, 20)
    spec = replace(table.spec, search="nsga2", seed=3, trials=21)
    exploration = Exploration(spec, Results(Path("/dev/null")), 1, measure=table.measure)
    exploration.run()
    assert exploration.measured == 21 and len(found) == 20
    assert found[-1] == pytest.approx(exploration.state.hypervolume)


@pytest.mark.slow
def test_the_surrogate_needs_fewer_designs_than_random_search(table: Enumeration) -> None:
    rows = replay_rows(table, ["random", "surrogate"], 3, 60)
    random, surrogate = rows
    assert surrogate["trials_to_99pct"] is not None and surrogate["trials_to_99pct"] <= 40
    assert random["trials_to_99pct"] is None
    assert surrogate["regret"] < random["regret"]


@pytest.mark.slow
def test_the_surrogate_proposes_every_possible_design_once(table: Enumeration) -> None:
    ladder = Ladder(SPEC)
    ladder.learn(Design.of(SPEC, {}), table.first)
    search, asked = SurrogateSearch(SPEC, ladder), []
    while len(asked) <= len(table.rows) and (knobs := search.ask()) is not None:
        asked.append(tuple(knobs.values()))
    assert len(asked) == len(table.rows) and set(asked) == set(table.rows)


def test_the_surrogate_begins_at_the_front_of_the_bounds(table: Enumeration) -> None:
    """Before any run the first machine alone says how far designs are from their bounds."""
    ladder = Ladder(SPEC)
    ladder.learn(Design.of(SPEC, {}), table.first)
    designs = [Design.of(SPEC, dict(zip(SPEC.knobs, knobs, strict=True))) for knobs in table.rows]
    bounds = [ladder.bound(design) for design in designs]
    values = [tuple(bound[name] for name in SPEC.objectives) for bound in bounds]
    best = {values[index] for index in front(values)}
    knobs = SurrogateSearch(SPEC, ladder).ask()
    assert knobs is not None
    bound = ladder.bound(Design.of(SPEC, knobs))
    assert tuple(bound[name] for name in SPEC.objectives) in best


@pytest.mark.short(1)
@pytest.mark.slow
@pytest.mark.parametrize(
    ("name", "seeds"), [("dqn", 5), pytest.param("digits", 20, marks=pytest.mark.sweep)]
)
def test_the_surrogate_is_ahead_on_the_tables_of_the_package(name: str, seeds: int) -> None:
    """A fourth of the designs that random search needs, and better than TPE at any number."""
    table = Enumeration.load(enumeration.TABLES / f"{name}.json.gz")
    (random,) = replay_rows(table, ["random"], 20, 150)
    surrogate, tpe = replay_rows(table, ["surrogate", "tpe"], seeds, 40)
    assert 4 * surrogate["trials_to_99pct"] <= random["trials_to_99pct"]
    for number in (5, 10, 20):
        assert surrogate["curve"][number - 1] >= tpe["curve"][number - 1]


def test_a_process_predicts_what_it_has_seen() -> None:
    """And is sure there, unsure elsewhere; a knob that does not matter gets a long length."""
    rng = np.random.default_rng(1)
    places = rng.random((40, 2))
    values = np.sin(5 * places[:, 0])
    lengths = np.ones(2)
    process = Process(places, values, lengths)
    seen = process.predict(places)
    assert np.abs(seen.mean - values).max() < 0.01 and seen.variance.max() < 0.05**2
    assert lengths[1] > lengths[0]
    others = rng.random((30, 2))
    assert np.abs(process.predict(others).mean - np.sin(5 * others[:, 0])).max() < 0.05
    far = process.predict(np.array([[4.0, 0.5]]))
    assert far.variance[0] > 100 * seen.variance.max()


def test_what_is_believed_is_as_if_it_were_seen() -> None:
    """A process of the same lengths that has seen the predicted values is as sure everywhere."""
    rng = np.random.default_rng(2)
    # So many that lengths stay.
    places, others = rng.random((70, 3)), rng.random((20, 3)) * 3
    values, lengths = places.sum(axis=1) ** 2, np.full(3, 0.5)
    found = Process(places, values, lengths).predict(others)
    before = found.variance.copy()
    for index in (4, 9):
        found.believe(index)
    both = np.vstack([places, others[[4, 9]]])
    seen = Process(both, np.concatenate([values, found.mean[[4, 9]]]), lengths).predict(others)
    np.testing.assert_allclose(found.variance, seen.variance, atol=1e-9)
    assert found.variance[4] < 0.01 < before[4]


@pytest.fixture
def scheduled(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Enumeration:
    """A space in which the best virtual threads depend on the depth of the accumulators."""

    def measure(points, results, workers, progress):
        rows = []
        for point in points:
            row = formula(point.params)
            best = {128: 1, 512: 2, 2048: 4}.get(point.params.acc_depth, 2)
            row["cycles"] = round(row["cycles"] * (1 if point.vthreads == best else 1.5))
            rows.append(row)
        return rows, False

    monkeypatch.setattr(enumeration, "measure_points", measure)
    knobs = {**SPEC.knobs, "vthreads": (1, 2, 4)}
    del knobs["loads_in_flight"]
    spec = replace(SPEC, knobs=knobs)
    return enumerate_designs(spec, Results(tmp_path / "r.jsonl"), 1, lambda *_: None)


@pytest.mark.slow
def test_hardware_first_leaves_schedules_for_the_second_half(scheduled: Enumeration) -> None:
    spec = replace(scheduled.spec, search="hardware-first", seed=1, trials=31)
    found = Exploration(spec, Results(Path("/dev/null")), 1, measure=scheduled.measure)
    found.run()
    threads = [o.design.vthreads for o in found.outcomes if o.rows]
    first = [count for count in threads if count == 2]
    assert len(first) >= 15 and set(threads) == {1, 2, 4}
    assert set(threads[:15]) == {2} and set(threads[20:]) == {1, 4}
    # What is tried then has the hardware of a design of the first half.
    machines = [o.design.params for o in found.outcomes if o.rows]
    assert set(machines[20:]) <= set(machines[:20])


def test_schedules_are_measured_apart(scheduled: Enumeration) -> None:
    place = list(scheduled.spec.knobs).index("vthreads")
    knobs = next(knobs for knobs in scheduled.rows if 2048 in knobs)  # of acc_depth alone
    cycles = [
        scheduled.rows[(*knobs[:place], count, *knobs[place + 1 :])][0]["cycles"]
        for count in (1, 2, 4)
    ]
    assert cycles[0] == cycles[1] > cycles[2]


@pytest.mark.slow
def test_methods_suit_the_space(table: Enumeration, scheduled: Enumeration) -> None:
    assert "hardware-first" not in choose_methods(table.spec)
    assert "hardware-first" in choose_methods(scheduled.spec)
    with pytest.raises(VdlaError, match=r"methods: expected some of random, .*, got 'hardware-f"):
        choose_methods(table.spec, ["hardware-first"])
