"""Bugs in the SimPy model and in the reference that it takes values from."""

from __future__ import annotations

from vdla.isa import reference, vector_ops
from vdla.sim import dma, vector
from vdla.sim.dma import ReadArbiter, WriteChannel
from vdla.sim.gemm import Gemm
from vdla.sim.load import Load
from vdla.sim.queue import Queue
from vdla.sim.store import Store
from vdla.sim.token import TokenBank

from .checks import sim_differs
from .plant import Mutant

SIM = (
    Mutant("off-by-one latency", "sim gemm", Gemm.run,
           "ready + GEMM_DEPTH", "ready + GEMM_DEPTH - 1", sim_differs),
    Mutant("load before fetch", "sim dma", ReadArbiter.run,
           '("fetch", "load")', '("load", "fetch")', sim_differs),
    Mutant("bursts cross pages", "sim dma", dma.cut_bursts,
           "min(left, params.max_burst_beats, page - word % page)",
           "min(left, params.max_burst_beats)", sim_differs),
    Mutant("unlimited outstanding reads", "sim dma", ReadArbiter._transfer,
           "len(self.finished) >= memory.outstanding", "False", sim_differs),
    Mutant("unlimited bandwidth", "sim dma", WriteChannel.transfer,
           "max(memory.cycles_per_beat, beat_cycles)", "beat_cycles", sim_differs),
    Mutant("slot free too early", "sim queue", Queue.taken, "cycle + 1", "cycle", sim_differs),
    Mutant("token there too early", "sim token", TokenBank.push,
           "cycle + 1", "cycle", sim_differs),
    Mutant("hazard window one short", "sim vector", vector._conflicts,
           "range(1, VECTOR_DEPTH + 1)", "range(1, VECTOR_DEPTH)", sim_differs),
    Mutant("right padding costs nothing", "sim load", Load.pieces,
           "padding += insn.pad_right", "padding += 0", sim_differs),
    Mutant("flights counted twice", "sim store", Store.run,
           "end - max(start, self.last_end) - beats", "end - start - beats", sim_differs),
    Mutant("widens without sign", "reference", reference._load,
           "values.view(np.int8)", "values.view(np.uint8)", sim_differs),
    Mutant("adds to what is overwritten", "reference", reference._gemm,
           "counts = order >= overwritten[acc]", "counts = order >= 0", sim_differs),
    Mutant("divides negatives downwards", "reference", vector_ops.requantize_tflite,
           "(mask >> 1) + (high < 0)", "(mask >> 1)", sim_differs),
)  # fmt: skip
