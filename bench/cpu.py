"""Machine code of the host against ONNX Runtime: networks and layers in float32, one thread.

Both run in turns in one process, and their times are those of the calling thread, so that other
work on the machine disturbs them little and both alike. What the processor can do at most is
measured in the same turns, by a loop of nothing but products and sums of vectors.
"""

from __future__ import annotations

import ctypes
import statistics
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import cache, partial
from typing import Any

import numpy as np
import onnx
from llvmlite import ir

from ..compiler.build import load_graph
from ..compiler.codegen.cpu import build_cpu, build_part
from ..compiler.codegen.llvm_vector import splat
from ..compiler.codegen.machine import MachineCode, host, load, optimise
from ..compiler.graph.blocked_ops import BlockedConv2d, BlockedDepthwise
from ..compiler.graph.ir import Graph
from ..compiler.graph.passes import run_passes
from ..isa.errors import VdlaError
from ..runtime.native import aligned_memory
from .table2 import choose_layers
from .workloads import NETWORKS

#: Turns of which the medians count, after some that only warm caches up.
ROUNDS, WARM_ROUNDS = 15, 2
#: Products and sums that are independent of one another, and how often each is repeated: more than
#: the latency of one hides, and about a millisecond.
PEAK_CHAINS, PEAK_STEPS = 24, 120_000
#: Largest difference from the other's results, relative to the largest of them.
TOLERANCE = 1e-4


@dataclass(frozen=True)
class Rival:
    """One way to run a model: ``run`` is a call without arguments."""

    name: str
    run: Callable[[], Any]


def cpu_rows(
    models: Sequence[str],
    layers: Sequence[str],
    rounds: int = ROUNDS,
    progress: Callable[[int, int], None] | None = None,
) -> list[dict[str, Any]]:
    """One row for each network and for each layer of table 2.

    Raises VdlaError for an unknown name, without ONNX Runtime, and when results differ.
    """
    for name in models:
        if name not in NETWORKS:
            raise VdlaError(f"models: expected names from {', '.join(NETWORKS)}, got {name!r}")
    chosen = choose_layers(layers) if layers else []
    jobs = [(name, NETWORKS[name](1, False)) for name in models]
    jobs += [(layer.name, layer.model(1, False)) for layer in chosen]
    rows = []
    for done, (name, model) in enumerate(jobs):
        rows.append(_row(name, model, rounds))
        if progress is not None:
            progress(done + 1, len(jobs))
    return rows


def _row(name: str, model: onnx.ModelProto, rounds: int) -> dict[str, Any]:
    graph = run_passes(load_graph(model, batch=1))
    begin = time.perf_counter()
    module = build_cpu(graph)
    compile_s = time.perf_counter() - begin
    rng = np.random.default_rng(0)
    inputs = {n: rng.normal(0, 1, graph[n].shape).astype(np.float32) for n in graph.inputs}
    session = _session(model)
    rivals = [
        Rival("vdla", lambda: module.run(*inputs.values())),
        Rival("onnxruntime", lambda: session.run(None, inputs)),
        Rival("peak", peak_kernel),
    ]
    kernel = _convolution(module.graph)
    if kernel is not None:
        rivals.append(Rival("kernel", kernel))
    _check_equal(name, rivals[0].run(), rivals[1].run())
    times = alternate(rivals, rounds)
    macs = _macs(model)
    ms = {rival: 1000 * statistics.median(each) for rival, each in times.items()}
    gflops = 2 * macs / ms.get("kernel", ms["vdla"]) / 1e6
    peak = peak_flop() / min(times["peak"]) / 1e9
    return {
        "name": name,
        "macs": macs,
        "compile_s": compile_s,
        "vdla_ms": ms["vdla"],
        "onnxruntime_ms": ms["onnxruntime"],
        "ratio": ms["vdla"] / ms["onnxruntime"],
        "kernel_ms": ms.get("kernel"),
        "gflops": gflops,
        "peak_gflops": peak,
        "of_peak": gflops / peak,
    }


def _convolution(graph: Graph) -> Callable[[], None] | None:
    """The one convolution of a graph by itself, in its own layout, as a network calls it: border,
    bias and clip included. None for graphs of several."""
    nodes = [n for n in graph.nodes if isinstance(n.op, BlockedConv2d | BlockedDepthwise)]
    if len(nodes) != 1:
        return None
    [node] = nodes
    part = build_part(graph, [node], [node.output])
    x = np.random.default_rng(0).normal(0, 1, graph[node.inputs[0]].shape).astype(np.float32)
    function, y = part.function, np.empty(graph[node.output].shape, np.float32)
    arena = aligned_memory(part.code.plan.planned_bytes)
    inputs, outputs = (ctypes.c_void_p * 1)(x.ctypes.data), (ctypes.c_void_p * 1)(y.ctypes.data)

    def run(*_held: np.ndarray) -> None:
        function.entry(inputs, outputs, function.parameters.ctypes.data, arena.ctypes.data)

    return partial(run, x, y)  # which holds what the addresses point to


