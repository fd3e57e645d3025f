"""From a model to a program, top to bottom.

load -> GRAPH_PASSES -> for each operator on the accelerator: expression and schedule
(``topi/accel.py``) -> TIR_PASSES -> code generation -> tokens -> checked
:class:`~vdla.isa.program.Program`. For the CPU: the same graph through ``codegen/cpu.py``.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from ..isa.asm import disassemble
from ..isa.check import check
from ..isa.depend import insert_tokens
from ..isa.errors import VdlaError
from ..isa.memory import MemoryParams
from ..isa.params import HwParams
from ..isa.program import PROGRAM_ALIGN_BYTES, Program
from .codegen.accel import generate
from .codegen.stream import Stream
from .compiled import CompiledModel, LayerInfo, Segment
from .graph.ir import Graph, Node, Tensor, dump
from .graph.onnx import import_onnx
from .graph.ops import QConv2d, QDense, Reshape
from .graph.passes import run_passes
from .graph.tflite import import_tflite, is_tflite
from .runtime.layout import activation_bytes
from .segments import retarget, split
from .tir.ir import PrimFunc
from .tir.passes.vthread import interleave_vthreads
from .tir.printer import print_func
from .tir.verify import verify
from .topi.lowering import lower_node, parameters_of

#: What happens to the loop program of every operator, in order.
TIR_PASSES: tuple[Callable[[PrimFunc], PrimFunc], ...] = (interleave_vthreads,)


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
        return CompiledModel(graph, hw, tuple(_host_layer(graph, n, "cpu") for n in graph.nodes))
    return _build_accelerator(graph, hw, vthreads, dumps)


def load_graph(model: object, batch: int) -> Graph:
    """The graph of a model: TensorFlow Lite files by suffix or identifier, else ONNX."""
    if isinstance(model, Graph):
        return model
    if is_tflite(model):
        return import_tflite(model, batch=batch)  # type: ignore[arg-type]
    return import_onnx(model, batch=batch)  # type: ignore[arg-type]


def _build_accelerator(graph: Graph, hw: HwParams, vthreads: int, dumps: _Dumps) -> CompiledModel:
    layers: list[LayerInfo] = []
    segments: list[Segment] = []
    issued = 0
    graph = retarget(graph, hw)
    for target, nodes in split(graph):
        if target == "cpu":
            layers += [_host_layer(graph, node, "cpu") for node in nodes]
            segments.append(Segment(nodes))
            continue
        program, spans = _build_program(graph, nodes, hw, vthreads, dumps)
        segments.append(Segment(nodes, program))
        layers += [
            _accelerator_layer(graph, node, (first + issued, last + issued))
            for node, (first, last) in zip(nodes, spans, strict=True)
        ]
        issued += len(program.insns)
    return CompiledModel(graph, hw, tuple(layers), tuple(segments))


def _build_program(
    graph: Graph, nodes: tuple[Node, ...], hw: HwParams, vthreads: int, dumps: _Dumps
) -> tuple[Program, list[tuple[int, int]]]:
    """The checked program of a segment, and the instructions of each node: first and last."""
    stream = Stream(hw)
    placed = _place_activations(graph, nodes, stream)
    spans = []
    for node in nodes:
        first = len(stream.insns)
        if not isinstance(node.op, Reshape):
            _generate_node(graph, node, stream, placed, vthreads, dumps)
        spans.append((first, len(stream.insns) - 1))
    layers = [_accelerator_layer(graph, n, span) for n, span in zip(nodes, spans, strict=True)]
    program = _finish(graph, nodes, stream, placed, layers)
    dumps.write("program", "insns", disassemble(program))
    findings = check(program)
    if findings:
        raise VdlaError(f"compiled program does not pass the checker: {findings[0]}")
    return program, spans


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
    graph: Graph, node: Node, stream: Stream, placed: dict[str, int], vthreads: int, dumps: _Dumps
) -> None:
    """Append one operator's instructions."""
    func = lower_node(graph, node, stream.params, vthreads)
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
) -> Program:
    """Tokens, meta data and the place of the instructions themselves."""
    produced = {node.output for node in accelerated}
    needed = {name for node in accelerated for name in node.inputs}
    read_later = {n for node in graph.nodes if node not in accelerated for n in node.inputs}
    image = dict(stream.dram.image)
    insns = insert_tokens(stream.insns, stream.params, image)
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
            {"name": layer.name, "op": layer.op, "first": layer.span[0], "last": layer.span[1],
             "macs": layer.macs, "bytes": layer.compulsory_bytes}
            for layer in layers if layer.span is not None
        ],
    }  # fmt: skip
    return Program(stream.params, tuple(insns), image, meta, address)


# ---- layers ------------------------------------------------------------------------------------


def _macs(graph: Graph, node: Node) -> int:
    """The model's own multiply-accumulates."""
    result = graph.result(node).shape
    match node.op:
        case QConv2d():
            weight = graph[node.inputs[1]].shape
            return int(np.prod(result)) * int(np.prod(weight[1:]))
        case QDense():
            return int(np.prod(result)) * graph[node.inputs[1]].shape[1]
    return 0


def _compulsory_bytes(graph: Graph, node: Node) -> int:
    """Bytes of operands and result, each once."""
    tensors: list[Tensor] = [*graph.operands(node), graph.result(node)]
    return sum(
        int(np.prod(t.shape)) * (4 if t.dtype in ("int32", "float32") else 1) for t in tensors
    )


def _host_layer(graph: Graph, node: Node, target: str) -> LayerInfo:
    reason = node.reason if node.target == "cpu" else "between operators on the host"
    if target == "cpu" and node.target == "accel" and not reason:
        reason = "target cpu"
    return LayerInfo(
        node.name, type(node.op).__name__, target, reason,
        _macs(graph, node), _compulsory_bytes(graph, node), None,
    )  # fmt: skip


def _accelerator_layer(graph: Graph, node: Node, span: tuple[int, int]) -> LayerInfo:
    return LayerInfo(
        node.name, type(node.op).__name__, "accel", node.reason,
        _macs(graph, node), _compulsory_bytes(graph, node), span if span[1] >= span[0] else None,
    )  # fmt: skip


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
