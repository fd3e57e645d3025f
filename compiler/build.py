"""From a model to a program, top to bottom.

load -> GRAPH_PASSES -> for each operator on the accelerator: expression and schedule
(``topi/accel.py``) -> TIR_PASSES -> code generation -> tokens -> checked
:class:`~vdla.isa.program.Program`. For the CPU: the same graph through ``codegen/cpu.py``.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property
from pathlib import Path

import numpy as np

from ..isa.asm import disassemble
from ..isa.check import check
from ..isa.depend import deadlines, dependencies, order_by_tokens, reorder
from ..isa.errors import VdlaError
from ..isa.insn import Insn
from ..isa.memory import MemoryParams
from ..isa.params import HwParams
from ..isa.program import PROGRAM_ALIGN_BYTES, Program
from .codegen.accel import generate
from .codegen.order import dispatch_order, loads_by_need
from .codegen.stream import Stream
from .graph.interpret import evaluate_op
from .graph.ir import Graph, Node, Tensor, dump
from .graph.onnx import import_onnx
from .graph.ops import Conv2d, Dense, QConv2d, QDense, Reshape
from .graph.passes import run_passes
from .graph.passes.pack_windows import pack_windows
from .graph.tflite import import_tflite, is_tflite
from .graph.verify import verify as verify_graph
from .runtime.layout import activation_bytes, pack_activation, unpack_activation
from .tir.ir import PrimFunc
from .tir.passes.double_buffer import double_buffer
from .tir.passes.vthread import interleave_vthreads
from .tir.printer import print_func
from .tir.verify import verify
from .topi.lowering import lower_node, parameters_of

#: What happens to the loop program of every operator, in order.
TIR_PASSES: tuple[Callable[[PrimFunc], PrimFunc], ...] = (double_buffer, interleave_vthreads)


@dataclass(frozen=True)
class LayerInfo:
    """One operator of the model: where it runs and why, its work, its instructions.

    ``macs`` and ``compulsory_bytes`` count the model's own channels; ``runs`` are its instructions:
    first and last, inclusive, of every unbroken run; None on the host.
    """

    name: str
    op: str
    target: str
    reason: str
    macs: int
    compulsory_bytes: int
    runs: tuple[tuple[int, int], ...] | None


def build(
    model: object,
    target: str,
    hw: HwParams,
    memory: MemoryParams,
    vthreads: int = 2,
    dump_ir: str | Path | None = None,
) -> CompiledModel:
    """Compile a model (path, bytes, onnx.ModelProto or Graph) for ``sim``, ``rtl`` or ``cpu``.

    Raises VdlaError for a model that cannot be read or an operator that nothing can run, naming it.
    """
    dumps = _Dumps(dump_ir)
    graph = load_graph(model, batch=hw.batch)
    dumps.write("graph", "import", dump(graph))
    graph = run_passes(graph, observe=lambda name, g: dumps.write("graph", name, dump(g)))
    if target == "cpu":
        return CompiledModel(graph, hw, tuple(_host_layer(graph, n) for n in graph.nodes))
    return _build_accelerator(graph, hw, memory, vthreads, dumps)


def load_graph(model: object, batch: int) -> Graph:
    """The graph of a model: TensorFlow Lite files by suffix or identifier, else ONNX."""
    if isinstance(model, Graph):
        return model
    if is_tflite(model):
        return import_tflite(model, batch=batch)  # type: ignore[arg-type]
    return import_onnx(model, batch=batch)  # type: ignore[arg-type]


def _build_accelerator(
    graph: Graph, hw: HwParams, memory: MemoryParams, vthreads: int, dumps: _Dumps
) -> CompiledModel:
    graph = pack_windows(graph, hw.block)
    verify_graph(graph)
    dumps.write("graph", "pack_windows", dump(graph))
    before, accelerated, after = _partition(graph)
    stream = Stream(hw)
    placed = _place_activations(graph, accelerated, stream)
    layers = [_host_layer(graph, node) for node in before]
    for node in accelerated:
        first = len(stream.insns)
        if not isinstance(node.op, Reshape):
            _generate_node(graph, node, stream, placed, memory, vthreads, dumps)
        layers.append(_accelerator_layer(graph, node, ((first, len(stream.insns) - 1),)))
    layers += [_host_layer(graph, node, after) for node in after]
    program, layers = _finish(graph, accelerated, stream, placed, layers, memory)
    if accelerated:
        dumps.write("program", "insns", disassemble(program))
        findings = check(program)
        if findings:
            raise VdlaError(f"compiled program does not pass the checker: {findings[0]}")
    return CompiledModel(graph, hw, tuple(layers), program, before, accelerated, after, placed)


def _partition(graph: Graph) -> tuple[tuple[Node, ...], tuple[Node, ...], tuple[Node, ...]]:
    """Nodes on the host before the accelerator's program, in it, and after it.

    One program runs at a time: what depends on a host operator that depends on the accelerator
    stays on the host.
    """
    before: list[Node] = []
    accelerated: list[Node] = []
    after: list[Node] = []
    for node in graph.nodes:
        sources = set(node.inputs)
        behind_host = sources & {n.output for n in after}
        behind_accelerator = sources & {n.output for n in accelerated}
        if node.target == "accel" and not behind_host:
            accelerated.append(node)
        elif behind_host or behind_accelerator:
            after.append(node)
        else:
            before.append(node)
    return tuple(before), tuple(accelerated), tuple(after)


def _place_activations(graph: Graph, accelerated: Sequence[Node], stream: Stream) -> dict[str, int]:
    """DRAM address of every tensor that the accelerator reads or writes; a reshape shares its
    source's.
    """
    placed: dict[str, int] = {}
    for node in accelerated:
        for name in (*node.inputs, node.output):
            tensor = graph[name]
            if tensor.is_constant or name in placed:
                continue
            if isinstance(node.op, Reshape) and name == node.output:
                placed[name] = placed[node.inputs[0]]
            else:
                placed[name] = stream.dram.allocate(activation_bytes(tensor.shape, stream.params))
    return placed


def _generate_node(
    graph: Graph,
    node: Node,
    stream: Stream,
    placed: dict[str, int],
    memory: MemoryParams,
    vthreads: int,
    dumps: _Dumps,
) -> None:
    """Append one operator's instructions."""
    func = lower_node(graph, node, stream.params, memory, vthreads)
    verify(func)
    dumps.write(node.name, "lower", print_func(func))
    for apply in TIR_PASSES:
        func = apply(func)
        verify(func)
        dumps.write(node.name, apply.__name__, print_func(func))
    activations = [placed[name] for name in node.inputs if not graph[name].is_constant]
    constants = parameters_of(graph, node, stream.params)
    addresses = [*activations, *(stream.dram.constant(data.tobytes()) for data in constants)]
    addresses.append(placed[node.output])
    generate(func, stream, dict(zip(func.params, addresses, strict=True)))


