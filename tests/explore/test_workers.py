"""Workers that die: an exploration ends as if they had not, here and on a scheduler's workers."""

from __future__ import annotations

import signal
import subprocess
from collections.abc import Iterator
from contextlib import closing
from pathlib import Path
from typing import Any

import pytest
from vdla.api.tuning import STEPS
from vdla.bench.sweep import Results, Row
from vdla.cli import run_app
from vdla.compiler.tune.pool import Pool
from vdla.compiler.tune.sandbox import Sandbox
from vdla.explore.exploration import Exploration
from vdla.explore.spec import Spec

from ..cluster import PATIENCE_S, Cluster, two_workers

pytestmark = pytest.mark.more

DIGITS = Path(__file__).resolve().parents[2] / "examples" / "models" / "digits_int8.onnx"
SPEC = Spec(
    networks={str(DIGITS): 1.0}, objectives=("cycles", "bram"), limits={},
    knobs={"acc_depth": (256, 512, 1024), "wgt_depth": (128, 256)}, hw="8x8", search="nsga2",
    seed=3, trials=5,
)  # fmt: skip


def told(exploration: Exploration) -> list[tuple]:
    return [(dict(o.design.knobs), o.rung, o.values) for o in exploration.outcomes]


def kept(results: Results) -> dict[str, Row]:
    return {key: row | {"wall_s": 0} for key, row in results.rows.items()}


@pytest.fixture(scope="module")
def whole(tmp_path_factory: pytest.TempPathFactory) -> Exploration:
    """An exploration that nothing came between."""
    found = Exploration(SPEC, Results(tmp_path_factory.mktemp("whole") / "r.jsonl"), 1)
    found.run()
    assert found.measured == SPEC.trials
    return found


@pytest.mark.slow
def test_a_process_that_is_killed_loses_nothing(
    whole: Exploration, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    call, calls = Sandbox.call, []

    def killing(self: Sandbox, *args: Any) -> Any:
        calls.append(args)
        if len(calls) == 3 and self._process is not None:
            self._process.send_signal(signal.SIGKILL)
            self._process.wait()
        return call(self, *args)

    monkeypatch.setattr(Sandbox, "call", killing)
    found = Exploration(SPEC, Results(tmp_path / "r.jsonl"), 1)
    found.run()
    assert len(calls) == SPEC.trials + 1  # one was made again
    assert told(found) == told(whole) and kept(found.results) == kept(whole.results)


@pytest.fixture
def cluster(tmp_path: Path) -> Iterator[Cluster]:
    pytest.importorskip("distributed")
    with two_workers(STEPS["sim"].device, tmp_path) as cluster:
        yield cluster


class Killing(Results):
    """Results that kill a worker as soon as there are some."""

    victim: subprocess.Popen | None = None

    def add(self, key: str, row: Row) -> None:
        super().add(key, row)
        if len(self.rows) == 2 and self.victim is not None:
            self.victim.send_signal(signal.SIGKILL)


@pytest.mark.slow
def test_a_worker_of_a_scheduler_that_is_killed_loses_nothing(
    whole: Exploration, cluster: Cluster, tmp_path: Path
) -> None:
    results = Killing(tmp_path / "r.jsonl")
    results.victim = cluster.workers[0]
    with closing(Pool(STEPS["sim"], cluster.address, 0, PATIENCE_S)) as pool:
        pool.workers.client.wait_for_workers(2, timeout=PATIENCE_S)
        found = Exploration(SPEC, results, 1, pool=pool)
        found.run()
    assert cluster.workers[0].wait() == -signal.SIGKILL and cluster.workers[1].poll() is None
    assert told(found) == told(whole) and kept(results) == kept(whole.results)


@pytest.mark.parametrize("address", ["host", "tcp://", ""])
def test_an_address_that_is_none_is_one_line(
    address: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    spec = tmp_path / "spec.toml"
    spec.write_text(f'objectives = ["cycles"]\nknobs.acc_depth = [256]\nnetworks."{DIGITS}" = 1\n')
    assert run_app(["explore", str(spec), "--scheduler", address]) == 2
    (line,) = capsys.readouterr().err.splitlines()
    assert "scheduler: expected an address such as tcp://host:8786" in line


def test_a_picture_needs_two_objectives(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    spec = tmp_path / "spec.toml"
    spec.write_text(f'objectives = ["cycles"]\nknobs.acc_depth = [256]\nnetworks."{DIGITS}" = 1\n')
    assert run_app(["explore", str(spec), "--png", str(tmp_path / "front.png")]) == 2
    assert "png: expected two objectives to draw, got cycles" in capsys.readouterr().err
