"""From a model to a program, top to bottom.

load -> GRAPH_PASSES -> for each operator on the accelerator: expression and schedule
(``targets/vdla/expressions.py``) -> TIR_PASSES -> code generation -> tokens -> checked
:class:`~vdla.isa.program.Program`. For the CPU: the same graph through
``targets/cpu/graph_code.py``.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass, replace
from functools import partial
from pathlib import Path

import numpy as np

from ..isa.asm import disassemble
from ..isa.check import check
from ..isa.depend import deadlines, dependencies, order_by_tokens, reorder
from ..isa.errors import VdlaError
from ..isa.insn import Insn
from ..isa.memory import MemoryParams
from ..isa.params import HwParams
from ..isa.program import MAX_DRAM_BYTES, PROGRAM_ALIGN_BYTES, Program
from ..runtime.executable import Executable, LayerInfo
from ..runtime.layout import activation_bytes
from ..runtime.native import NativeCode
from .frontends.onnx.importer import import_onnx
from .frontends.pytorch.importer import import_torch, is_torch
from .frontends.tflite.importer import import_tflite, is_tflite
from .graph.ir import Graph, Node, Tensor, dump
from .graph.passes import run_passes
from .graph.verify import verify as verify_graph
from .targets.cpu.graph_code import build_cpu, build_part, compile_graph, tensor_types
from .targets.cpu.processor import Processor
from .targets.vdla.codegen import generate
from .targets.vdla.lanes import VECTOR_LANE, lane, lower_lanes
from .targets.vdla.lowering import parameters_of
from .targets.vdla.order import dispatch_order, loads_by_need
from .targets.vdla.passes.absorb_flatten import absorb_flatten
from .targets.vdla.passes.pack_windows import pack_windows
from .targets.vdla.passes.reshape_blocks import reshape_blocks
from .targets.vdla.passes.rows_as_places import rows_as_places
from .targets.vdla.placement import place_activations, results
from .targets.vdla.scopes import memory_scopes
from .targets.vdla.segments import retarget, split
from .targets.vdla.stream import Stream
from .te.errors import own_schedules
from .tir.ir import PrimFunc
from .tir.passes.double_buffer import double_buffer
from .tir.passes.vthread import interleave_vthreads
from .tir.printer import print_func
from .tir.scopes import check_scopes
from .tir.verify import verify

#: What happens to the loop program of every operator, in order.
TIR_PASSES: tuple[Callable[[PrimFunc], PrimFunc], ...] = (double_buffer, interleave_vthreads)
#: Why a node is on the host that the accelerator could run.
TARGET_CPU = "target cpu; the accelerator could run it"
BEHIND_HOST = "too little for a program of its own behind the host; the accelerator could run it"


@dataclass(frozen=True, eq=False)
class CompiledModel(Executable):
    """An executable with the graph that it came from, after all passes."""

    graph: Graph

    @staticmethod
    def of(
        graph: Graph,
        hw: HwParams,
        layers: Sequence[LayerInfo],
        steps: Sequence[Program | NativeCode],
    ) -> CompiledModel:
        """The graph's inputs and outputs, and the rest as given."""
        inputs, outputs = tensor_types(graph, graph.inputs), tensor_types(graph, graph.outputs)
        return CompiledModel(inputs, outputs, hw, tuple(layers), tuple(steps), graph)


@own_schedules()
def build(
    model: object,
    target: str,
    hw: HwParams,
    memory: MemoryParams,
    vthreads: int = 2,
    dump_ir: str | Path | None = None,
    threads: int = 1,
) -> CompiledModel:
    """Compile a model (path, bytes, onnx.ModelProto, torch.export.ExportedProgram or Graph) for
    ``sim``, ``rtl`` or ``cpu``; for ``cpu``, to run on so many threads.

    Raises VdlaError for a model that cannot be read or an operator that nothing can run, naming it.
    """
    dumps = _Dumps(dump_ir)
    graph = _optimised_graph(model, hw, dumps)
    if target == "cpu":
        function = build_cpu(graph, threads).function
        return CompiledModel.of(graph, hw, _host_layers(graph), [function])
    return _build_accelerator(graph, hw, memory, vthreads, dumps)


@own_schedules()
def cross_compile(model: object, hw: HwParams, processor: Processor) -> CompiledModel:
    """A model as an object file for another processor, which nothing here can run; errors as
    :func:`build`.
    """
    graph = _optimised_graph(model, hw, _Dumps(None))
    code = compile_graph(graph, processor)
    native = NativeCode(
        graph.name,
        code.inputs,
        code.outputs,
        code.parameters,
        code.plan,
        lambda: code.object_file,
        "o",
    )
    return CompiledModel.of(graph, hw, _host_layers(graph), [native])


