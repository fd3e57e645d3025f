"""Machine code for the host: single loop programs, and whole graphs as one native call.

graph -> for each operator: expression and schedule (``topi``) -> ``lower`` -> ``CPU_PASSES`` ->
LLVM IR (``targets/cpu/llvm.py``) -> one module, optimised for the host's processor -> CpuModule.
"""

from __future__ import annotations

import time
import zlib
from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from functools import partial

import llvmlite
import llvmlite.binding as llvm
import numpy as np
from llvmlite import ir

from ....isa.errors import VdlaError
from ....runtime.native import (
    ENTRY_NAME,
    STAMP_BYTES,
    Call,
    MemoryPlan,
    NativeCode,
    NativeFunction,
    TensorType,
    TimedFunction,
    align,
    aligned_memory,
    check_array,
)
from ...arena import GraphMemory, Lifetime, plan_arena, tensor_types
from ...choose.chooser import Chooser, Given
from ...dumps import Dumps
from ...graph.ir import Graph, Node
from ...graph.passes import run_passes as run_graph_passes
from ...graph.passes.common_subexpressions import meaning
from ...tir.ir import PrimFunc
from ...tir.passes.divisions import simplify_divisions
from ...tir.passes.expand import expand_intrinsics
from ...tir.passes.peel import peel_tails
from ...tir.passes.unroll import unroll_loops
from ...tir.printer import print_func
from ...tir.scopes import check_scopes
from ...tir.verify import verify
from ..common import cache
from ..common.fuse_elementwise import fuse_elementwise
from ..common.fuse_rows import fuse_rows
from .c_model import emit_model
from .link import link
from .llvm import Value, emit_function, symbol
from .llvm_parallel import LIBRARY, has_threads
from .lowering import (
    choose_knobs,
    find_algorithm,
    fuses_into_reader,
    is_added,
    is_bit_serial,
    lower_node,
    new_chooser,
    uses_matrices,
)
from .micro_kernel_code import (
    ask_for_tiles,
    fastest_instruction,
    native_intrinsics,
    uses_tiles,
)
from .micro_kernels import DOT
from .passes.bit_serial import bit_serial
from .passes.block_channels import LEAST_ROWS, block_channels
from .passes.fold_transposes import fold_transposes
from .passes.scale_weights import scale_weights
from .passes.shared_products import shared_products
from .passes.stored_products import stored_products
from .passes.transposed_phases import transposed_phases
from .processor import (
    MachineCode,
    Processor,
    emit_object,
    host_processor,
    load,
    load_object,
    optimise,
)
from .scopes import SCOPES, THREAD_AXES
from .templates.rows import suits_rows

#: The passes of every loop program before code generation, in order, after intrinsics that the
#: processor lacks have become loops.
CPU_PASSES: tuple[Callable[[PrimFunc], PrimFunc], ...] = (
    simplify_divisions,
    peel_tails,
    unroll_loops,
)

_POINTER = ir.PointerType()
_I64 = ir.IntType(64)


def run_passes(func: PrimFunc, processor: Processor) -> PrimFunc:
    """Verify, then apply the passes for a processor, verifying after each."""
    verify(func)
    check_scopes(func, SCOPES, THREAD_AXES)
    native = native_intrinsics(processor)
    for apply in (lambda func: expand_intrinsics(func, native), *CPU_PASSES):
        func = apply(func)
        verify(func)
    return func


# ---- one loop program --------------------------------------------------------------------------


