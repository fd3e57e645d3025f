"""A designed sample: configurations that differ as much as they can, each synthesised once.

A model of resources (``resources.py``) is fitted to the file of samples, which is written as soon
as a configuration is synthesised or placed, so that the same command goes on where it was stopped.
"""

from __future__ import annotations

import tempfile
from collections.abc import Callable, Iterator, Sequence
from dataclasses import asdict
from math import inf
from pathlib import Path
from random import Random

import numpy as np

from ...isa.errors import VdlaError
from ...isa.params import LEGAL, MEMORIES, HwParams
from ...runtime.files import write_text
from .devices import Board, Device
from .resources import Sample, core_rams, load_samples, multipliers
from .synthesis import nextpnr_of, place_and_route, synthesise, tool_versions

#: Configurations that a design chooses from, and the seed of their draw.
CANDIDATES, SEED = 600, 1
#: Depths of scratchpads, as powers of two; shorter ones are made of lookup tables.
_LOG2_DEPTHS = (5.1, 11.0)
#: The most that is drawn of a knob that may be far larger.
_LARGEST = 32


def design(count: int, device: Device, largest_block: int, bus_bits: int = 64) -> list[HwParams]:
    """The first ``count`` configurations of a design, which is the same whenever it is asked for.

    Each is the candidate that is farthest from its nearest among those before it, in logarithms of
    the knobs, each over its range. So the design depends on no model.
    """
    candidates = _candidates(device, largest_block, bus_bits)
    places = np.log1p([list(asdict(params).values()) for params in candidates])
    places = places / np.maximum(np.ptp(places, axis=0), 1)
    nearest = np.linalg.norm(places - np.median(places, axis=0), axis=1)
    # The first is the most ordinary one.
    chosen = [int(nearest.argmin())]
    nearest = np.full(len(places), np.inf)
    while len(chosen) < count:
        nearest = np.minimum(nearest, np.linalg.norm(places - places[chosen[-1]], axis=1))
        chosen.append(int(nearest.argmax()))
    return [candidates[index] for index in chosen]


def _candidates(device: Device, largest_block: int, bus_bits: int) -> list[HwParams]:
    """Configurations drawn at random that may fit the device. Small blocks come more often, as
    their synthesis takes less time.
    """
    rng, found = Random(SEED), dict[HwParams, None]()
    blocks = [block for block in LEGAL["block_in"] if block <= largest_block]
    while len(found) < CANDIDATES:
        (block,) = rng.choices(blocks, [1 / block for block in blocks])
        knobs = {"block_in": block, "block_out": block, "bus_bits": bus_bits}
        for name, legal in LEGAL.items():
            if name.removesuffix("_depth") in MEMORIES:
                knobs[name] = round(2 ** rng.uniform(*_LOG2_DEPTHS))
            elif name not in knobs and name != "token_bits":
                knobs[name] = rng.choice([value for value in legal if value <= _LARGEST])
        try:
            params = HwParams(**knobs)
        except VdlaError:
            continue
        if (
            multipliers(params, device) <= device.capacity["dsp"]
            and core_rams(params) < device.capacity["bram"]
        ):
            found[params] = None
    return list(found)


def add_samples(
    board: Board,
    wanted: Sequence[HwParams],
    placed: int,
    path: Path,
    progress: Callable[[int, int], None],
) -> None:
    """Synthesise the configurations that the file has no sample of, place the first ``placed`` of
    them, and add each to the file at once. A configuration has one line of the file, its newest.
    """
    versions = tool_versions()
    samples = {s.params: s for s in load_samples(path)}
    known = {params: s for params, s in samples.items() if s.versions == versions}
    missing = [
        (params, number < placed)
        for number, params in enumerate(wanted)
        if params not in known or (number < placed and known[params].placed_mhz is None)
    ]
    progress(len(wanted) - len(missing), len(wanted))
    path.parent.mkdir(parents=True, exist_ok=True)
    for number, (params, is_placed) in enumerate(missing, 1):
        for sample in _made(board, params, is_placed, versions):
            samples[params] = sample
            write_text(path, "".join(s.to_line() for s in samples.values()))
        progress(len(wanted) - len(missing) + number, len(wanted))


def _made(
    board: Board, params: HwParams, is_placed: bool, versions: dict[str, str]
) -> Iterator[Sample]:
    """The sample as soon as it is synthesised, and again with its clock, which may take long."""
    with tempfile.TemporaryDirectory(prefix="vdla_sample_") as name:
        folder = Path(name)
        used = synthesise(board, params, board.freq_mhz, folder, lambda _: None)
        yield Sample(params, used, versions)
        if is_placed:
            # No placement is as fast as that, so none is routed.
            nextpnr, freq_mhz = nextpnr_of(board), board.freq_mhz
            mhz = place_and_route(nextpnr, freq_mhz, 1, folder, least_mhz=inf)["placed_mhz"]
            yield Sample(params, used, versions, mhz)
