"""Machine code of the host against other libraries: networks and layers in float32 and int8.

All libraries run in turns in one process. With one thread, times are processor time of that thread,
so that other work on the machine disturbs them little, and all alike; several threads need an idle
machine. The peak is that of the fastest instruction that our code adds products by, measured in the
same turns (``peak.py``). The fraction of it that is reached is the median over the turns, because
the core's clock is not the same in all. Our code runs twice in each turn; the *control* is the
ratio of its two times, which is what a difference of ratios means. Operations are counted as for
direct convolutions, so that Winograd's algorithm can exceed the peak. All libraries get the integer
models of ``workloads.py`` in the form that ONNX Runtime runs fastest (``peers.py``), and those of
``modern.py`` as ``vdla quantize`` writes them, or as ONNX Runtime quantises them dynamically.
"""

from __future__ import annotations

import ctypes
import re
import statistics
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any

import numpy as np
import onnx

from ..compiler.frontends.load import load_graph
from ..compiler.graph.ir import Graph
from ..compiler.graph.ops.base import Fusion
from ..compiler.graph.ops.blocked.convolution import (
    BlockedConv2d,
    BlockedDepthwise,
    BlockedWinograd,
)
from ..compiler.graph.ops.blocked.dense import PackedDense
from ..compiler.graph.ops.blocked.integer import BlockedDotConv2d, BlockedQConv2d
from ..compiler.graph.passes import run_passes
from ..compiler.targets.base import Part
from ..compiler.targets.cpu.graph_code import build_cpu
from ..compiler.targets.cpu.micro_kernel_code import fastest_instruction
from ..isa.errors import VdlaError
from ..runtime.native import aligned_memory
from .measure import Progress, random_inputs, told
from .modern import MODERN
from .networks import IN_FLOAT, make_model
from .peak import peak_kernel, peak_ops, repeat_code
from .peers import PEERS, REFERENCE, in_dynamic_int8, in_uint8, installed_peers
from .table2 import choose_layers
from .workloads import NETWORKS, ConvLayer, MatrixProduct

#: Turns whose medians count, and turns before these that only warm up caches.
ROUNDS, WARM_ROUNDS = 15, 2
#: Largest difference from another library's results, relative to the largest of these. ONNX Runtime
#: scales sums of int8 in float32, so that some values, and others computed from them, differ from
#: ours by a quantisation step.
TOLERANCE = {"float32": 1e-4, "int8": 0.04}
#: Suffix of the name of a model or layer that is to run in int8.
INT8 = "-int8"
#: The same of one whose activations are quantised while it runs.
DYNAMIC = "-dynamic"
#: Calls of a single convolution in a turn. One call would not do: calling from Python and reading
#: the clock take as long as a small convolution.
KERNEL_CALLS = 30
#: Networks that are compared where none are named.
MODELS = (
    *NETWORKS, *(f"{name}{INT8}" for name in NETWORKS), *MODERN,
    *(f"{name}{DYNAMIC}" for name in ("resnet18", "bert", "lstm_layers")),
)  # fmt: skip
_PRODUCTS = (
    BlockedConv2d | BlockedWinograd | BlockedDepthwise | BlockedDotConv2d | BlockedQConv2d
    | PackedDense
)  # fmt: skip


@dataclass(frozen=True)
class Rival:
    """One way to run a model: ``run`` is a call without arguments."""

    name: str
    run: Callable[[], Any]


def cpu_rows(
    models: Sequence[str],
    layers: Sequence[str],
    rounds: int = ROUNDS,
    progress: Progress | None = None,
    threads: int = 1,
) -> list[dict[str, Any]]:
    """One row for each network and for each layer of table 2; names that end in ``-int8`` mean the
    quantised ones, and names of networks that end in ``-dynamic`` the dynamically quantised ones.

    Raises VdlaError for an unknown name, without ONNX Runtime, and when results differ.
    """
    jobs = [(name, _find_builder(name)) for name in models]
    jobs += [(name, _in_either(_find_layer(name).model, name)) for name in layers]
    rows = []
    for name, build in told(jobs, progress):
        dtype = "int8" if name.endswith((INT8, DYNAMIC)) else "float32"
        rows.append(_row(name, build(), dtype, rounds, threads))
    return rows


def _find_builder(name: str) -> Callable[[], onnx.ModelProto]:
    if name.endswith(DYNAMIC):
        build = _find_builder(name.removesuffix(DYNAMIC))
        return lambda: in_dynamic_int8(build())
    base = name.removesuffix(INT8)
    if base in NETWORKS:
        return _in_either(NETWORKS[base], name)
    if base in IN_FLOAT:
        return partial(make_model, base, 1, name.endswith(INT8))
    raise VdlaError(
        f"models: expected names from {', '.join((*NETWORKS, *IN_FLOAT))}, each with {INT8}, "
        f"with {DYNAMIC} or without, got {name!r}"
    )


def _find_layer(name: str) -> ConvLayer | MatrixProduct:
    """A layer of table 2, or a product by its sizes."""
    base = name.removesuffix(INT8)
    sizes = re.fullmatch(r"([1-9]\d*)x([1-9]\d*)x([1-9]\d*)", base)
    if sizes is not None:
        return MatrixProduct(*map(int, sizes.groups()))
    [layer] = choose_layers([base])
    return layer