@dataclass(frozen=True, eq=False)
class CpuKernel:
    """A loop program as machine code; call it with NumPy arrays, one per parameter, in place."""

    func: PrimFunc
    code: MachineCode
    workspace_bytes: int

    def __call__(self, *arrays: np.ndarray) -> None:
        """Run in place; no array may overlap one that is written.

        Raises
        ------
        VdlaError
            When an array's shape or dtype is not its parameter's, or its memory is not contiguous.
        """
        params = self.func.params
        if len(arrays) != len(params):
            raise VdlaError(f"{self.func.name}: expected {len(params)} arrays, got {len(arrays)}")
        for buffer, array in zip(params, arrays, strict=True):
            check_array(f"{self.func.name}: {buffer.name}", array, buffer.shape, buffer.dtype)
            if not array.flags.c_contiguous:
                raise VdlaError(
                    f"{self.func.name}: {buffer.name} expects a contiguous array, got strides "
                    f"{array.strides}; pass np.ascontiguousarray of it"
                )
        workspace = aligned_memory(self.workspace_bytes)
        self.code.entry(*(array.ctypes.data for array in (*arrays, workspace)))


def compile_func(func: PrimFunc, processor: Processor | None = None) -> CpuKernel:
    """Machine code of one loop program for the host. ``processor`` may be the host's with several
    threads. Errors are those of ``tir.verify`` and ``targets/cpu/llvm.py``.
    """
    processor = processor or host_processor()
    check_threads(processor)
    func = run_passes(func, processor)
    module = ir.Module(symbol(func.name))
    function, workspace_bytes = emit_function(func, module, "kernel", processor)
    code = load(optimise(module, processor), function.name, len(function.args))
    return CpuKernel(func, code, workspace_bytes)


# ---- a graph -----------------------------------------------------------------------------------


@dataclass(frozen=True, eq=False)
class CpuCode:
    """A graph as one function ``run(inputs, outputs, parameters, arena)`` for some processor.

    Attributes
    ----------
    kernels : the loop programs, in order of first use; equal operators share one
    object_file : the machine code, and ``vdla_model`` that describes it (ELF)
    parameters : all constants, uint8, aligned
    offsets : where each tensor lives in the arena, in bytes; a reshape shares its source's offset,
        and a result that a kernel writes directly to the caller's memory has none
    plan : the arena: tensors, and the workspace of each kernel while it runs
    calls : what each call of a kernel computes, in order
    """

    graph: Graph
    kernels: tuple[PrimFunc, ...]
    processor: Processor
    object_file: bytes
    parameters: np.ndarray
    offsets: dict[str, int]
    plan: MemoryPlan
    calls: tuple[Call, ...]

    @property
    def inputs(self) -> tuple[TensorType, ...]:
        return tensor_types(self.graph, self.graph.inputs)

    @property
    def outputs(self) -> tuple[TensorType, ...]:
        return tensor_types(self.graph, self.graph.outputs)


@dataclass(frozen=True, eq=False)
class CpuModule:
    """A graph as machine code in memory."""

    code: CpuCode
    function: NativeFunction

    @property
    def graph(self) -> Graph:
        return self.code.graph

    def run(self, *arrays: np.ndarray) -> list[np.ndarray]:
        """The graph's outputs for its inputs, in the graph's order.

        Raises
        ------
        VdlaError
            When the number of arrays, a shape or a dtype is not the graph's.
        """
        return self.function.run(*arrays)


def compile_graph(
    graph: Graph,
    processor: Processor,
    chooser: Chooser | None = None,
    dumps: Dumps | None = None,
    timed: bool = False,
) -> CpuCode:
    """Compile a whole graph for some processor, or find its code in the cache. Without a chooser,
    the templates choose. ``dumps`` tells of each node whose loop program is there. With ``timed``,
    the code notes the time at the end of the arena.

    Raises
    ------
    VdlaError
        When an operator or a dtype has no expression for the CPU, naming the node.
    """
    chooser = new_chooser(processor) if chooser is None else chooser
    dumps = dumps or Dumps()
    graph = on_blocks(graph, processor, chooser)
    builder = _GraphBuilder(graph, processor, chooser, timed)
    for position, node in enumerate(graph.nodes):
        builder.add(position, node)
        dumps.step()
    return builder.finish()