def _optimised_graph(model: object, hw: HwParams, dumps: _Dumps) -> Graph:
    graph = load_graph(model, batch=hw.batch)
    dumps.write("graph", "import", partial(dump, graph))
    return run_passes(graph, observe=lambda step, g: dumps.write("graph", step, partial(dump, g)))


def _host_layers(graph: Graph) -> list[LayerInfo]:
    return [_host_layer(graph, node, TARGET_CPU) for node in graph.nodes]


def load_graph(model: object, batch: int) -> Graph:
    """The graph of a model: TensorFlow Lite's and PyTorch's by suffix or identifier, else ONNX."""
    if isinstance(model, Graph):
        return model
    if is_tflite(model):
        return import_tflite(model, batch=batch)  # type: ignore[arg-type]
    if is_torch(model):
        return import_torch(model, batch=batch)
    return import_onnx(model, batch=batch)  # type: ignore[arg-type]


def _accelerator_passes(hw: HwParams) -> dict[str, Callable[[Graph], Graph]]:
    """What happens to a graph for this accelerator, by name, in order."""
    return {
        "absorb_flatten": partial(absorb_flatten, most_places=min(hw.wgt_depth, hw.inp_depth) // 8),
        "rows_as_places": partial(rows_as_places, batch=hw.batch),
        "retarget": partial(retarget, params=hw),
        "pack_windows": partial(pack_windows, block=hw.block),
        "reshape_blocks": partial(reshape_blocks, block=hw.block),
    }


def _build_accelerator(
    graph: Graph, hw: HwParams, memory: MemoryParams, vthreads: int, dumps: _Dumps
) -> CompiledModel:
    for name, apply in _accelerator_passes(hw).items():
        graph = apply(graph)
        verify_graph(graph)
        dumps.write("graph", name, partial(dump, graph))
    layers: list[LayerInfo] = []
    steps: list[Program | NativeCode] = []
    issued = 0
    rows = split(graph)
    for number, (target, nodes) in enumerate(rows):
        if target == "cpu":
            layers += [_host_layer(graph, node, BEHIND_HOST) for node in nodes]
            read = {name for _, later in rows[number + 1 :] for n in later for name in n.inputs}
            wanted = [node.output for node in nodes if node.output in read | {*graph.outputs}]
            steps += [build_part(graph, nodes, wanted).function] if wanted else []
            continue
        program, made = _build_program(graph, nodes, hw, memory, vthreads, dumps)
        steps.append(program)
        layers += [_later(layer, issued) for layer in made]
        issued += len(program.insns)
    constant = [name for name in graph.outputs if graph[name].is_constant]
    steps += [build_part(graph, (), constant).function] if constant else []
    return CompiledModel.of(graph, hw, layers, steps)


def _build_program(
    graph: Graph,
    nodes: Sequence[Node],
    hw: HwParams,
    memory: MemoryParams,
    vthreads: int,
    dumps: _Dumps,
) -> tuple[Program, list[LayerInfo]]:
    """The checked program of a segment, and its layers."""
    stream = Stream(hw)
    offsets, plan = place_activations(graph, nodes, hw)
    base = stream.dram.allocate(plan.planned_bytes)
    if stream.dram.end >= MAX_DRAM_BYTES:
        raise VdlaError(
            f"graph {graph.name}: expected activations of less than {MAX_DRAM_BYTES} bytes, which"
            f" addresses of 32 bits reach, got {stream.dram.end}; compile for target cpu"
        )
    placed = {name: base + offset for name, offset in offsets.items()}
    funcs = lower_lanes(
        graph, nodes, hw, memory, vthreads, partial(_run_loop_passes, hw=hw, dumps=dumps)
    )
    layers = []
    lanes: list[int] = []
    for node in nodes:
        first = len(stream.insns)
        if node.output in funcs:
            _generate_node(graph, node, funcs[node.output], stream, placed)
            lanes += [lane(graph, node)] * (len(stream.insns) - first)
        layers.append(_accelerator_layer(graph, node, ((first, len(stream.insns) - 1),)))
    program, layers = _finish(graph, nodes, stream, lanes, placed, layers, memory)
    program = replace(program, meta=program.meta | {"memory_plan": asdict(plan)})
    dumps.write("program", "insns", partial(disassemble, program))
    findings = check(program)
    if findings:
        raise VdlaError(f"compiled program does not pass the checker: {findings[0]}")
    return program, layers


def _run_loop_passes(node: Node, func: PrimFunc, hw: HwParams, dumps: _Dumps) -> PrimFunc:
    """The loop program of an operator after TIR_PASSES."""
    verify(func)
    check_scopes(func, memory_scopes(hw))
    dumps.write(node.name, "lower", partial(print_func, func))
    for apply in TIR_PASSES:
        func = apply(func)
        verify(func)
        dumps.write(node.name, apply.__name__, partial(print_func, func))
    return func


def _generate_node(
    graph: Graph, node: Node, func: PrimFunc, stream: Stream, placed: dict[str, int]
) -> None:
    """Append one operator's instructions."""
    activations = [placed[name] for name in node.inputs if not graph[name].is_constant]
    constants = parameters_of(graph, node, stream.params)
    addresses = [*activations, *(stream.dram.constant(data.tobytes()) for data in constants)]
    addresses.append(placed[node.output])
    places = dict(zip(func.params, addresses, strict=True))
    generate(func, stream, places, at_top=lane(graph, node) == VECTOR_LANE)


def _finish(
    graph: Graph,
    accelerated: Sequence[Node],
    stream: Stream,
    lanes: Sequence[int],
    placed: dict[str, int],
    layers: Sequence[LayerInfo],
    memory: MemoryParams,
) -> tuple[Program, list[LayerInfo]]:
    """The order of instructions, tokens, meta data and the place of the instructions themselves;
    and the layers with the places of their instructions.
    """
    produced = {node.output for node in accelerated}
    needed = {name for node in accelerated for name in node.inputs}
    image = dict(stream.dram.image)
    insns, order = _ordered(stream, lanes, image, memory)
    layers = [_placed_layer(layer, order) for layer in layers]
    address = stream.dram.allocate(len(insns) * stream.params.insn_bytes, PROGRAM_ALIGN_BYTES)

    def region(name: str) -> dict:
        tensor = graph[name]
        size = activation_bytes(tensor.shape, stream.params)
        shape = list(tensor.shape)
        return {
            "name": name, "address": placed[name], "bytes": size, "shape": shape, "layout": "NCHWc",
        }  # fmt: skip

    made = results(graph, accelerated)
    outputs = [name for name in placed if name in made]
    meta = {
        "dram_bytes": max(1, -(-stream.dram.end // PROGRAM_ALIGN_BYTES)) * PROGRAM_ALIGN_BYTES,
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
    stream: Stream, lanes: Sequence[int], image: dict[int, bytes], memory: MemoryParams
) -> tuple[list[Insn], list[int]]:
    """The instructions with tokens in the order in which they are fetched, and the places where
    they were in the stream.
    """
    late = loads_by_need(deadlines(stream.insns, stream.params, image))
    insns = [stream.insns[i] for i in late]
    lanes = [lanes[i] for i in late]
    needs = dependencies(insns, stream.params, image, lanes)
    order = dispatch_order(insns, lanes, needs, stream.params, memory)
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


def macs(graph: Graph, node: Node) -> int:
    """The model's own multiply-accumulates, float ones too."""
    return node.op.macs(*(tensor.shape for tensor in graph.operands(node)))


def _compulsory_bytes(graph: Graph, node: Node) -> int:
    """Bytes of operands and result, each once."""
    tensors: list[Tensor] = [*graph.operands(node), graph.result(node)]
    return sum(math.prod(t.shape) * np.dtype(t.dtype).itemsize for t in tensors)


def _later(layer: LayerInfo, issued: int) -> LayerInfo:
    """The layer when so many instructions of other programs come before."""
    runs = tuple((first + issued, last + issued) for first, last in layer.runs or ())
    return replace(layer, runs=runs)


def _host_layer(graph: Graph, node: Node, why: str) -> LayerInfo:
    """A node on the host, with the reason; ``why`` holds for one that the accelerator could run."""
    reason = f"{why}: {node.reason}" if node.target == "accel" else node.reason
    return LayerInfo(
        node.name, type(node.op).__name__, "cpu", reason,
        macs(graph, node), _compulsory_bytes(graph, node), None,
    )  # fmt: skip


def _accelerator_layer(graph: Graph, node: Node, runs: tuple[tuple[int, int], ...]) -> LayerInfo:
    runs = tuple(run for run in runs if run[0] <= run[1])
    return LayerInfo(
        node.name, type(node.op).__name__, "accel", node.reason,
        macs(graph, node), _compulsory_bytes(graph, node), runs,
    )  # fmt: skip


@dataclass
class _Dumps:
    """Intermediate representations as numbered text files in a directory."""

    directory: str | Path | None
    count: int = 0

    def write(self, what: str, step: str, text: Callable[[], str]) -> None:
        if self.directory is None:
            return
        root = Path(self.directory)
        root.mkdir(parents=True, exist_ok=True)
        name = "".join(c if c.isalnum() or c in "-_." else "_" for c in what)
        (root / f"{self.count:03d}_{name}_{step}.txt").write_text(text())
        self.count += 1