def _in_either(build: Callable[[int, bool], onnx.ModelProto], name: str) -> Callable[[], Any]:
    """The model of a batch of one, quantised if its name says so."""
    return lambda: in_uint8(build(1, True)) if name.endswith(INT8) else build(1, False)


def peaks(rows: Sequence[dict[str, Any]]) -> dict[str, float | None]:
    """The measured peak of the processor, in billions of operations a second."""
    names = {"fp32_gflops": "float32", "int8_gops": "int8"}
    return {
        name: max((row["peak_gflops"] for row in rows if row["dtype"] == dtype), default=None)
        for name, dtype in names.items()
    }


def _row(
    name: str, model: onnx.ModelProto, dtype: str, rounds: int, threads: int
) -> dict[str, Any]:
    graph = run_passes(load_graph(model))
    begin = time.perf_counter()
    module = build_cpu(graph, threads)
    compile_s = time.perf_counter() - begin
    arrays = random_inputs(module.function.inputs)
    named = dict(zip(graph.inputs, arrays, strict=True))
    instruction = fastest_instruction(module.code.kernels, module.code.processor)
    ours = Rival("vdla", lambda: module.run(*arrays))
    peers = [Rival(peer, partial(PEERS[peer](model, threads), named)) for peer in installed_peers()]
    rivals = [
        ours, *peers, Rival("again", ours.run), Rival("peak", partial(peak_kernel, instruction)),
    ]  # fmt: skip
    kernel = _single_product(module.graph, threads)
    if kernel is not None:
        rivals.append(Rival("kernel", kernel))
    for peer in peers:
        _check_equal(name, ours.run(), peer, TOLERANCE[dtype])
    times = alternate(rivals, rounds, time.thread_time if threads == 1 else time.perf_counter)
    work = sum(graph.macs(node) for node in graph.nodes)
    ms = {rival: 1000 * statistics.median(each) for rival, each in times.items()}
    if kernel is not None:
        ms["kernel"] /= KERNEL_CALLS
    calls, busy = (1, times["vdla"]) if kernel is None else (KERNEL_CALLS, times["kernel"])
    at_most = threads * peak_ops(instruction)
    fractions = (
        2 * work * calls / seconds / (at_most / peak_seconds)
        for seconds, peak_seconds in zip(busy, times["peak"], strict=True)
    )
    return {
        "name": name,
        "dtype": dtype,
        "macs": work,
        "compile_s": compile_s,
        "ours_ms": ms["vdla"],
        "peers_ms": {peer.name: ms[peer.name] for peer in peers},
        "ratio": ms["vdla"] / ms[REFERENCE],
        "control": ms["again"] / ms["vdla"],
        "kernel_ms": ms.get("kernel"),
        "gflops": 2 * work / ms.get("kernel", ms["vdla"]) / 1e6,
        "instruction": instruction,
        "peak_gflops": at_most / min(times["peak"]) / 1e9,
        "peak_fraction": statistics.median(fractions),
    }


def _single_product(graph: Graph, threads: int) -> Callable[[], None] | None:
    """A function that makes ``KERNEL_CALLS`` calls of a graph's only convolution or product, by
    itself and in its own layout, as a network calls it: border, bias and clip included. None for a
    graph that has not exactly one, or other products and sums."""
    nodes = [n for n in graph.nodes if n.op.fusion is Fusion.REDUCTION]
    if len(nodes) != 1 or not isinstance(nodes[0].op, _PRODUCTS):
        return None
    [node] = nodes
    part = build_cpu(Part(graph, [node], [node.output]).as_graph(), threads)
    image, result = graph[node.inputs[0]], graph[node.output]
    x = np.random.default_rng(0).normal(0, 1, image.shape).astype(image.dtype)
    function, y = part.function, np.empty(result.shape, result.dtype)
    arena = aligned_memory(part.code.plan.planned_bytes)
    inputs, outputs = (ctypes.c_void_p * 1)(x.ctypes.data), (ctypes.c_void_p * 1)(y.ctypes.data)
    arguments = inputs, outputs, function.parameters.ctypes.data, arena.ctypes.data
    native: Any = function.entry
    entry = ctypes.cast(native, ctypes.c_void_p).value

    def run(*_held: object) -> None:
        repeat_code(len(arguments), KERNEL_CALLS).entry(entry, *arguments)

    return partial(run, part, x, y, arena)  # keeps alive what the addresses point to


def alternate(
    rivals: Sequence[Rival], rounds: int, clock: Callable[[], float] = time.thread_time
) -> dict[str, list[float]]:
    """Run the rivals in turns, and return the seconds of each call, by rival. The clock is by
    default the processor time of this thread."""
    times: dict[str, list[float]] = {rival.name: [] for rival in rivals}
    for turn in range(WARM_ROUNDS + rounds):
        for rival in rivals:
            rival.run()  # so that each finds the caches as it left them itself
            begin = clock()
            rival.run()
            if turn >= WARM_ROUNDS:
                times[rival.name].append(clock() - begin)
    return times


def _check_equal(name: str, ours: Sequence[np.ndarray], peer: Rival, tolerance: float) -> None:
    for a, b in zip(ours, peer.run(), strict=True):
        difference, largest = float(np.abs(a - b).max()), float(np.abs(b).max())
        if not difference <= tolerance * largest:
            raise VdlaError(
                f"{name}: results differ from {peer.name}'s by {difference:g}, of {largest:g}"
            )
