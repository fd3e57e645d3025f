"""What a design takes of an ECP5, without synthesis: multipliers and block RAMs by the rules that
the core and yosys follow, lookup tables and flip-flops by a model that is fitted to samples.

A sample (``samples/BOARD.jsonl``, a JSON object a line) is a configuration and what yosys made of
it; ``sample.py`` makes more. The fit takes milliseconds, so no coefficients are kept: a new sample
counts at once.
"""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import dataclass, fields
from pathlib import Path
from typing import Any

import numpy as np
from scipy.optimize import nnls

from ...isa.encoding import widest_layout_bits
from ...isa.errors import VdlaError
from ...isa.params import LEGAL, MEMORIES, HwParams
from ...isa.text_files import read_text
from ..core.core import READ_PORTS
from ..core.scratchpad import rows, written_parts
from .devices import Device
from .multiplier import shared_products, vector_multipliers

#: Where the package keeps samples.
SAMPLES = Path(__file__).parent / "samples"
#: What is fitted; the other resources are counted.
FITTED = ("lut", "ff")
#: A fit needs so many samples more than it has features.
SPARE = 2
#: A model of the clock, which has three coefficients, needs so many placed samples.
PLACED = 3 + SPARE
#: Bits of a row of a block RAM with the rows that it then has: two ports of either direction up to
#: 18 bits, one of each direction with 36.
_SHAPES = ((1, 16384), (2, 8192), (4, 4096), (9, 2048), (18, 1024), (36, 512))
#: Bits that a write enable of a block RAM covers.
_BYTE_BITS = 9
#: Bits and rows of a memory of lookup tables, and what yosys says that it costs; a block RAM; a
#: multiplexer of one bit. Yosys takes what costs least.
_SMALL, _SMALL_COST, _BLOCK_COST, _SELECT_COST = (4, 16), 4, 128, 0.5


# ---- what is counted -----------------------------------------------------------------------------


def block_rams(depth: int, width: int, reads: int, parts: int) -> int:
    """The 18 kbit block RAMs that yosys makes of a memory for an ECP5: none for one that costs less
    as lookup tables.

    Parameters
    ----------
    depth, width : rows, and bits of a row
    reads : read ports; each has a copy
    parts : parts of a row with a write enable of their own
    """
    memory = depth, width, reads, parts
    cost, blocks = min(_mapped(*memory, *shape, _BLOCK_COST) for shape in _SHAPES)
    small, _ = _mapped(*memory, *_SMALL, _SMALL_COST)
    return 0 if small < cost else blocks


