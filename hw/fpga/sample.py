"""A designed sample: configurations that tell most about what designs take, each synthesised once.

A model of resources (``resources.py``) is fitted to the file of samples, which grows by a line as
soon as a configuration is synthesised, so that the same command goes on where it was stopped.
"""

from __future__ import annotations

import tempfile
from collections.abc import Callable, Sequence
from pathlib import Path
from random import Random

import numpy as np

from ...isa.errors import VdlaError
from ...isa.params import LEGAL, MEMORIES, HwParams
from .board import Board
from .devices import Device
from .resources import Sample, features, load_samples, multipliers, scratchpad_rams
from .synthesis import synthesise, tool_versions

#: Configurations that a design chooses from, and the seed of their draw.
CANDIDATES, SEED = 600, 1
#: Weight of what is known before the first sample, so that the first choice is defined.
_PRIOR = 1e-6


def design(count: int, device: Device, largest_block: int, bus_bits: int = 64) -> list[HwParams]:
    """The first ``count`` configurations of a design, which is the same whenever it is asked for.

    Each is the candidate whose prediction the ones before it leave most uncertain, as in D-optimal
    designs.
    """
    candidates = _candidates(device, largest_block, bus_bits)
    table = np.array([list(features(params, device).values()) for params in candidates])
    table = table / np.maximum(table.max(axis=0), 1)
    known = _PRIOR * np.eye(table.shape[1])
    chosen: list[int] = []
    while len(chosen) < count:
        doubt = np.einsum("ij,jk,ik->i", table, np.linalg.inv(known), table)
        doubt[chosen] = -1.0
        chosen.append(int(doubt.argmax()))
        known += np.outer(table[chosen[-1]], table[chosen[-1]])
    return [candidates[index] for index in chosen]


def _candidates(device: Device, largest_block: int, bus_bits: int) -> list[HwParams]:
    """Configurations drawn at random that may fit the device."""
    rng, found = Random(SEED), dict[HwParams, None]()
    blocks = [block for block in LEGAL["block_in"] if block <= largest_block]
    while len(found) < CANDIDATES:
        block = rng.choice(blocks)
        knobs = {"block_in": block, "block_out": block, "bus_bits": bus_bits}
        for name, legal in LEGAL.items():
            if name.removesuffix("_depth") in MEMORIES:
                knobs[name] = round(2 ** rng.uniform(5, 11))
            elif name not in knobs and name != "token_bits":
                knobs[name] = rng.choice([value for value in legal if value <= 32])
        try:
            params = HwParams(**knobs)
        except VdlaError:
            continue
        if (
            multipliers(params, device) <= device.capacity["dsp"]
            and sum(scratchpad_rams(params).values()) < device.capacity["bram"]
        ):
            found[params] = None
    return list(found)


def add_samples(
    board: Board,
    wanted: Sequence[HwParams],
    path: Path,
    progress: Callable[[int, int], None],
) -> None:
    """Synthesise the configurations that the file has no sample of, and add each to it at once."""
    versions = tool_versions()
    kept = load_samples(path)
    done = {sample.params for sample in kept if sample.versions == versions}
    missing = [params for params in wanted if params not in done]
    progress(len(wanted) - len(missing), len(wanted))
    path.parent.mkdir(parents=True, exist_ok=True)
    for number, params in enumerate(missing, 1):
        with tempfile.TemporaryDirectory(prefix="vdla_sample_") as folder:
            used = synthesise(board, params, board.freq_mhz, Path(folder), lambda _: None)
        sample = Sample(params, used, versions)
        with path.open("a") as file:
            file.write(sample.to_line())
        progress(len(wanted) - len(missing) + number, len(wanted))
