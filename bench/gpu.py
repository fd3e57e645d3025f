"""Networks and products of matrices on an NVIDIA GPU: correct first, then medians of replayed
graphs, each an image or a batch of them, beside PyTorch's."""

from __future__ import annotations

import gc
import multiprocessing
import statistics
from collections.abc import Callable, Iterable, Sequence
from concurrent.futures import ProcessPoolExecutor
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
import onnx

from ..compiler.dumps import Dumps
from ..compiler.graph.arithmetic.requant import Requant
from ..compiler.graph.ir import Graph, Node, Tensor
from ..compiler.graph.ops.linear import Dense, QDense
from ..compiler.graph.ops.narrow import Narrow
from ..compiler.targets.gpu.architectures import choose_architecture
from ..compiler.targets.gpu.dialects import CUDA
from ..compiler.targets.gpu.func_code import FuncKernels
from ..compiler.targets.gpu.lowering import PRECISIONS, lower_node, template_of, templates_of
from ..compiler.targets.gpu.tensor_cores import element_of
from ..compiler.te.expr import HALF_DTYPES
from ..isa.errors import VdlaError
from ..module import compile
from ..runtime.gpu.cuda import CudaSession, capability_of_device, load_driver
from ..runtime.gpu.program import KernelProgram
from ..runtime.processor import host
from .measure import Progress, check_some, random_inputs, told
from .modern import MODERN
from .torch_peer import WAYS, TorchPeer, check_installed, product_ms
from .workloads import NETWORKS

#: What a network runs in: its own int8, or float32 with factors of this precision.
KINDS = ("int8", *PRECISIONS)
#: Transformers, which are built in float and for one image or sentence.
TRANSFORMERS = {name: MODERN[name] for name in ("bert", "gpt2", "vit_tiny")}
MODELS = (*NETWORKS, *TRANSFORMERS)
#: Replays before those that count.
WARM_ROUNDS = 3
#: Largest difference from the CPU's result, relative to the largest of these: other functions at
#: the end of integer networks, sums in another order, and factors of 10, 11 and 8 bits through
#: some twenty layers.
TOLERANCE = {"int8": 1e-6, "float32": 1e-4, "tf32": 4e-2, "float16": 2e-2, "bfloat16": 1e-1}
#: Libraries that networks are compared with: PyTorch as it is and as graphs, and compiled, too.
PEERS = {"torch": WAYS[:2], "torch.compile": WAYS[2:]}
#: Rows of a product that are compared with NumPy's.
ROWS_COMPARED = 8

Open = Callable[[KernelProgram], CudaSession]


@dataclass(frozen=True, eq=False)
class _Prepared:
    """A network for the GPU, random inputs, and the CPU's results."""

    program: KernelProgram
    arrays: list[np.ndarray]
    wanted: list[np.ndarray]


def gpu_rows(
    models: Sequence[str],
    kinds: Sequence[str],
    batches: Sequence[int],
    rounds: int,
    progress: Progress | None = None,
    open: Open = CudaSession,
    peers: Sequence[str] = (),
) -> list[dict[str, Any]]:
    """One row for each network, kind of numbers and batch. All are compiled first, by as many
    processes as there are processors, so that nothing else runs while they are measured. Peers take
    turns with our replays; they run float networks.

    Raises
    ------
    VdlaError
        For an unknown name, without a GPU or its driver, and where a result is wrong.
    """
    check_some("models", models, MODELS)
    check_some("kinds", kinds, KINDS)
    for name in models:
        if name in TRANSFORMERS and ("int8" in kinds or max(batches) > 1):
            raise VdlaError(
                f"bench gpu: expected float kinds and batch 1 for {name}, got "
                f"{', '.join(kinds)} and {', '.join(map(str, batches))}; name them by --kinds and "
                "--batches"
            )
    ways = _choose_ways(peers)
    cases = [(m, k, b) for m in models for k in kinds for b in batches]
    networks, rows = list[_Prepared](), list[dict[str, Any]]()

    def advance() -> None:
        if progress is not None:
            progress(len(networks) + len(rows), 2 * len(cases))

    for made in _all_prepared(cases, open):
        networks.append(made)
        advance()
    for (model, kind, batch), made in zip(cases, networks, strict=True):
        rows.append(_row(model, kind, batch, made, rounds, open, ways))
        advance()
    return rows


