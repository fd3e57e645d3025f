"""Work on the workers of a Dask scheduler.

A worker says which devices it has by its resources, such as ``vdla-sim=1``. What needs no device
runs on any worker; a device does one thing at a time.
"""

from __future__ import annotations

import contextlib
import time
from collections.abc import Callable, Iterator, Sequence
from typing import Any
from urllib.parse import urlsplit

from ..isa.errors import VdlaError

#: How often work is given to a worker again whose earlier one died with it.
RETRIES = 3
#: What Dask calls the size from which it warns of what is given to a call.
_WARNS_FROM = "distributed.admin.large-graph-warning-threshold"
#: Seconds until workers with the device must be there.
_WORKERS_S = 30.0


def check_address(address: str) -> None:
    """Raise VdlaError for what cannot be the address of a scheduler."""
    try:
        parts = urlsplit(address)
        complete = bool(parts.scheme and parts.hostname and parts.port)
    except ValueError:
        complete = False
    if not complete:
        raise VdlaError(f"scheduler: expected an address such as tcp://host:8786, got {address!r}")


class WorkLost(Exception):
    """Every worker that was given a piece of work died with it."""


class Workers:
    """The workers of a scheduler.

    Parameters
    ----------
    device : what workers must have for :meth:`submit` with ``on_device``, such as ``vdla-rtl``
    address : of a scheduler, such as ``tcp://host:8786``; by default one in this process, with
        ``processes`` workers

    Raises
    ------
    VdlaError
        Where there is no scheduler, or none of its workers has the device.
    """

    def __init__(self, device: str, address: str | None, processes: int):
        from distributed import Client, LocalCluster

        self.device = device
        self._cluster = None
        if address is None:
            # Any free port: without one, two clusters would both want the port of the dashboard.
            self._cluster = LocalCluster(
                n_workers=processes, threads_per_worker=1, processes=True,
                dashboard_address="127.0.0.1:0", resources={device: 1}, memory_limit=0,
                silence_logs=40,
            )  # fmt: skip
        try:
            self.client = Client(self._cluster or address, timeout=_WORKERS_S, set_as_default=False)
        except (OSError, ValueError, TimeoutError) as error:
            raise VdlaError(
                f"scheduler: expected a Dask scheduler at {address}, got none"
                f" ({' '.join(str(error).split()) or type(error).__name__})"
            ) from None
        self._wait_for_devices(address)

    def _wait_for_devices(self, address: str | None) -> None:
        """Wait until a worker has the device."""
        deadline = time.monotonic() + _WORKERS_S
        while True:
            workers = self.client.scheduler_info(n_workers=-1)["workers"].values()
            if any(worker["resources"].get(self.device) for worker in workers):
                return
            if time.monotonic() > deadline:
                self.close()
                raise VdlaError(
                    f"scheduler: expected a worker with {self.device} at {address}, got"
                    f" {len(workers)} workers without; start one with dask worker {address}"
                    f" --nthreads 1 --resources {self.device}=1"
                )
            time.sleep(0.1)

    def submit(self, function: Callable[..., Any], *args: Any, on_device: bool = True) -> Any:
        """The future of a call on a worker; ``args`` may be futures."""
        wanted = {self.device: 1} if on_device else None
        return self.client.submit(function, *args, pure=False, resources=wanted)

    def share(self, value: Any) -> Any:
        """The future of a value that workers fetch from one another. It is the result of a call,
        because the scheduler calls again where the only worker that has a result dies; data that is
        scattered would be lost.
        """
        from dask import config

        with config.set({_WARNS_FROM: "4 GiB"}):
            return self.client.submit(_same, value, pure=False)

    def each(self, function: Callable[..., Any], items: Sequence[tuple]) -> Iterator[tuple]:
        """``(index, function(*item))`` for each item, as they come; errors as ``function``'s.

        Raises
        ------
        VdlaError
            When every worker that was given an item died with it.
        """
        results = self.results(lambda i: self.submit(function, *items[i]), len(items))
        return _raising(results)

    def results(self, submit: Callable[[int], Any], count: int) -> Iterator[tuple[int, Any]]:
        """The index and the result of ``submit(0)``, ``submit(1)``, ... as they come.

        All are submitted before this returns. What raised a VdlaError gives that. What ended
        otherwise is submitted again; after RETRIES it gives its error, or :class:`WorkLost` where
        its workers died. Futures that still run when nobody reads on are cancelled.
        """
        return self._results({submit(index): (index, 0) for index in range(count)}, submit)

    def _results(
        self, running: dict[Any, tuple[int, int]], submit: Callable[[int], Any]
    ) -> Iterator[tuple[int, Any]]:
        """Of futures that run, with the index and how often it was submitted before."""
        from distributed import KilledWorker, as_completed

        arriving = as_completed(list(running), loop=self.client.loop)
        try:
            for future in arriving:
                index, tries = running.pop(future)
                if future.status == "finished":
                    yield index, future.result()
                    continue
                error = future.exception() if future.status == "error" else None
                if tries < RETRIES and not isinstance(error, VdlaError):
                    # Its worker died, or one that held what it needs.
                    again = submit(index)
                    running[again] = index, tries + 1
                    arriving.add(again)
                elif error is None or isinstance(error, KilledWorker):
                    yield index, WorkLost(f"{RETRIES + 1} workers died with it ({future.status})")
                else:
                    yield index, error
        finally:
            for future in running:
                with contextlib.suppress(Exception):
                    future.cancel()

    def close(self) -> None:
        """End the workers, if they are of a scheduler in this process."""
        self.client.close()
        if self._cluster is not None:
            self._cluster.close()


def _same(value: Any) -> Any:
    return value


def _raising(results: Iterator[tuple[int, Any]]) -> Iterator[tuple[int, Any]]:
    for index, found in results:
        if isinstance(found, WorkLost):
            raise VdlaError(f"workers: item {index}: {found}; start them again and repeat")
        if isinstance(found, Exception):
            raise found
        yield index, found