def _finish(
    graph: Graph,
    accelerated: Sequence[Node],
    stream: Stream,
    placed: dict[str, int],
    layers: Sequence[LayerInfo],
    memory: MemoryParams,
) -> tuple[Program, list[LayerInfo]]:
    """The order of instructions, tokens, meta data and the place of the instructions themselves;
    and the layers with the places of their instructions.
    """
    produced = {node.output for node in accelerated}
    needed = {name for node in accelerated for name in node.inputs}
    read_later = {n for node in graph.nodes if node not in accelerated for n in node.inputs}
    image = dict(stream.dram.image)
    insns, order = _ordered(stream, image, memory)
    layers = [_placed_layer(layer, order) for layer in layers]
    address = stream.dram.allocate(len(insns) * stream.params.insn_bytes, PROGRAM_ALIGN_BYTES)

    def region(name: str) -> dict:
        tensor = graph[name]
        size = activation_bytes(tensor.shape, stream.params)
        shape = list(tensor.shape)
        return {
            "name": name, "address": placed[name], "bytes": size, "shape": shape, "layout": "NCHWc",
        }  # fmt: skip

    outputs = [n for n in placed if n in produced and (n in read_later or n in graph.outputs)]
    meta = {
        "dram_bytes": -(-stream.dram.end // PROGRAM_ALIGN_BYTES) * PROGRAM_ALIGN_BYTES,
        "inputs": [region(n) for n in placed if n in needed and n not in produced],
        "outputs": [region(n) for n in outputs],
        "layers": [
            {"name": layer.name, "op": layer.op, "runs": layer.runs, "macs": layer.macs,
             "bytes": layer.compulsory_bytes}
            for layer in layers if layer.runs
        ],
    }  # fmt: skip
    return Program(stream.params, tuple(insns), image, meta, address), layers


def _ordered(
    stream: Stream, image: dict[int, bytes], memory: MemoryParams
) -> tuple[list[Insn], list[int]]:
    """The instructions with tokens in the order in which they are fetched, and the places where
    they were in the stream.
    """
    late = loads_by_need(deadlines(stream.insns, stream.params, image))
    insns = [stream.insns[i] for i in late]
    needs = dependencies(insns, stream.params, image)
    order = dispatch_order(insns, needs, stream.params, memory)
    return order_by_tokens(*reorder(insns, needs, order)), [late[i] for i in order]


def _placed_layer(layer: LayerInfo, order: Sequence[int]) -> LayerInfo:
    """The layer with its instructions in another order, as runs."""
    if not layer.runs:
        return layer
    ((first, last),) = layer.runs
    mine = np.flatnonzero([first <= index <= last for index in order])
    breaks = np.flatnonzero(np.diff(mine) > 1)
    begins, ends = mine[np.r_[0, breaks + 1]], mine[np.r_[breaks, mine.size - 1]]
    runs = tuple((int(a), int(b)) for a, b in zip(begins, ends, strict=True))
    return replace(layer, runs=runs)


# ---- layers ------------------------------------------------------------------------------------


def _macs(graph: Graph, node: Node) -> int:
    """The model's own multiply-accumulates, float ones too."""
    result = graph.result(node).shape
    match node.op:
        case QConv2d() | Conv2d():
            weight = graph[node.inputs[1]].shape
            return int(np.prod(result)) * int(np.prod(weight[1:]))
        case QDense() | Dense():
            return int(np.prod(result)) * graph[node.inputs[0]].shape[1]
    return 0


def _compulsory_bytes(graph: Graph, node: Node) -> int:
    """Bytes of operands and result, each once."""
    tensors: list[Tensor] = [*graph.operands(node), graph.result(node)]
    return sum(
        int(np.prod(t.shape)) * (4 if t.dtype in ("int32", "float32") else 1) for t in tensors
    )


def _host_layer(graph: Graph, node: Node, after: Sequence[Node] = ()) -> LayerInfo:
    """A node on the host, with why it is not on the accelerator; ``after`` run behind that."""
    reason = node.reason
    if node.target == "accel":
        source = next((n.name for n in after if n.output in node.inputs), None)
        reason = f"target cpu; the accelerator could run it: {reason}"
        if source is not None:
            reason = f"needs {source}, which runs on the host after the accelerator"
    return LayerInfo(
        node.name, type(node.op).__name__, "cpu", reason,
        _macs(graph, node), _compulsory_bytes(graph, node), None,
    )  # fmt: skip


def _accelerator_layer(graph: Graph, node: Node, runs: tuple[tuple[int, int], ...]) -> LayerInfo:
    runs = tuple(run for run in runs if run[0] <= run[1])
    return LayerInfo(
        node.name, type(node.op).__name__, "accel", node.reason,
        _macs(graph, node), _compulsory_bytes(graph, node), runs,
    )  # fmt: skip


# ---- the result --------------------------------------------------------------------------------


@dataclass(frozen=True)
class CompiledModel:
    """A model with everything that is needed to run it: host operators around one accelerator
    program.
    """

    graph: Graph
    params: HwParams
    layers: tuple[LayerInfo, ...]
    program: Program | None = None
    before: tuple[Node, ...] = ()
    accelerated: tuple[Node, ...] = ()
    after: tuple[Node, ...] = ()
    placed: dict[str, int] = field(default_factory=dict)

    @property
    def inputs(self) -> tuple[Tensor, ...]:
        """The model's inputs."""
        return tuple(self.graph[name] for name in self.graph.inputs)

    @property
    def outputs(self) -> tuple[Tensor, ...]:
        """The model's outputs."""
        return tuple(self.graph[name] for name in self.graph.outputs)

    def _host(self, nodes: Sequence[Node], values: dict[str, np.ndarray]) -> None:
        for node in nodes:
            values[node.output] = evaluate_op(node.op, *(values[n] for n in node.inputs))

    def _start(self, arrays: Sequence[np.ndarray]) -> dict[str, np.ndarray]:
        values = {t.name: t.data for t in self.graph.tensors.values() if t.data is not None}
        values |= dict(zip(self.graph.inputs, arrays, strict=True))
        self._host(self.before, values)
        return values

    def dram(self, arrays: Sequence[np.ndarray]) -> np.ndarray:
        """DRAM before the run (uint8): constants, instructions and the packed inputs."""
        assert self.program is not None
        values = self._start(arrays)
        dram = self.program.dram_image()
        for region in self.program.meta["inputs"]:
            data = pack_activation(values[region["name"]], self.params)
            dram[region["address"] : region["address"] + data.size] = data
        return dram

    def results(self, dram: np.ndarray, arrays: Sequence[np.ndarray]) -> list[np.ndarray]:
        """The outputs: the accelerator's from DRAM after the run, then the host operators behind
        it.
        """
        assert self.program is not None
        values = self._start(arrays)
        for region in self.program.meta["outputs"]:
            data = dram[region["address"] : region["address"] + region["bytes"]]
            values[region["name"]] = unpack_activation(data, tuple(region["shape"]), self.params)
        self._host(self.after, values)
        return [values[name] for name in self.graph.outputs]

    @cached_property
    def _cpu(self):
        from .codegen.cpu import build_cpu

        return build_cpu(self.graph)

    def run_cpu(self, arrays: Sequence[np.ndarray]) -> list[np.ndarray]:
        """The whole model as machine code on the host."""
        return self._cpu.run(*arrays)


@dataclass
class _Dumps:
    """Intermediate representations as numbered text files in a directory."""

    directory: str | Path | None
    count: int = 0

    def write(self, what: str, step: str, text: str) -> None:
        if self.directory is None:
            return
        root = Path(self.directory)
        root.mkdir(parents=True, exist_ok=True)
        name = "".join(c if c.isalnum() or c in "-_." else "_" for c in what)
        (root / f"{self.count:03d}_{name}_{step}.txt").write_text(text)
        self.count += 1
