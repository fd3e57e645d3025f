"""Designs in standard cells: area, and energy by what toggles while networks run.

It is the top of the ladder, minutes for each design: yosys makes cells of it for every library of
the exploration, and its RTL runs each network once. Each library is taken with each table of
macros. The first of these pairs gives a design's values; the report says which orders of designs
hold under all of them.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

from .._version import __version__
from ..bench.networks import find_model
from ..bench.sweep import Point, Results, Row
from ..bench.toggles import sample_programs
from ..compiler.build import build
from ..compiler.choose.records import Record, Records
from ..compiler.targets.base import Options
from ..compiler.targets.registry import find_target
from ..hw.asic.energy import energy_of
from ..hw.asic.estimate import Design
from ..hw.asic.liberty import load_liberty
from ..hw.asic.macros import DEFAULT, MacroTable
from ..isa.errors import VdlaError
from ..runtime.cache import source_digest

#: The rooms whose sources decide about a row.
_ROOMS = ("bench", "compiler", "explore", "hw", "isa", "sim")


class Silicon:
    """What designs take in cells of libraries beside macros of tables.

    Parameters
    ----------
    liberty, macros : the files; no macros are the table of the package
    toggles : whether networks run, for energies

    Attributes
    ----------
    names : of each library with each table

    Raises
    ------
    VdlaError
        For files that are something else.
    """

    def __init__(self, liberty: Sequence[str], macros: Sequence[str], toggles: bool):
        self._libraries = [(Path(name), load_liberty(Path(name))) for name in liberty]
        self._files = [*map(Path, liberty), *(map(Path, macros) if macros else [DEFAULT])]
        self._tables = [MacroTable.load(path) for path in self._files[len(liberty) :]]
        self._toggles = toggles
        self.names = [
            f"{library.name} with macros of {table.name}"
            for _, library in self._libraries
            for table in self._tables
        ]

    def measure(
        self, designs: Sequence[Sequence[Point]], results: Results, workers: int
    ) -> list[Row]:
        """What designs take, measured now or before, several at a time; of each design the points
        are given, one for each network.

        ``areas_um2`` are those under each library and table, ``toggles_uj`` the energies of a run
        of each network under each; or ``error`` is why there are none, which is not kept.
        """
        keys = [self._key(points) for points in designs]
        wanted = {k: p for k, p in zip(keys, designs, strict=True) if k not in results.rows}
        failed: dict[str, Row] = {}
        with ThreadPoolExecutor(workers) as pool:
            try:
                for key, row in zip(wanted, pool.map(self._row, wanted.values()), strict=True):
                    if "error" in row:
                        failed[key] = row
                    else:
                        results.add(key, row)
            except KeyboardInterrupt:
                pool.shutdown(cancel_futures=True)
                raise
        return [failed.get(key) or results.rows[key] for key in keys]

    def _key(self, points: Sequence[Point]) -> str:
        params = points[0].params
        assert params is not None
        files = [hashlib.sha256(path.read_bytes()).hexdigest() for path in self._files]
        runs = [point.key for point in points] if self._toggles else []
        parts = (params.to_dict(), files, runs, __version__, source_digest(*_ROOMS))
        return hashlib.sha256(json.dumps(parts, sort_keys=True).encode()).hexdigest()[:32]

    def _row(self, points: Sequence[Point]) -> Row:
        try:
            return self._measured(points)
        except VdlaError as error:
            return {"error": str(error)}

    def _measured(self, points: Sequence[Point]) -> Row:
        params = points[0].params
        assert params is not None
        designs = []
        for path, library in self._libraries:
            made = Design.of(params, path, library, self._tables[0])
            designs += [made, *(made.with_macros(table) for table in self._tables[1:])]
        energies = [_energies(point, designs) for point in points] if self._toggles else []
        return {
            "areas_um2": [sum(its["area_um2"] for its in one.blocks()) for one in designs],
            "toggles_uj": [list(each) for each in zip(*energies, strict=True)],
        }


def _energies(point: Point, designs: Sequence[Design]) -> list[float]:
    """Microjoules of a run of a network for each design, at the clock of its longest path."""
    params, memory = designs[0].params, point.memory_params
    assert memory is not None
    target = find_target("sim", Options(params, memory, point.vthreads))
    records = Records(map(Record.read, point.records))
    compiled = build(find_model(point.model, params.batch), target, records=records)
    runs = sample_programs(compiled, designs, memory)
    found = []
    for one in designs:
        mhz = one.timing.longest_path().mhz
        energies = (
            energy_of(one.netlist, one.memories, one.timing, samples).microjoules(cycles, mhz)
            for cycles, samples in runs
        )
        found.append(sum(energies))
    return found
