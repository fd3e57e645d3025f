"""Devices that measure, on the workers of a Dask scheduler.

A worker says which devices it has by its resources, such as ``vdla-sim=1``. Any worker compiles;
a device measures one program at a time. Each worker runs trials in a sandbox.
"""

from __future__ import annotations

import contextlib
import pickle
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any
from urllib.parse import urlsplit

from ...isa.errors import VdlaError
from ..choose.space import Knobs
from .sandbox import Sandbox, TrialFailed
from .search import Outcome
from .task import Task

#: How often a trial is given to a worker again whose earlier one died with it.
RETRIES = 3
#: What a step hands on: a result, or why it failed; and the seconds that passed.
_Made = tuple[Any, str, float]
#: A pickled None: what functions of no layer get.
_NOTHING = b"N."
#: Seconds until workers with the device must be there.
_WORKERS_S = 30.0


@dataclass(frozen=True)
class Steps:
    """How a trial is made, in functions of modules, which take a layer and knobs.

    Attributes
    ----------
    device : the resource of workers that can measure
    compile : gives what is measured, on any worker; None where only the device can compile
    measure : the cost of what ``compile`` gave, or of the knobs themselves
    """

    device: str
    compile: Callable[[Any, Knobs], Any] | None
    measure: Callable[[Any, Any], float]


def check_address(address: str) -> None:
    """Raise VdlaError for what cannot be the address of a scheduler."""
    try:
        parts = urlsplit(address)
        complete = bool(parts.scheme and parts.hostname and parts.port)
    except ValueError:
        complete = False
    if not complete:
        raise VdlaError(f"scheduler: expected an address such as tcp://host:8786, got {address!r}")


class Alone:
    """Trials one after another in one sandbox, without a scheduler."""

    def __init__(self, steps: Steps, timeout_s: float):
        self.steps, self._sandbox = steps, Sandbox(timeout_s)
        self._task: Task | None = None
        self._subject = b""

    def measure(self, task: Task, batch: Sequence[Knobs]) -> Iterator[tuple[int, Outcome]]:
        """The outcomes of a batch, by index."""
        subject = self._subject_of(task)
        for index, knobs in enumerate(batch):
            begun = time.monotonic()
            made = _step(self._sandbox, self.steps.compile, subject, knobs)
            yield index, _outcome(_measured(self._sandbox, self.steps, subject, made, begun))

    def call(self, function: Callable[..., Any], task: Task, *args: Any) -> Any:
        """``function(layer, *args)``, where trials are measured.

        Raises
        ------
        VdlaError
            When it fails.
        """
        try:
            return self._sandbox.call(function, self._subject_of(task), *args)
        except TrialFailed as error:
            raise VdlaError(f"{task.layers[0]}: {error}") from None

    def _subject_of(self, task: Task) -> bytes:
        if task is not self._task:
            self._task, self._subject = task, _pickled(task)
        return self._subject

    def close(self) -> None:
        """End the sandbox."""
        self._sandbox.close()