def on_blocks(graph: Graph, processor: Processor, chooser: Chooser) -> Graph:
    """The graph after the processor's passes: on blocks of as many channels as one of its vector
    registers holds, with the chosen algorithms, and with element-wise operators fused.
    """
    by = {"processor": processor, "chooser": chooser}
    dots = DOT in native_intrinsics(processor)
    passes = (
        partial(stored_products, block=processor.vector_lanes, dots=dots),
        partial(bit_serial, chosen=partial(is_bit_serial, **by)),
        transposed_phases,
        partial(shared_products, few_rows=LEAST_ROWS),
        partial(
            block_channels, block=processor.vector_lanes, dots=dots,
            algorithm=partial(find_algorithm, **by),
            uses_matrices=partial(uses_matrices, **by),
            keeps=partial(is_added, processor=processor),
        ),
        scale_weights,
        fold_transposes,
        partial(fuse_rows, suits=suits_rows),
        partial(fuse_elementwise, joins=partial(fuses_into_reader, chooser=chooser)),
    )  # fmt: skip
    return run_graph_passes(graph, passes)


def build_cpu(graph: Graph, threads: int = 1, knobs: Given | None = None) -> CpuModule:
    """Compile a whole graph for the host, ready to run on ``threads`` threads, with ``knobs`` by
    layer; errors as :func:`load_graph_code`.
    """
    processor = replace(host_processor(), threads=threads)
    chooser = new_chooser(processor, knobs or {})
    module = load_graph_code(graph, processor, chooser)
    chooser.check_given()
    return module


def check_threads(processor: Processor) -> None:
    """Load the library that more than one thread needs; raise VdlaError where it is missing."""
    if processor.threads > 1 and not has_threads():
        raise VdlaError(
            f"threads: expected 1 without GCC's OpenMP library, got {processor.threads}; install"
            f" {LIBRARY}"
        )


def load_graph_code(
    graph: Graph,
    processor: Processor,
    chooser: Chooser,
    dumps: Dumps | None = None,
    timed: bool = False,
) -> CpuModule:
    """Compile a whole graph for the host, ready to run; ``timed`` as :class:`TimedFunction` says.

    Raises
    ------
    VdlaError
        As :func:`compile_graph`, and without the library that more than one thread needs.
    """
    check_threads(processor)
    code = compile_graph(graph, processor, chooser, dumps, timed)
    loaded = load_object(code.object_file, ENTRY_NAME, 4)
    fields = (
        graph.name, code.inputs, code.outputs, code.parameters, code.plan,
        lambda: link(code.object_file, processor.threads > 1), "so", loaded.entry, loaded,
    )  # fmt: skip
    function = TimedFunction(*fields, code.calls) if timed else NativeFunction(*fields)
    return CpuModule(code, function)


def object_file(code: CpuCode) -> NativeCode:
    """Code for another processor, which this machine cannot run."""
    return NativeCode(
        code.graph.name, code.inputs, code.outputs, code.parameters, code.plan,
        lambda: code.object_file, "o",
    )  # fmt: skip


@dataclass(frozen=True, eq=False)
class _Kernel:
    """A loop program as it was scheduled, with the values of its attributes; ``text`` has all that
    its code depends on."""

    name: str
    func: PrimFunc
    attributes: tuple[np.ndarray, ...]
    text: str


