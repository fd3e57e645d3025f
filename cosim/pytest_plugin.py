"""The pytest fixture ``vdla_rtl``: ``pytest_plugins = ["vdla.cosim.pytest_plugin"]`` in a
``conftest.py`` brings it.
"""

from __future__ import annotations

from pathlib import Path
from typing import Protocol

import pytest

from .runner import Build, Design, run_bench


class RunBench(Protocol):
    """What ``vdla_rtl`` is: :func:`~vdla.cosim.runner.run_bench` with paths from the test's."""

    def __call__(
        self, design: Design, bench: str, build: Build | None = None, **parameters: str | int
    ) -> int:
        """Run the cocotb tests of a file that lies beside the test's; returns how many."""
        ...


@pytest.fixture
def vdla_rtl(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> RunBench:
    """``vdla_rtl(design, "bench_queue.py", seed=1)`` runs the cocotb tests of a file beside the
    test's on a :class:`~vdla.cosim.runner.Design`, and returns how many there were; every call has
    a folder of its own. The bench's imports start where pytest's do, at its root folder, so that it
    may import its neighbours relatively; without such packages, at its own folder.
    """

    def run(design: Design, bench: str, build: Build | None = None, **parameters: str | int) -> int:
        path, root = request.path.parent / bench, request.config.rootpath
        inside = path.is_relative_to(root) and all(
            part.isidentifier() for part in path.relative_to(root).with_suffix("").parts
        )
        work: Path = tmp_path_factory.mktemp(path.stem)
        start = root if inside else None
        return run_bench(design, path, work, start, build, None, **parameters)

    return run
