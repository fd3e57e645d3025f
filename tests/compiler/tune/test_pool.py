"""Two workers of a real scheduler, in processes of their own, over TCP."""

from __future__ import annotations

import os
import signal
import socket
import sys
import time
from collections.abc import Iterator
from contextlib import closing, suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pytest
from vdla.compiler.tune.candidates import Candidates
from vdla.compiler.tune.pool import Alone, Pool, Steps
from vdla.compiler.tune.search import Search, make_explorer
from vdla.compiler.tune.task import Task
from vdla.isa.errors import VdlaError

from ...cluster import PATIENCE_S, Cluster, two_workers
from .toys import Toy, ToyWorkload

pytest.importorskip("distributed")
HERE = Path(__file__).parent


@dataclass(frozen=True)
class Where:
    """What trials get: a folder, and members that a task asks of a layer."""

    folder: str
    template: Any = field(default_factory=Toy)
    workload: Any = field(default_factory=ToyWorkload)

    def __reduce__(self) -> Any:  # workers know no toys
        return dict, ((("folder", self.folder), ("size", 0)),)


@pytest.fixture(scope="module")
def trials() -> Iterator[Any]:
    """The module of trials, which workers import, too."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("PYTHONPATH", str(HERE))
        patch.syspath_prepend(str(HERE))
        import trials  # type: ignore[import-not-found]

        yield trials
    sys.modules.pop("trials", None)


@pytest.fixture
def another_pool() -> Iterator[None]:
    """Something listens at the port that Dask's scheduler takes unless told otherwise."""
    with socket.socket() as taken:
        with suppress(OSError):  # taken already
            taken.bind(("", 8787))
            taken.listen()
        yield


@pytest.fixture
def cluster(trials: Any, tmp_path: Path) -> Iterator[Cluster]:
    with two_workers("toy", tmp_path) as cluster:
        yield cluster


def search_in(folder: Path) -> Search:
    folder.mkdir(exist_ok=True)
    layer: Any = Where(str(folder))
    task = Task("toy", "machine", layer, ("layer",))
    return Search(task, make_explorer("ga", task, Candidates(task.space), 1, loops=None))


def wait_for_workers(pool: Pool, count: int) -> None:
    pool.workers.client.wait_for_workers(count, timeout=PATIENCE_S)


@pytest.mark.more
@pytest.mark.slow
def test_two_workers_find_what_one_process_finds_and_a_dead_worker_costs_no_record(
    cluster: Cluster, trials: Any, tmp_path: Path
) -> None:
    steps = Steps("toy", None, trials.slowly)
    alone = search_in(tmp_path / "alone")
    with closing(Alone(Steps("toy", None, trials.size_of), 60.0)) as pool:
        alone.run(pool.measure, 48)

    folder = tmp_path / "pool"
    search, kept = search_in(folder), []

    def keep(knobs: Any, outcome: Any) -> None:
        kept.append((tuple(knobs.values()), outcome.cost))
        if len(kept) == 10:
            cluster.workers[0].send_signal(signal.SIGKILL)

    with closing(Pool(steps, cluster.address, 0, 60.0)) as pool:
        wait_for_workers(pool, 2)
        search.run(pool.measure, 48, kept=keep)
    assert {str(worker.pid) for worker in cluster.workers} <= set(os.listdir(folder))
    assert cluster.workers[0].wait() == -signal.SIGKILL and cluster.workers[1].poll() is None
    assert search.tried == alone.tried and search.best == alone.best
    assert len(kept) == len(set(kept)) == 48 and search.failed == 0


@pytest.mark.more
@pytest.mark.slow
def test_what_is_shared_outlives_the_worker_that_has_it(cluster: Cluster, trials: Any) -> None:
    """A scheduler drops all but one of several copies, in seconds."""
    with closing(Pool(Steps("toy", None, trials.slowly), cluster.address, 0, 60.0)) as pool:
        wait_for_workers(pool, 2)
        workers, client = pool.workers, pool.workers.client
        shared = workers.share(b"layer")
        processes: Any = client.run(os.getpid)
        deadline = time.monotonic() + PATIENCE_S
        while len(holders := client.who_has([shared])[shared.key]) != 1:
            assert time.monotonic() < deadline
            time.sleep(0.1)
        os.kill(processes[holders[0]], signal.SIGKILL)
        assert workers.submit(len, shared).result(PATIENCE_S) == 5


@pytest.mark.more
@pytest.mark.slow
def test_a_scheduler_without_the_device_is_one_line(
    cluster: Cluster, trials: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("vdla.runtime.workers._WORKERS_S", 5.0)
    with pytest.raises(VdlaError, match=r"expected a worker with other .* --resources other=1"):
        Pool(Steps("other", None, trials.slowly), cluster.address, 0, 60.0)


@pytest.mark.slow
def test_an_address_without_a_scheduler_is_one_line(
    trials: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("vdla.runtime.workers._WORKERS_S", 1.0)
    with pytest.raises(VdlaError, match=r"a Dask scheduler at tcp://127\.0\.0\.1:1, got none"):
        Pool(Steps("toy", None, trials.slowly), "tcp://127.0.0.1:1", 0, 60.0)


@pytest.mark.more
@pytest.mark.slow
@pytest.mark.usefixtures("another_pool")
def test_workers_of_the_pool_itself_compile_and_measure(trials: Any, tmp_path: Path) -> None:
    search = search_in(tmp_path / "own")
    steps = Steps("toy", trials.doubled, trials.size_of)
    batch = [{"a": 1}, {"a": 2, "then": "crash"}, {"a": 3, "then": "refuse"}, {"a": 4}]
    with closing(Pool(steps, None, 2, 60.0)) as pool:
        outcomes = dict(pool.measure(search.task, batch))
        assert pool.call(trials.size_of, search.task, {"a": 7}) == 7.0
        with pytest.raises(VdlaError, match="layer: no such tile"):
            pool.call(trials.size_of, search.task, {"a": 7, "then": "refuse"})
    assert {i: (o.cost, o.error) for i, o in outcomes.items()} == {
        0: (2.0, ""), 1: (None, "crashed: SIGSEGV"), 2: (None, "no such tile"), 3: (8.0, ""),
    }  # fmt: skip
