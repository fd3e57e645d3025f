"""Trials of candidates, here or on the workers of a Dask scheduler.

Any worker compiles; a device measures one program at a time. Each worker runs trials in a sandbox.
"""

from __future__ import annotations

import pickle
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any

from ...isa.errors import VdlaError
from ...runtime.workers import Workers
from ..choose.space import Knobs
from .sandbox import Sandbox, TrialFailed
from .search import Outcome
from .task import Task

#: A pickled None: what functions of no layer get.
_NOTHING = b"N."


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


class Alone:
    """Trials one after another in one sandbox, without a scheduler."""

    def __init__(self, steps: Steps, timeout_s: float):
        self.steps, self._sandbox = steps, Sandbox(timeout_s)
        self._task: Task | None = None
        self._subject = b""

    def measure(self, task: Task, batch: Sequence[Knobs]) -> Iterator[tuple[int, Outcome]]:
        """The outcomes of a batch, by index."""
        subject = self._make_subject(task)
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
            return self._sandbox.call(function, self._make_subject(task), *args)
        except TrialFailed as error:
            raise VdlaError(f"{task.layers[0]}: {error}") from None

    def _make_subject(self, task: Task) -> bytes:
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
    address, workers : of the scheduler, see :class:`Workers`
    timeout_s : seconds that a step of a trial may take

    Raises
    ------
    VdlaError
        Where there is no scheduler, or none of its workers has the device.
    """

    def __init__(self, steps: Steps, address: str | None, workers: int, timeout_s: float):
        self.steps, self.timeout_s = steps, timeout_s
        self.workers = Workers(steps.device, address, workers)
        self._task: Task | None = None
        self._subject: Any = None

    def measure(self, task: Task, batch: Sequence[Knobs]) -> Iterator[tuple[int, Outcome]]:
        """The outcomes of a batch, by index, as they come."""
        results = self.workers.results(
            lambda index: self._submitted(task, batch[index]), len(batch)
        )
        for index, found in results:
            failed = isinstance(found, Exception)
            yield index, Outcome(None, str(found)) if failed else _outcome(found)

    def each(
        self, function: Callable[..., Any], jobs: Sequence[tuple[Any, ...]]
    ) -> Iterator[tuple[int, Any, str]]:
        """``function(None, *job)`` for each job, in the sandboxes of workers with the device: by
        index, as they come, what it returned, or why it did not.
        """
        results = self.workers.results(
            lambda index: self.workers.submit(
                call_step, function, _NOTHING, jobs[index], self.timeout_s
            ),
            len(jobs),
        )
        for index, made in results:
            found, error, _ = (None, str(made), 0.0) if isinstance(made, Exception) else made
            yield index, found, error

    def _submitted(self, task: Task, knobs: Knobs) -> Any:
        """The future of a trial: on any worker what is compiled, then on a device its cost."""
        subject, steps = self._make_subject(task), self.steps
        made: Any = (knobs, "", 0.0)
        if steps.compile is not None:
            made = self.workers.submit(
                compile_step, steps, subject, knobs, self.timeout_s, on_device=False
            )
        return self.workers.submit(measure_step, steps, subject, made, self.timeout_s)

    def call(self, function: Callable[..., Any], task: Task, *args: Any) -> Any:
        """As :meth:`Alone.call`, on a worker with the device."""
        subject = self._make_subject(task)
        found, error, _ = self.workers.submit(
            call_step, function, subject, args, self.timeout_s
        ).result()
        if error:
            raise VdlaError(f"{task.layers[0]}: {error}")
        return found

    def _make_subject(self, task: Task) -> Any:
        """The future of the task's layer on all workers."""
        if task is not self._task:
            self._task, self._subject = task, self.workers.share(_pickled(task))
        return self._subject

    def close(self) -> None:
        """End the workers, if they are this pool's own."""
        self.workers.close()


#: What a step hands on: a result, or why it failed; and the seconds that passed.
_Made = tuple[Any, str, float]


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
