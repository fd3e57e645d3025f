"""Tilings replayed tile by tile: when each unit begins and ends, by the planner's cost model."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np

from .....isa.native import Floats, Ints, native


def replayed(
    work: Sequence[Any], latency: float, write_latency: float, vthreads: Any
) -> np.ndarray:
    """The cycles of one tiling, or of many.

    Parameters
    ----------
    work : the fields of ``planner._Work`` in order, numbers or arrays [tilings]
    latency, write_latency : cycles from a request of a load to its data, and from the last data of
        a store to its end
    vthreads : buffers of every kind, a number or an array [tilings]

    Returns
    -------
    float64 [tilings]; a single element where all of ``work`` are numbers
    """
    columns = np.broadcast_arrays(*map(np.atleast_1d, (vthreads, *work)))
    counts = [np.ascontiguousarray(column, np.int64) for column in columns[:4]]
    cycles = [np.ascontiguousarray(column, np.float64) for column in columns[4:]]
    found = np.zeros(len(columns[0]))
    buffers = [np.zeros(counts[0].max(initial=1)) for _ in range(5)]
    _replay_each(*counts, *cycles, float(latency), float(write_latency), found, *buffers)
    return found


@native
def _replay_each(
    vthreads: Ints, changes: Ints, tiles: Ints, chunks: Ints, slices: Floats, staying: Floats,
    inp: Floats, wgt: Floats, gemm: Floats, vector: Floats, store: Floats, fetch: Floats,
    latency: float, write_latency: float, found: Floats, stays: Floats, operands: Floats,
    accumulators: Floats, results: Floats, done: Floats,
) -> None:  # fmt: skip
    """Replay each tiling in buffers that are free at cycle 0."""
    for index in range(len(found)):
        for buffer in range(len(stays)):
            stays[buffer] = 0.0
            operands[buffer] = 0.0
            accumulators[buffer] = 0.0
            results[buffer] = 0.0
        found[index] = _replay(
            vthreads[index], changes[index], tiles[index], chunks[index], slices[index],
            staying[index], inp[index], wgt[index], gemm[index], vector[index], store[index],
            fetch[index], latency, write_latency, stays, operands, accumulators, results, done,
        )  # fmt: skip


@native
def _replay(
    vthreads: int, changes: int, tiles: int, chunks: int, slices: float, staying: float,
    inp: float, wgt: float, gemm_cycles: float, vector_cycles: float, store_cycles: float,
    fetch_cycles: float, latency: float, write_latency: float, stays: Floats, operands: Floats,
    accumulators: Floats, results: Floats, done: Floats,
) -> float:  # fmt: skip
    """The cycles of one tiling. ``stays``, ``operands``, ``accumulators`` and ``results`` have, for
    each buffer, the cycle in which it is free again; buffers are used in turn. The threads share
    the tiles of a group; ``done`` is their workspace.
    """
    part, threads = 1 / slices, min(vthreads, tiles)
    load, gemm, vector, store, fetch = 0.0, 0.0, 0.0, 0.0, 0.0
    operand, accumulator, result = 0, 0, 0
    for change in range(changes):
        stay = change % vthreads
        load = max(load, stays[stay]) + staying
        # Weights come block by block, and the first block is enough to begin.
        stay_begin = load + latency - (staying * (1 - part) if wgt == 0.0 else 0.0)
        stay_end = load + latency
        for first in range(0, tiles, threads):
            # Threads take turns with their chunks, and so finish together.
            running = min(threads, tiles - first)
            for thread in range(running):
                done[thread] = accumulators[(accumulator + thread) % threads]
            fetch += running * fetch_cycles
            for _ in range(chunks):
                for thread in range(running):
                    load = max(load, operands[operand]) + inp + wgt
                    begin = max(max(gemm, done[thread]), load + latency - wgt * (1 - part))
                    begin = max(begin, stay_begin)
                    # The last block of channels comes after the last of its operands.
                    last = max(load + latency, stay_end) + gemm_cycles * part
                    gemm = max(begin + gemm_cycles, last)
                    operands[operand] = gemm
                    operand = (operand + 1) % threads
                    done[thread] = gemm
            gemm = max(gemm, fetch)
            for thread in range(running):
                vector = max(vector, results[result]) + vector_cycles
                vector = max(vector, done[thread] + vector_cycles * part)
                accumulators[accumulator] = vector
                accumulator = (accumulator + 1) % threads
                store = max(store, vector) + store_cycles
                results[result] = store + write_latency
                result = (result + 1) % threads
        stays[stay] = gemm
        # Every group begins with the first thread, so its buffers must come first again.
        back = threads - tiles % threads
        operand = (operand + back) % threads
        accumulator = (accumulator + back) % threads
        result = (result + back) % threads
    return store + write_latency