class Pool:
    """Trials on the workers of a scheduler.

    Parameters
    ----------
    steps : how trials are made
    address : of a scheduler, such as ``tcp://host:8786``; by default one in this process, with
        ``workers`` processes
    timeout_s : seconds that a step of a trial may take

    Raises
    ------
    VdlaError
        Where there is no scheduler, or none of its workers has the device.
    """

    def __init__(self, steps: Steps, address: str | None, workers: int, timeout_s: float):
        from distributed import Client, LocalCluster

        no_dashboard: Any = None
        self.steps, self.timeout_s = steps, timeout_s
        self._cluster = None
        if address is None:
            self._cluster = LocalCluster(
                n_workers=workers, threads_per_worker=1, processes=True,
                dashboard_address=no_dashboard, resources={steps.device: 1}, memory_limit=0,
                silence_logs=40,
            )  # fmt: skip
        try:
            self._client = Client(
                self._cluster or address, timeout=_WORKERS_S, set_as_default=False
            )
        except (OSError, ValueError, TimeoutError) as error:
            raise VdlaError(
                f"scheduler: expected a Dask scheduler at {address}, got none"
                f" ({' '.join(str(error).split()) or type(error).__name__})"
            ) from None
        self._wait_for_devices(address)
        self._task: Task | None = None
        self._subject: Any = None

    def _wait_for_devices(self, address: str | None) -> None:
        """Wait until a worker has the device."""
        deadline = time.monotonic() + _WORKERS_S
        while True:
            workers = self._client.scheduler_info(n_workers=-1)["workers"].values()
            if any(worker["resources"].get(self.steps.device) for worker in workers):
                return
            if time.monotonic() > deadline:
                self.close()
                raise VdlaError(
                    f"scheduler: expected a worker with {self.steps.device} at {address}, got"
                    f" {len(workers)} workers without; start one with dask worker {address}"
                    f" --nthreads 1 --resources {self.steps.device}=1"
                )
            time.sleep(0.1)

    def measure(self, task: Task, batch: Sequence[Knobs]) -> Iterator[tuple[int, Outcome]]:
        """The outcomes of a batch, by index, as they come."""
        for index, made in self._gathered(lambda i: self._submitted(task, batch[i]), len(batch)):
            yield index, _outcome(made)

    def each(
        self, function: Callable[..., Any], jobs: Sequence[tuple[Any, ...]]
    ) -> Iterator[tuple[int, Any, str]]:
        """``function(None, *job)`` for each job, on workers with the device: by index, as they
        come, what it returned, or why it did not.
        """

        def submit(index: int) -> Any:
            return self._client.submit(
                call_step, function, _NOTHING, jobs[index], self.timeout_s, pure=False,
                resources={self.steps.device: 1},
            )  # fmt: skip

        for index, (found, error, _) in self._gathered(submit, len(jobs)):
            yield index, found, error

    def _gathered(self, submit: Callable[[int], Any], count: int) -> Iterator[tuple[int, _Made]]:
        """What jobs give, by index, as they come. A job whose worker died is submitted again."""
        from distributed import as_completed

        running = {submit(index): (index, 0) for index in range(count)}
        arriving = as_completed(list(running), loop=self._client.loop)
        try:
            for future in arriving:
                index, tries = running.pop(future)
                if future.status == "finished":
                    yield index, future.result()
                elif tries < RETRIES:
                    again = submit(index)
                    running[again] = index, tries + 1
                    arriving.add(again)
                else:
                    yield (
                        index,
                        (None, f"{RETRIES + 1} workers died with it ({future.status})", 0.0),
                    )
        finally:
            for future in running:
                with contextlib.suppress(Exception):
                    future.cancel()

    def _submitted(self, task: Task, knobs: Knobs) -> Any:
        """The future of a trial: on any worker what is compiled, then on a device its cost."""
        subject, steps = self._subject_of(task), self.steps
        made: Any = (knobs, "", 0.0)
        if steps.compile is not None:
            made = self._client.submit(
                compile_step, steps, subject, knobs, self.timeout_s, pure=False
            )
        return self._client.submit(
            measure_step, steps, subject, made, self.timeout_s, pure=False,
            resources={steps.device: 1},
        )  # fmt: skip

    def call(self, function: Callable[..., Any], task: Task, *args: Any) -> Any:
        """As :meth:`Alone.call`, on a worker with the device."""
        future = self._client.submit(
            call_step, function, self._subject_of(task), args, self.timeout_s, pure=False,
            resources={self.steps.device: 1},
        )  # fmt: skip
        found, error, _ = future.result()
        if error:
            raise VdlaError(f"{task.layers[0]}: {error}")
        return found

    def _subject_of(self, task: Task) -> Any:
        """The future of the task's layer on all workers."""
        if task is not self._task:
            self._task = task
            found: Any = self._client.scatter([_pickled(task)], broadcast=True)
            self._subject = found[0]
        return self._subject

    def close(self) -> None:
        """End the workers, if they are this pool's own."""
        self._client.close()
        if self._cluster is not None:
            self._cluster.close()


def compile_step(steps: Steps, subject: bytes, knobs: Knobs, timeout_s: float) -> _Made:
    """On a worker: compile a candidate."""
    return _step(_of_worker(timeout_s), steps.compile, subject, knobs)


def measure_step(steps: Steps, subject: bytes, made: _Made, timeout_s: float) -> _Made:
    """On a worker with the device: measure what was compiled."""
    begun = time.monotonic() - made[2]
    return _measured(_of_worker(timeout_s), steps, subject, made, begun)


def call_step(function: Callable[..., Any], subject: bytes, args: tuple, timeout_s: float) -> _Made:
    """On a worker with the device: call some function of a layer."""
    return _step(_of_worker(timeout_s), function, subject, *args)


def _of_worker(timeout_s: float) -> Sandbox:
    """The sandbox of the worker that this runs on. It ends with the worker, whose pipes close."""
    from distributed import get_worker

    worker = get_worker()
    if not hasattr(worker, "vdla_sandbox"):
        worker.vdla_sandbox = Sandbox(timeout_s)  # type: ignore[attr-defined]
    sandbox: Sandbox = worker.vdla_sandbox  # type: ignore[attr-defined]
    sandbox.timeout_s = timeout_s
    return sandbox


def _step(
    sandbox: Sandbox, function: Callable[..., Any] | None, subject: bytes, *args: Any
) -> _Made:
    if function is None:
        return args[0], "", 0.0
    begun = time.monotonic()
    try:
        return sandbox.call(function, subject, *args), "", time.monotonic() - begun
    except TrialFailed as error:
        return None, str(error), time.monotonic() - begun


def _measured(sandbox: Sandbox, steps: Steps, subject: bytes, made: _Made, begun: float) -> _Made:
    compiled, error, _ = made
    if error:
        return None, error, time.monotonic() - begun
    cost, error, _ = _step(sandbox, steps.measure, subject, compiled)
    return cost, error, time.monotonic() - begun


def _outcome(measured: _Made) -> Outcome:
    cost, error, seconds = measured
    return Outcome(None if error else float(cost), error, seconds)


def _pickled(task: Task) -> bytes:
    return pickle.dumps(task.layer)