def _choose_ways(peers: Sequence[str]) -> tuple[str, ...]:
    """The ways of PyTorch that these names stand for."""
    if not peers:
        return ()
    check_some("peers", peers, tuple(PEERS))
    check_installed()
    return tuple(way for peer, ways in PEERS.items() if peer in peers for way in ways)


def _all_prepared(cases: Sequence[tuple[str, str, int]], open: Open) -> Iterable[_Prepared]:
    """All networks, in order."""
    if open is CudaSession:
        load_driver()  # before the work of the compiler
    workers = min(len(cases), host().cores)
    if workers == 1:
        yield from map(_prepared, cases)
        return
    with ProcessPoolExecutor(workers, multiprocessing.get_context("spawn")) as pool:
        yield from pool.map(_prepared, cases)


def _prepared(case: tuple[str, str, int]) -> _Prepared:
    model, kind, batch = case
    data = _model(model, kind, batch).SerializeToString()
    module = compile(data, "cuda", precision=_precision(kind))
    [step] = module.compiled.steps
    assert isinstance(step, KernelProgram)
    arrays = random_inputs(module.compiled.inputs)
    return _Prepared(step, arrays, compile(data, "cpu").run(*arrays))


def _model(name: str, kind: str, batch: int) -> onnx.ModelProto:
    if name in TRANSFORMERS:
        return TRANSFORMERS[name]()
    return NETWORKS[name](batch, kind == "int8")


def _precision(kind: str) -> str:
    """The precision that a network of this kind is compiled with; integers have none."""
    return PRECISIONS[0] if kind == "int8" else kind


def _row(
    model: str,
    kind: str,
    batch: int,
    made: _Prepared,
    rounds: int,
    open: Open,
    ways: Sequence[str],
) -> dict[str, Any]:
    """Run one network, compare it with the CPU, and measure it."""
    gc.collect()  # an earlier peer's graphs end here, and not while ours is captured
    session = open(made.program)
    got = replace(made.program, open=lambda program: session).run(*made.arrays)
    error = error_of(got, made.wanted)
    if error > TOLERANCE[kind]:
        raise VdlaError(
            f"bench gpu: {model} in {kind}: expected the CPU's results within {TOLERANCE[kind]:g}, "
            f"got a difference of {error:g}"
        )
    peer = None
    if ways and kind != "int8":
        peer = TorchPeer(_model(model, kind, batch), made.arrays, kind, ways)
    times_ms, theirs = _alternating(session, peer, rounds)
    medians = {way: statistics.median(times) for way, times in theirs.items()}
    median_ms = statistics.median(times_ms)
    return {
        "name": model, "kind": kind, "batch": batch, "kernels": len(made.program.calls),
        "error": error, "median_ms": median_ms, "least_ms": min(times_ms),
        "torch_ms": medians, "ratio": median_ms / min(medians.values()) if medians else None,
    }  # fmt: skip


def _alternating(
    session: CudaSession, peer: TorchPeer | None, rounds: int
) -> tuple[list[float], dict[str, list[float]]]:
    """The times of our replays, and of the peer's ways, in turns, in milliseconds."""
    if peer is None:
        return session.time_replays(WARM_ROUNDS + rounds)[WARM_ROUNDS:], {}
    ours: list[float] = []
    theirs: dict[str, list[float]] = {way: [] for way in peer.ways}
    for number in range(WARM_ROUNDS + rounds):
        # Of two replays in a row, the second one finds the caches as a network leaves them.
        mine = session.time_replays(2)[1:]
        found = {way: peer.time_ms(way) for way in peer.ways}
        if number >= WARM_ROUNDS:
            ours += mine
            for way, time_ms in found.items():
                theirs[way].append(time_ms)
    return ours, theirs


def error_of(got: Sequence[np.ndarray], wanted: Sequence[np.ndarray]) -> float:
    """The largest difference, relative to the largest value."""
    return max(
        float(np.abs(a.astype(np.float64) - b).max() / max(1e-30, np.abs(b).max()))
        for a, b in zip(got, wanted, strict=True)
    )


# ---- products of matrices ----------------------------------------------------------------------