def _mapped(
    depth: int, width: int, reads: int, parts: int, bits: int, block_rows: int, each: int
) -> tuple[float, int]:
    """What a memory costs as blocks of a shape, and how many they are. A row is padded so that each
    of its parts begins at an enable of a block. Rows that do not fit a block go to further blocks,
    behind multiplexers, and share blocks at their ends.
    """
    enabled = min(bits, _BYTE_BITS)
    padded = parts * enabled * -(-(width // parts) // enabled)
    turns = -(-depth // block_rows)
    blocks = reads * -(-turns * padded // bits)
    selected = (turns - 1) * width * reads + (turns * parts if turns > 1 else 0)
    return each * blocks + _SELECT_COST * selected, blocks


def scratchpad_rams(params: HwParams) -> dict[str, int]:
    """Block RAMs of each scratchpad."""
    return {
        name: block_rams(*rows(name, params), READ_PORTS[name], written_parts(name, params))
        for name in MEMORIES
    }


def core_rams(params: HwParams) -> int:
    """Block RAMs of the core: of its scratchpads, and one for the table of each lane."""
    tables = params.vector_lanes if params.vector_table else 0
    return sum(scratchpad_rams(params).values()) + tables


def multipliers(params: HwParams, device: Device) -> int:
    """The multipliers that the tensor core and the vector unit take; see ``multiplier.py``."""
    return vector_multipliers(params) + sum(shared_products(params, device.capacity["dsp"]))


# ---- what is fitted ------------------------------------------------------------------------------


def features(params: HwParams, device: Device) -> dict[str, float]:
    """What lookup tables and flip-flops grow with; all are counts, so that no coefficient is
    negative. The bus is not among them: a board has one width.
    """
    narrow, packed = shared_products(params, device.capacity["dsp"])
    queued = widest_layout_bits(params) * 4 * -(-params.queue_depth // 16)
    return {
        "core": 1.0,
        "lanes of the vector unit": params.vector_lanes,
        "accumulators": params.lanes,
        "products with a multiplier": narrow,
        "pairs that share a multiplier": packed,
        "products without": params.peak_macs_per_cycle - narrow - 2 * packed,
        "bits of queues": queued,
        "instructions that are fetched": params.fetch_depth,
        "values of windows": params.batch * params.block * params.vector_window,
        "block RAMs": core_rams(params),
        "unpacking of weights": params.packed_weights,
    }


@dataclass(frozen=True)
class Sample:
    """A configuration, and what synthesis made of it.

    Attributes
    ----------
    params : the configuration
    used : of :data:`~.devices.RESOURCES`
    versions : of the tools
    placed_mhz : the clock that nextpnr estimates for a placement of seed 1; None where none was
        made
    """

    params: HwParams
    used: dict[str, int]
    versions: dict[str, str]
    placed_mhz: float | None = None

    def to_line(self) -> str:
        """A line of a file of samples, with its end."""
        entry: dict[str, Any] = {"params": self.params.to_dict(), "used": self.used}
        if self.placed_mhz is not None:
            entry["placed_mhz"] = self.placed_mhz
        return json.dumps(entry | {"tools": self.versions}) + "\n"


def load_samples(path: Path) -> list[Sample]:
    """The samples of a file; none where there is no file. The last of a configuration counts.

    Raises VdlaError for a file of something else.
    """
    found: dict[HwParams, Sample] = {}
    text = read_text(path) if path.exists() else ""
    for number, line in enumerate(text.splitlines(), 1):
        try:
            entry: dict[str, Any] = json.loads(line)
            params = HwParams.from_dict(entry["params"])
            used = {str(name): int(value) for name, value in entry["used"].items()}
            mhz = entry.get("placed_mhz")
            placed_mhz = None if mhz is None else float(mhz)
            found[params] = Sample(params, used, dict(entry["tools"]), placed_mhz)
        except (ValueError, TypeError, KeyError, AttributeError, VdlaError):
            raise VdlaError(
                f"{path}: expected samples of vdla fpga sample, got {line[:60]!r} in line {number}"
            ) from None
    return list(found.values())


@dataclass(frozen=True)
class ClockModel:
    """Clocks of placed designs: a period that grows with what a design takes, as its wires do, and
    that is longer where products share multipliers, as their corrections are added behind them.

    Attributes
    ----------
    coefficients : nanoseconds of the smallest design, of sharing, and of a lookup table
    error : how far predictions of samples are off, each by models of clock and lookup tables that
        have not seen it: the median and the largest part of the true value
    count : how many placed samples there were
    """

    coefficients: np.ndarray
    error: tuple[float, float]
    count: int

    @classmethod
    def fit(cls, samples: Sequence[Sample], table: np.ndarray, device: Device) -> ClockModel | None:
        """The model of those samples that are placed; None for too few. ``table`` has the
        :func:`features` of all samples.
        """
        luts = np.array([s.used["lut"] for s in samples], float)
        periods = np.array([1000 / (s.placed_mhz or np.inf) for s in samples])
        placed = np.flatnonzero(periods)
        if len(placed) < PLACED:
            return None
        inputs = np.array(
            [_grown_with(s.params, device, lut) for s, lut in zip(samples, luts, strict=True)]
        )
        off = []
        for index in placed:
            others = np.arange(len(samples)) != index
            lut = table[index] @ _fitted(table[others], luts[others])
            others &= periods > 0
            fitted = _fitted(inputs[others], periods[others])
            period = _grown_with(samples[index].params, device, lut) @ fitted
            off.append(abs(periods[index] / period - 1))
        error = float(np.median(off)), float(np.max(off))
        return cls(_fitted(inputs[placed], periods[placed]), error, len(placed))

    def mhz(self, params: HwParams, device: Device, lut: float) -> float:
        """The clock of a design with so many lookup tables."""
        return float(1000 / (_grown_with(params, device, lut) @ self.coefficients))


def _grown_with(params: HwParams, device: Device, lut: float) -> np.ndarray:
    """What a period grows with."""
    _, packed = shared_products(params, device.capacity["dsp"])
    return np.array([1, packed > 0, lut], float)


@dataclass(frozen=True)
class ResourceModel:
    """Resources of configurations on a device.

    Attributes
    ----------
    device : the device
    around_rams : block RAMs of the board beside the core's scratchpads
    coefficients : for each of :data:`FITTED`, what one of each feature takes
    error : for each of :data:`FITTED`, how far predictions of samples are off, each by a model that
        has not seen it: the median and the largest part of the true value
    count : how many samples there were
    ranges : of each knob, the lowest and the highest value among the samples
    clock : None where too few samples are placed
    """

    device: Device
    around_rams: int
    coefficients: dict[str, np.ndarray]
    error: dict[str, tuple[float, float]]
    count: int
    ranges: dict[str, tuple[int, int]]
    clock: ClockModel | None = None

    @classmethod
    def fit(cls, samples: Sequence[Sample], device: Device) -> ResourceModel:
        """A model of samples.

        Raises VdlaError for too few of them, and where they do not obey the rules of what is
        counted.
        """
        table = np.array([list(features(s.params, device).values()) for s in samples], float)
        needed = SPARE + len(features(HwParams(), device))
        if len(samples) < needed:
            raise VdlaError(
                f"resource model: expected at least {needed} samples, got {len(samples)}; make more"
                " with vdla fpga sample"
            )
        around = {s.used["bram"] - core_rams(s.params) for s in samples}
        if len(around) != 1:
            raise VdlaError(
                "resource model: expected samples of one board, whose block RAMs beside the core"
                f" are as many in each, got {sorted(around)}"
            )
        coefficients, error = {}, {}
        for name in FITTED:
            true = np.array([s.used[name] for s in samples], float)
            coefficients[name] = _fitted(table, true)
            off = [_left_out(table, true, index) for index in range(len(samples))]
            error[name] = float(np.median(off)), float(np.max(off))
        ranges = {}
        for name in LEGAL:
            values = [getattr(s.params, name) for s in samples]
            ranges[name] = min(values), max(values)
        clock = ClockModel.fit(samples, table, device)
        return cls(device, around.pop(), coefficients, error, len(samples), ranges, clock)

    def predict(self, params: HwParams) -> dict[str, int]:
        """What a configuration takes, by the names of :data:`~.devices.RESOURCES`."""
        row = np.array(list(features(params, self.device).values()))
        fitted = {name: round(float(row @ self.coefficients[name])) for name in FITTED}
        return fitted | {
            "dsp": multipliers(params, self.device),
            "bram": self.around_rams + core_rams(params),
        }

    def mhz(self, params: HwParams) -> float:
        """The clock that nextpnr would estimate for a placement.

        Raises VdlaError where too few samples are placed.
        """
        if self.clock is None:
            raise VdlaError(
                f"clock: expected at least {PLACED} placed samples; make more with vdla fpga sample"
                " --placed"
            )
        return self.clock.mhz(params, self.device, self.predict(params)["lut"])

    def named_coefficients(self) -> dict[str, dict[str, float]]:
        """What one of each feature takes, by resource and feature."""
        names = features(HwParams(), self.device)
        return {
            resource: dict(zip(names, map(float, values), strict=True))
            for resource, values in self.coefficients.items()
        }

    def beyond(self, params: HwParams) -> list[str]:
        """Knobs with values outside of those of the samples, where the error is not known."""
        return [
            field.name
            for field in fields(params)
            if not _within(getattr(params, field.name), self.ranges[field.name])
        ]


def _within(value: int, bounds: tuple[int, int]) -> bool:
    return bounds[0] <= value <= bounds[1]


def _fitted(table: np.ndarray, true: np.ndarray) -> np.ndarray:
    """Coefficients, none of them negative, with the least squares of relative errors."""
    return nnls(table / true[:, None], np.ones(len(true)))[0]


def _left_out(table: np.ndarray, true: np.ndarray, index: int) -> float:
    """The relative error at a sample of the model of all others."""
    others = np.arange(len(true)) != index
    predicted = table[index] @ _fitted(table[others], true[others])
    return abs(float(predicted) / true[index] - 1)


def shipped_model(board: str, device: Device) -> ResourceModel:
    """The model of the samples that the package has for a board.

    Raises VdlaError where there are too few.
    """
    path = SAMPLES / f"{board}.jsonl"
    key = path, path.stat().st_mtime_ns if path.exists() else 0
    if key not in _models:
        _models[key] = ResourceModel.fit(load_samples(path), device)
    return _models[key]


#: Models by their files of samples and when these were written: replays make many ladders.
_models: dict[tuple[Path, int], ResourceModel] = {}