def alternate(rivals: Sequence[Rival], rounds: int) -> dict[str, list[float]]:
    """Seconds of this thread that each call took, by rival, in turns."""
    times: dict[str, list[float]] = {rival.name: [] for rival in rivals}
    for turn in range(WARM_ROUNDS + rounds):
        for rival in rivals:
            rival.run()  # so that each finds the caches as it left them itself
            begin = time.thread_time()
            rival.run()
            if turn >= WARM_ROUNDS:
                times[rival.name].append(time.thread_time() - begin)
    return times


def _session(model: onnx.ModelProto) -> Any:
    try:
        import onnxruntime
    except ImportError:
        raise VdlaError(
            "bench cpu: expected the package onnxruntime to compare with, which is not installed; "
            "install it with pip install onnxruntime"
        ) from None
    options = onnxruntime.SessionOptions()
    options.intra_op_num_threads = options.inter_op_num_threads = 1
    return onnxruntime.InferenceSession(
        model.SerializeToString(), options, providers=["CPUExecutionProvider"]
    )


def _check_equal(name: str, ours: Sequence[np.ndarray], theirs: Sequence[np.ndarray]) -> None:
    for a, b in zip(ours, theirs, strict=True):
        difference, largest = float(np.abs(a - b).max()), float(np.abs(b).max())
        if not difference <= TOLERANCE * largest:
            raise VdlaError(
                f"{name}: results differ from ONNX Runtime's by {difference:g}, of {largest:g}"
            )


def _macs(model: onnx.ModelProto) -> int:
    """Multiply-accumulates of convolutions and dense layers."""
    inferred = onnx.shape_inference.infer_shapes(model).graph
    shapes = {
        value.name: [d.dim_value for d in value.type.tensor_type.shape.dim]
        for value in (*inferred.value_info, *inferred.output)
    }
    weights = {w.name: w.dims for w in model.graph.initializer}
    total = 0
    for node in model.graph.node:
        if node.op_type == "Conv":
            total += int(np.prod(shapes[node.output[0]]) * np.prod(weights[node.input[1]][1:]))
        elif node.op_type == "Gemm":
            total += int(shapes[node.output[0]][0] * np.prod(weights[node.input[1]]))
    return total


# ---- the peak -----------------------------------------------------------------------------------


def peak_flop() -> int:
    """Floating-point operations of one :func:`peak_kernel`."""
    return 2 * PEAK_CHAINS * PEAK_STEPS * host().vector_lanes


def peak_kernel() -> None:
    """Products and sums of vectors in registers, as many as the processor can do."""
    numbers = np.zeros(PEAK_CHAINS * host().vector_lanes + 2, np.float32)
    _peak_code().entry(numbers.ctypes.data)


@cache
def _peak_code() -> MachineCode:
    """``for step: for chain: sum[chain] = sum[chain] * a + b``, with a and b from memory."""
    lanes, i64, real = host().vector_lanes, ir.IntType(64), ir.FloatType()
    vector = ir.VectorType(real, lanes)
    module = ir.Module("peak")
    signature = ir.FunctionType(ir.VoidType(), [ir.PointerType()])
    function = ir.Function(module, signature, "peak")
    entry, body = function.append_basic_block("entry"), function.append_basic_block("body")
    end = function.append_basic_block("end")
    builder = ir.IRBuilder(entry)

    def place(index: int) -> Any:
        return builder.gep(function.args[0], [i64(index)], source_etype=real)

    first = PEAK_CHAINS * lanes
    a, b = (splat(builder, builder.load(place(first + i), typ=real), lanes) for i in range(2))
    builder.branch(body)
    builder.position_at_end(body)
    step = builder.phi(i64)
    sums = [builder.phi(vector) for _ in range(PEAK_CHAINS)]
    fma = ir.Function(module, ir.FunctionType(vector, [vector] * 3), f"llvm.fmuladd.v{lanes}f32")
    following = builder.add(step, i64(1))
    step.add_incoming(i64(0), entry)
    step.add_incoming(following, body)
    for chain, total in enumerate(sums):
        total.add_incoming(ir.Constant(vector, [float(chain)] * lanes), entry)
        total.add_incoming(builder.call(fma, [total, a, b]), body)
    builder.cbranch(builder.icmp_unsigned("<", following, i64(PEAK_STEPS)), body, end)
    builder.position_at_end(end)
    for chain, total in enumerate(sums):
        builder.store(total.incomings[1][0], place(chain * lanes), align=4)
    builder.ret_void()
    return load(optimise(module, host()), "peak", 1)