def product_rows(
    kinds: Sequence[str],
    sizes: Sequence[int],
    rounds: int,
    progress: Progress | None = None,
    open: Open = CudaSession,
    peers: Sequence[str] = (),
) -> list[dict[str, Any]]:
    """One row for each kind of numbers and each size of two square matrices, the second one
    transposed, in choices that nobody made. Results have the factors' dtype; those of PyTorch's
    products of int8 are int32.

    Raises
    ------
    VdlaError
        As :func:`gpu_rows`.
    """
    check_some("kinds", kinds, KINDS)
    if peers:
        check_some("peers", peers, tuple(PEERS)[:1])
        check_installed()
    cases = [(kind, size) for kind in kinds for size in sizes]
    return [
        _product_row(kind, size, rounds, open, bool(peers)) for kind, size in told(cases, progress)
    ]


def _product_row(kind: str, size: int, rounds: int, open: Open, has_peer: bool) -> dict[str, Any]:
    if open is CudaSession:
        load_driver()  # before the work of the compiler
    graph = product_graph(kind, size)
    [node] = graph.nodes
    architecture = choose_architecture(capability_of_device())
    template = template_of(graph, node, templates_of(CUDA, _precision(kind), architecture))
    knobs = next(template.space(template.workload(graph, node)).points())
    lowered = lower_node(graph, node, template, knobs, Dumps())
    program = FuncKernels.of(lowered.func, CUDA, "cuda", Dumps()).program
    rng = np.random.default_rng(0)
    arrays = [random_operand(rng, graph[name]) for name in graph.inputs]
    session = open(program)
    given = [*arrays, *lowered.attributes]
    [got] = replace(program, open=lambda made: session).run(*given)
    error = error_of([got.reshape(size, size)[:ROWS_COMPARED]], [_product(graph, arrays)])
    if error > TOLERANCE[kind]:
        raise VdlaError(
            f"bench gpu-products: {size} in {kind}: expected NumPy's results within "
            f"{TOLERANCE[kind]:g}, got a difference of {error:g}"
        )
    times_ms = session.time_replays(WARM_ROUNDS + rounds)[WARM_ROUNDS:]
    median_ms, torch_ms = statistics.median(times_ms), None
    if has_peer:
        torch_ms = product_ms(arrays[0], arrays[1], kind, WARM_ROUNDS, rounds)
    return {
        "kind": kind, "size": size, "knobs": dict(knobs), "error": error, "median_ms": median_ms,
        "tflops": 2e-9 * size**3 / median_ms, "torch_ms": torch_ms,
        "ratio": median_ms / torch_ms if torch_ms else None,
    }  # fmt: skip


def product_graph(kind: str, size: int) -> Graph:
    """A dense layer of square matrices."""
    dtype = element_of(kind)
    shape = (size, size)
    tensors = {"x": Tensor("x", shape, dtype), "w": Tensor("w", shape, dtype)}
    op: Any = Dense(transposed=True)
    if kind == "int8":
        requant = Requant(np.array([1 << 30], np.int32), np.array([_shift(size)], np.int32), 0)
        op, tensors["b"] = QDense(0, requant), Tensor("b", (size,), "int32")
    elif dtype in HALF_DTYPES:
        op = Narrow(op, dtype)
    names = tuple(tensors)
    tensors["y"] = Tensor("y", shape, dtype)
    return Graph("product", names, ("y",), (Node("product", op, names, "y"),), tensors)


def _shift(size: int) -> int:
    """By how much sums of random products are shifted, so that few results are at the ends."""
    return 30 + 7 + size.bit_length() // 2


def random_operand(rng: np.random.Generator, tensor: Tensor) -> np.ndarray:
    """Values of an operand of :func:`product_graph`; biases are 0."""
    if tensor.dtype == "int32":
        return np.zeros(tensor.shape, np.int32)
    if tensor.dtype == "int8":
        return rng.integers(-128, 128, tensor.shape).astype(np.int8)
    return rng.standard_normal(tensor.shape, np.float32).astype(tensor.dtype)


def _product(graph: Graph, arrays: Sequence[np.ndarray]) -> np.ndarray:
    """The first rows of a product: integers by the operator's definition, floats in double
    precision."""
    [node] = graph.nodes
    x, w, *bias = arrays
    x = x[:ROWS_COMPARED]
    if isinstance(node.op, QDense):
        return node.op.evaluate(x, w, *bias)
    return x.astype(np.float64) @ w.astype(np.float64).T