class _GraphBuilder:
    """Collects kernels and constants, then plans memory and writes the function that calls them."""

    def __init__(self, graph: Graph, processor: Processor, chooser: Chooser, timed: bool = False):
        self.graph, self.processor, self.chooser = graph, processor, chooser
        self.timed = timed
        self.module = ir.Module(symbol(graph.name))
        self.kernels: dict[tuple, _Kernel] = {}
        #: Kernel, names of its operands, place of its workspace in ``lifetimes``: of its node.
        self.calls: list[tuple[_Kernel, list[str], int]] = []
        self.memory = GraphMemory(graph, align, parts=True)
        #: Tensors that kernels write directly to an output of the caller, with that output's index.
        self.results: dict[str, int] = {}
        for index, name in enumerate(graph.outputs):
            source = self.memory.source(name)
            whole = graph[source].size_bytes == graph[name].size_bytes
            if whole and source not in graph.inputs and not graph[source].is_constant:
                self.results.setdefault(source, index)
        self.memory.outside |= {*graph.inputs, *self.results}

    def add(self, position: int, node: Node) -> None:
        """Add a node: another name for its input, or a kernel and its call."""
        memory = self.memory
        if node.output in memory.given:
            return
        if 0 in self.graph.result(node).shape:
            memory.use(node.output, position)  # nothing to compute
            return
        kernel = self._kernel(position, node)
        operands = [*node.inputs]
        for name in (*operands, node.output):
            memory.use(memory.source(name), position)
        operands += memory.add_attributes(node, kernel.attributes)
        memory.lifetimes[position] = Lifetime(0, position, position)  # until the code is there
        self.calls.append((kernel, [*operands, node.output], position))

    def _kernel(self, position: int, node: Node) -> _Kernel:
        """The loop program of a node. Equal operators on operands of equal types share it, if their
        knobs are equal, too."""
        types = tuple((t.shape, t.dtype) for t in self.graph.operands(node))
        knobs = choose_knobs(self.graph, node, self.processor, self.chooser)
        key = (meaning(node.op), types, tuple(sorted(knobs.items())))
        if key not in self.kernels:
            found = lower_node(self.graph, node, self.processor, knobs)
            name = f"kernel{position}.{node.name}"
            text = f"{name}\n{node.op!r}\n{types!r}\n{print_func(found.func)}"
            self.kernels[key] = _Kernel(name, found.func, found.attributes, text)
        return self.kernels[key]

    def finish(self) -> CpuCode:
        """Parameters; kernels, memory, the entry function and its description; machine code."""
        graph, memory, begin = self.graph, self.memory, time.perf_counter()
        for name in graph.outputs:
            memory.use(memory.source(name), len(graph.nodes))
        places, parameters = memory.place_constants()
        checksum = zlib.crc32(parameters.data)
        place = cache.place_of("cpu", self._texts(checksum))
        found = cache.read(place)
        functions = self._emit_kernels() if found is None else {}
        workspaces = found.head if found else [size for _, size in functions.values()]
        needed = dict(zip(self.kernels.values(), workspaces, strict=True))
        for kernel, _, position in self.calls:
            memory.lifetimes[position] = Lifetime(needed[kernel], position, position)
        offsets, plan = plan_arena(memory.lifetimes)
        if self.timed:
            stamps_bytes = STAMP_BYTES * (len(self.calls) + 1)
            plan = replace(plan, planned_bytes=align(plan.planned_bytes) + stamps_bytes)
        if found is None:
            entry = self._emit_entry(functions, offsets, places, plan.planned_bytes)
            inputs, outputs = tensor_types(graph, graph.inputs), tensor_types(graph, graph.outputs)
            emit_model(self.module, entry, inputs, outputs, parameters.nbytes, checksum, plan)
            optimised = optimise(self.module, self.processor)
            found = cache.Kept(workspaces, emit_object(optimised, self.processor))
            cache.keep(place, found, time.perf_counter() - begin)
        kernels = tuple(kernel.func for kernel in self.kernels.values())
        return CpuCode(
            graph, kernels, self.processor, found.data, parameters, memory.offsets(offsets), plan,
            tuple(map(self._told, self.calls)),
        )  # fmt: skip

    def _told(self, call: tuple[_Kernel, list[str], int]) -> Call:
        """What a call computes."""
        kernel, _, position = call
        node, graph = self.graph.nodes[position], self.graph
        tensors = (*graph.operands(node), graph.result(node))
        ops, moved_bytes = 2 * graph.macs(node), sum(tensor.size_bytes for tensor in tensors)
        instruction = fastest_instruction([kernel.func], self.processor) if ops else None
        return Call(node.name, node.op.name, ops, moved_bytes, instruction)

    def _texts(self, checksum: int) -> Iterator[str]:
        """Everything that the code of the graph depends on."""
        graph = self.graph
        yield f"{llvmlite.__version__} {llvm.llvm_version_info} {self.processor!r}"
        if self.timed:
            yield "timed"
        yield repr((graph.name, *(tensor_types(graph, n) for n in (graph.inputs, graph.outputs))))
        calls = ((k.name, [*map(self.memory.place, n)], position) for k, n, position in self.calls)
        yield repr(list(calls))
        yield repr([(name, data.nbytes) for name, data in self.memory.constants.items()])
        yield repr([self.memory.place(name) for name in graph.outputs])
        yield f"{checksum:x}"  # the code has nothing else of the parameters' values
        for kernel in self.kernels.values():
            yield kernel.text

    def _emit_kernels(self) -> dict[_Kernel, tuple[ir.Function, int]]:
        """The function of each kernel, and its workspace in bytes."""
        found = {}
        for kernel in self.kernels.values():
            func = run_passes(kernel.func, self.processor)
            function, size = emit_function(func, self.module, kernel.name, self.processor)
            function.linkage = "internal"
            function.attributes.add("noinline")  # a long entry function compiles slowly
            found[kernel] = function, size
        return found

    def _emit_entry(
        self,
        functions: dict[_Kernel, tuple[ir.Function, int]],
        offsets: dict[str | int, int],
        places: dict[str, int],
        arena_bytes: int,
    ) -> ir.Function:
        """``run(inputs, outputs, parameters, arena)``: the first two are arrays of pointers; the
        arena has ``arena_bytes``."""
        signature = ir.FunctionType(ir.VoidType(), [_POINTER] * 4)
        function = ir.Function(self.module, signature, ENTRY_NAME)
        inputs, outputs, parameters, arena = function.args
        builder = ir.IRBuilder(function.append_basic_block("entry"))
        if uses_tiles(self.module):
            ask_for_tiles(builder)

        def at(base: Value, offset: int) -> Value:
            return builder.gep(base, [_I64(offset)], source_etype=ir.IntType(8))

        def entry_of(table: Value, index: int) -> Value:
            slot = builder.gep(table, [_I64(index)], source_etype=_POINTER)
            return builder.load(slot, typ=_POINTER)

        def address(name: str) -> Value:
            source, begin = self.memory.place(name)
            if source in self.graph.inputs:
                return at(entry_of(inputs, self.graph.inputs.index(source)), begin)
            if source in places:
                return at(parameters, places[source] + begin)
            if source in self.results:
                return at(entry_of(outputs, self.results[source]), begin)
            return at(arena, offsets[source] + begin)

        def note_time(done: int) -> None:
            """Write the time to the arena's end, after so many calls."""
            if self.timed:
                place = at(arena, arena_bytes - STAMP_BYTES * (len(self.calls) + 1 - done))
                builder.call(clock, [ir.IntType(32)(time.CLOCK_MONOTONIC), place])

        if self.timed:
            stamp = ir.FunctionType(ir.IntType(32), [ir.IntType(32), _POINTER])
            clock = ir.Function(self.module, stamp, "clock_gettime")
        note_time(0)
        for done, (kernel, operands, workspace) in enumerate(self.calls, 1):
            builder.call(
                functions[kernel][0], [*map(address, operands), at(arena, offsets[workspace])]
            )
            note_time(done)
        copy = ir.FunctionType(ir.VoidType(), [_POINTER, _POINTER, _I64, ir.IntType(1)])
        memcpy = ir.Function(self.module, copy, "llvm.memcpy.p0.p0.i64")
        for index, name in enumerate(self.graph.outputs):
            size = self.graph[name].size_bytes
            if self.results.get(self.memory.source(name)) != index:
                target = entry_of(outputs, index)
                builder.call(memcpy, [target, address(name), _I64(size), ir.IntType(1)(0)])
        builder.ret_void()
        return function
