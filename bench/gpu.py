"""Networks on an NVIDIA GPU: correct first, then medians of replayed graphs, each an
image or a batch of them."""

from __future__ import annotations

import statistics
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from typing import Any

import numpy as np

from ..compiler.targets.gpu.lowering import PRECISIONS
from ..isa.errors import VdlaError
from ..module import compile
from ..runtime.gpu.cuda import CudaSession, load_driver
from ..runtime.gpu.program import KernelProgram
from .measure import random_inputs
from .torch_peer import WAYS, TorchPeer, check_installed
from .workloads import NETWORKS

#: What a network runs in: its own int8, or float32 with factors of this precision.
KINDS = ("int8", *PRECISIONS)
#: Replays before those that count.
WARM_ROUNDS = 3
#: Largest difference from the CPU's result, relative to the largest of these: other functions at
#: the end of integer networks, sums in another order, and factors of 10, 11 and 8 bits through
#: some twenty layers.
TOLERANCE = {"int8": 1e-6, "float32": 1e-4, "tf32": 4e-2, "float16": 2e-2, "bfloat16": 1e-1}
#: Libraries that networks are compared with.
PEERS = ("torch",)

Open = Callable[[KernelProgram], CudaSession]


def gpu_rows(
    models: Sequence[str],
    kinds: Sequence[str],
    batches: Sequence[int],
    rounds: int,
    progress: Callable[[int, int], None] | None = None,
    open: Open = CudaSession,
    peers: Sequence[str] = (),
) -> list[dict[str, Any]]:
    """One row for each network, kind of numbers and batch. Peers take turns with our replays; they
    run float networks.

    Raises
    ------
    VdlaError
        For an unknown name, without a GPU or its driver, and where a result is wrong.
    """
    _check_names("models", models, tuple(NETWORKS))
    _check_names("kinds", kinds, KINDS)
    if peers:
        _check_names("peers", peers, PEERS)
        check_installed()
    cases = [(m, k, b) for m in models for k in kinds for b in batches]
    rows = []
    for number, case in enumerate(cases):
        rows.append(_row(*case, rounds, open, bool(peers)))
        if progress is not None:
            progress(number + 1, len(cases))
    return rows


def _check_names(what: str, names: Sequence[str], known: Sequence[str]) -> None:
    unknown = [name for name in names if name not in known]
    if unknown or not names:
        got = repr(unknown[0]) if unknown else "none"
        raise VdlaError(f"{what}: expected some of {', '.join(known)}, got {got}")


def _row(
    model: str, kind: str, batch: int, rounds: int, open: Open, has_peer: bool
) -> dict[str, Any]:
    """Run one network, compare it with the CPU, and measure it."""
    if open is CudaSession:
        load_driver()  # before the work of the compiler
    data = NETWORKS[model](batch, kind == "int8").SerializeToString()
    precision = PRECISIONS[0] if kind == "int8" else kind
    module = compile(data, "cuda", precision=precision)
    [step] = module.compiled.steps
    assert isinstance(step, KernelProgram)
    sessions: list[CudaSession] = []

    def opened(program: KernelProgram) -> CudaSession:
        sessions.append(open(program))
        return sessions[-1]

    arrays = random_inputs(module.compiled.inputs)
    got = replace(step, open=opened).run(*arrays)
    error = _error(got, compile(data, "cpu").run(*arrays))
    if error > TOLERANCE[kind]:
        raise VdlaError(
            f"bench gpu: {model} in {kind}: expected the CPU's results within {TOLERANCE[kind]:g}, "
            f"got a difference of {error:g}"
        )
    peer = None
    if has_peer and kind != "int8":
        peer = TorchPeer(NETWORKS[model](batch, False), arrays, kind)
    times_ms, theirs = _alternating(sessions[0], peer, rounds)
    medians = {way: statistics.median(times) for way, times in theirs.items()}
    return {
        "name": model, "kind": kind, "batch": batch, "kernels": len(step.calls), "error": error,
        "median_ms": statistics.median(times_ms), "least_ms": min(times_ms),
        "torch_ms": medians, "ratio": _ratio(times_ms, medians),
    }  # fmt: skip


def _alternating(
    session: CudaSession, peer: TorchPeer | None, rounds: int
) -> tuple[list[float], dict[str, list[float]]]:
    """The times of our replays, and of the peer's ways, in turns, in milliseconds."""
    if peer is None:
        return session.time_replays(WARM_ROUNDS + rounds)[WARM_ROUNDS:], {}
    ours: list[float] = []
    theirs: dict[str, list[float]] = {way: [] for way in WAYS}
    for number in range(WARM_ROUNDS + rounds):
        # Of two replays in a row, the second one finds the caches as a network leaves them.
        mine = session.time_replays(2)[1:]
        found = {way: peer.time_ms(way) for way in WAYS}
        if number >= WARM_ROUNDS:
            ours += mine
            for way, time_ms in found.items():
                theirs[way].append(time_ms)
    return ours, theirs


def _ratio(times_ms: Sequence[float], medians: Mapping[str, float]) -> float | None:
    """Our median over that of the peer's fastest way."""
    return statistics.median(times_ms) / min(medians.values()) if medians else None


def _error(got: Sequence[np.ndarray], wanted: Sequence[np.ndarray]) -> float:
    """The largest difference, relative to the largest value."""
    return max(
        float(np.abs(a.astype(np.float64) - b).max() / max(1e-30, np.abs(b).max()))
        for a, b in zip(got, wanted, strict=True)
    )
