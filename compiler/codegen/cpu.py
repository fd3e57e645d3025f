"""Machine code for the host: single loop programs, and whole graphs as one native call.

graph -> for each operator: expression and schedule (``topi``) -> ``lower`` -> ``CPU_PASSES`` ->
LLVM IR (``codegen/llvm.py``) -> one module, optimised for the host's processor -> CpuModule.
"""

from __future__ import annotations

import ctypes
import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import cache

import llvmlite.binding as llvm
import numpy as np
from llvmlite import ir

from ...isa.errors import VdlaError
from ..graph.ir import Graph, Node, Tensor
from ..graph.ops import Identity, Op, Reshape
from ..graph.passes.block_channels import block_channels
from ..graph.shapes import infer
from ..graph.verify import verify as verify_graph
from ..tir.interpret import interpret
from ..tir.ir import PrimFunc
from ..tir.passes.expand import expand_intrinsics
from ..tir.passes.unroll import unroll_loops
from ..tir.verify import verify
from ..topi.cpu import lower_for_cpu
from .arena import Lifetime, plan_arena
from .llvm import ALIGN_BYTES, Value, align, emit_function, symbol

#: What happens to every loop program before code generation, in order.
CPU_PASSES: tuple[Callable[[PrimFunc], PrimFunc], ...] = (expand_intrinsics, unroll_loops)

_POINTER = ir.PointerType()
_I64 = ir.IntType(64)


def run_passes(func: PrimFunc) -> PrimFunc:
    """Verify, then apply ``CPU_PASSES``, verifying after each."""
    verify(func)
    for apply in CPU_PASSES:
        func = apply(func)
        verify(func)
    return func


# ---- machine code ------------------------------------------------------------------------------


@cache
def _initialize() -> None:
    llvm.initialize_native_target()
    llvm.initialize_native_asmprinter()


@cache
def _vector_lanes() -> int:
    """float32 values in a vector register of this processor."""
    features = llvm.get_host_cpu_features()
    return 16 if features.get("avx512f") else 8 if features.get("avx2") else 4


def _target_machine() -> llvm.TargetMachine:
    """The processor that this runs on, with all that it can do. One for each engine, which owns
    it."""
    _initialize()
    return llvm.Target.from_default_triple().create_target_machine(
        cpu=llvm.get_host_cpu_name(), features=llvm.get_host_cpu_features().flatten(), opt=3
    )


@dataclass(frozen=True, eq=False)
class MachineCode:
    """An optimised module, loaded. ``engine`` keeps the code alive that ``entry`` calls; ``entry``
    takes pointers.
    """

    engine: llvm.ExecutionEngine
    entry: Callable[..., None]
    llvm_ir: str

    @property
    def assembly(self) -> str:
        """The machine code as text."""
        return _target_machine().emit_assembly(llvm.parse_assembly(self.llvm_ir))


def compile_module(module: ir.Module, entry: ir.Function) -> MachineCode:
    """Optimise (the O3 pipeline, for the host's processor) and load a module."""
    machine = _target_machine()
    module.triple = machine.triple
    module.data_layout = str(machine.target_data)
    parsed = llvm.parse_assembly(str(module))
    parsed.verify()
    options = llvm.create_pipeline_tuning_options(speed_level=3)
    options.loop_vectorization = options.slp_vectorization = options.loop_unrolling = True
    builder = llvm.create_pass_builder(machine, options)
    builder.getModulePassManager().run(parsed, builder)
    text = str(parsed)
    engine = llvm.create_mcjit_compiler(parsed, machine)
    engine.finalize_object()
    prototype = ctypes.CFUNCTYPE(None, *[ctypes.c_void_p] * len(entry.args))
    return MachineCode(engine, prototype(engine.get_function_address(entry.name)), text)


def _aligned(size_bytes: int) -> np.ndarray:
    """Zeroed uint8 memory that starts at a multiple of ``ALIGN_BYTES``."""
    raw = np.zeros(size_bytes + ALIGN_BYTES, np.uint8)
    first = -raw.ctypes.data % ALIGN_BYTES
    return raw[first : first + size_bytes]


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
            _check_array(f"{self.func.name}: {buffer.name}", array, buffer.shape, buffer.dtype)
            if not array.flags.c_contiguous:
                raise VdlaError(
                    f"{self.func.name}: {buffer.name} expects a contiguous array, got strides "
                    f"{array.strides}; pass np.ascontiguousarray of it"
                )
        workspace = _aligned(self.workspace_bytes)
        self.code.entry(*(array.ctypes.data for array in (*arrays, workspace)))


def compile_func(func: PrimFunc) -> CpuKernel:
    """Machine code of one loop program; errors as ``tir.verify`` and ``codegen.llvm`` say."""
    func = run_passes(func)
    module = ir.Module(symbol(func.name))
    function, workspace_bytes = emit_function(func, module, "kernel")
    return CpuKernel(func, compile_module(module, function), workspace_bytes)


def _check_array(what: str, array: np.ndarray, shape: tuple[int, ...], dtype: str) -> None:
    if array.shape != shape or array.dtype != np.dtype(dtype):
        raise VdlaError(
            f"{what} expects {dtype}{list(shape)}, got {array.dtype}{list(array.shape)}"
        )


# ---- a graph -----------------------------------------------------------------------------------


@dataclass(frozen=True, eq=False)
class CpuModule:
    """A graph as one native function over one block of memory, planned at compile time.

    Attributes
    ----------
    kernels : the loop programs, in order of first use; equal operators share one
    offsets : where each tensor lives in the arena, in bytes; a reshape shares its source's
    arena_bytes : size of the arena: activations, then the workspace that kernels share
    """

    graph: Graph
    kernels: tuple[PrimFunc, ...]
    code: MachineCode
    constants: np.ndarray
    offsets: dict[str, int]
    arena_bytes: int

    def run(self, *arrays: np.ndarray) -> list[np.ndarray]:
        """The graph's outputs for its inputs, in the graph's order.

        Raises
        ------
        VdlaError
            When the number of arrays, a shape or a dtype is not the graph's.
        """
        graph = self.graph
        if len(arrays) != len(graph.inputs):
            raise VdlaError(
                f"graph {graph.name}: expected {len(graph.inputs)} inputs, got {len(arrays)}"
            )
        for name, array in zip(graph.inputs, arrays, strict=True):
            tensor = graph[name]
            _check_array(f"graph {graph.name}: input {name!r}", array, tensor.shape, tensor.dtype)
        inputs = [np.ascontiguousarray(array) for array in arrays]
        outputs = [np.empty(graph[n].shape, graph[n].dtype) for n in graph.outputs]
        arena = _aligned(self.arena_bytes)
        self.code.entry(
            _pointers(inputs), _pointers(outputs), self.constants.ctypes.data, arena.ctypes.data
        )
        return outputs


def _pointers(arrays: Sequence[np.ndarray]) -> ctypes.Array:
    return (ctypes.c_void_p * max(1, len(arrays)))(*(a.ctypes.data for a in arrays))


def build_cpu(graph: Graph) -> CpuModule:
    """Compile a whole graph for the host.

    Raises
    ------
    VdlaError
        When an operator or a dtype has no expression for the CPU, naming the node.
    """
    graph = block_channels(graph, _vector_lanes())
    verify_graph(graph)
    builder = _GraphBuilder(graph)
    for position, node in enumerate(graph.nodes):
        builder.add(position, node)
    return builder.finish()


def build_part(graph: Graph, nodes: Sequence[Node], wanted: Sequence[str]) -> CpuModule:
    """Some nodes of a graph, in running order: from what they read of others, and constants, to
    the tensors that are ``wanted``; errors as :func:`build_cpu`."""
    made = {node.output for node in nodes}
    read = dict.fromkeys(n for node in nodes for n in node.inputs if n not in made)
    inputs = tuple(name for name in read if not graph[name].is_constant)
    tensors = {name: graph[name] for name in (*read, *made)}
    return build_cpu(Graph(graph.name, inputs, tuple(wanted), tuple(nodes), tensors))


#: With so few elements, interpreting an operator is faster than compiling it.
FEW_ELEMENTS = 64


def run_op(op: Op, args: Sequence[np.ndarray]) -> np.ndarray:
    """One operator on arrays, for once; errors as :func:`build_cpu`."""
    operands = tuple(Tensor(f"x{i}", a.shape, str(a.dtype)) for i, a in enumerate(args))
    shape, dtype = infer(op, operands, type(op).__name__)
    names = tuple(t.name for t in operands)
    node = Node(type(op).__name__, op, names, "y")
    tensors = {t.name: t for t in (*operands, Tensor("y", shape, dtype))}
    graph = Graph("one", names, ("y",), (node,), tensors)
    sizes = [math.prod(t.shape) for t in tensors.values()]
    if max(sizes) > FEW_ELEMENTS or min(sizes) < 1 or isinstance(op, Reshape | Identity):
        return build_cpu(graph).run(*args)[0]
    func, attributes = lower_for_cpu(graph, node)
    flat = [*args, *attributes, result := np.empty(shape, dtype)]
    interpret(func, *(a.reshape(b.shape) for a, b in zip(flat, func.params, strict=True)))
    return result


@dataclass(frozen=True)
class _Operand:
    """What a kernel is called with: a place in one of the areas of memory."""

    area: str
    name: str


class _GraphBuilder:
    """Collects kernels and constants, then plans memory and writes the function that calls them."""

    def __init__(self, graph: Graph):
        self.graph = graph
        self.module = ir.Module(symbol(graph.name))
        self.funcs: list[PrimFunc] = []
        self.kernels: dict[tuple, tuple[ir.Function, tuple[np.ndarray, ...]]] = {}
        self.calls: list[tuple[ir.Function, list[_Operand]]] = []
        self.constants: list[np.ndarray] = []
        self.constant_offsets: dict[str, int] = {}
        self.sources: dict[str, str] = {}
        self.lifetimes: dict[str, Lifetime] = {}
        self.workspace_bytes = 0
        self.constant_bytes = 0

    def add(self, position: int, node: Node) -> None:
        """One operator: another name for its input, or a kernel and its call."""
        if isinstance(node.op, Reshape | Identity):
            self.sources[node.output] = self._source(node.inputs[0])
            return
        if 0 in self.graph.result(node).shape:
            self._use(node.output, position)  # nothing to compute
            return
        function, attributes = self._kernel(position, node)
        operands = [self._operand(self._source(name), position) for name in node.inputs]
        operands += [self._constant(f"{node.name}.{i}", a) for i, a in enumerate(attributes)]
        operands.append(self._operand(node.output, position))
        self.calls.append((function, operands))

    def _kernel(self, position: int, node: Node) -> tuple[ir.Function, tuple[np.ndarray, ...]]:
        """The function of a node and its attributes' values; equal operators on operands of equal
        types share it."""
        types = tuple((t.shape, t.dtype) for t in self.graph.operands(node))
        key = (node.op, types)
        if key not in self.kernels:
            func, attributes = lower_for_cpu(self.graph, node)
            func = run_passes(func)
            function, workspace = emit_function(func, self.module, f"kernel{position}.{node.name}")
            function.linkage = "internal"
            function.attributes.add("noinline")  # a long entry function compiles slowly
            self.workspace_bytes = max(self.workspace_bytes, workspace)
            self.funcs.append(func)
            self.kernels[key] = function, attributes
        return self.kernels[key]

    def _source(self, name: str) -> str:
        return self.sources.get(name, name)

    def _operand(self, name: str, position: int) -> _Operand:
        if name in self.graph.inputs:
            return _Operand("inputs", name)
        if self.graph[name].is_constant:
            return self._constant(name, self.graph[name].data)
        self._use(name, position)
        return _Operand("arena", name)

    def _use(self, name: str, position: int) -> None:
        first = self.lifetimes[name].first if name in self.lifetimes else position
        self.lifetimes[name] = Lifetime(_tensor_bytes(self.graph[name]), first, position)

    def _constant(self, name: str, data: np.ndarray | None) -> _Operand:
        assert data is not None
        if name not in self.constant_offsets:
            self.constant_offsets[name] = self.constant_bytes
            self.constants.append(np.ascontiguousarray(data))
            self.constant_bytes += align(data.nbytes)
        return _Operand("constants", name)

    def finish(self) -> CpuModule:
        """Memory, the entry function, machine code."""
        end = len(self.graph.nodes)
        results = [self._operand(self._source(name), end) for name in self.graph.outputs]
        offsets, activation_bytes = plan_arena(self.lifetimes)
        entry = self._emit_entry(offsets, activation_bytes, results)
        constants = _aligned(self.constant_bytes)
        for data, offset in zip(self.constants, self.constant_offsets.values(), strict=True):
            constants[offset : offset + data.nbytes] = data.reshape(-1).view(np.uint8)
        shared = {n: offsets[s] for n, s in self.sources.items() if s in offsets}
        return CpuModule(
            self.graph, tuple(self.funcs), compile_module(self.module, entry), constants,
            offsets | shared, activation_bytes + self.workspace_bytes,
        )  # fmt: skip

    def _emit_entry(
        self, offsets: dict[str, int], workspace: int, results: list[_Operand]
    ) -> ir.Function:
        """``run(inputs, outputs, constants, arena)``: the first two are arrays of pointers."""
        signature = ir.FunctionType(ir.VoidType(), [_POINTER] * 4)
        function = ir.Function(self.module, signature, "run")
        inputs, outputs, constants, arena = function.args
        builder = ir.IRBuilder(function.append_basic_block("entry"))

        def at(base: Value, offset: int) -> Value:
            return builder.gep(base, [_I64(offset)], source_etype=ir.IntType(8))

        def entry_of(table: Value, index: int) -> Value:
            slot = builder.gep(table, [_I64(index)], source_etype=_POINTER)
            return builder.load(slot, typ=_POINTER)

        def address(operand: _Operand) -> Value:
            match operand.area:
                case "inputs":
                    return entry_of(inputs, self.graph.inputs.index(operand.name))
                case "constants":
                    return at(constants, self.constant_offsets[operand.name])
            return at(arena, offsets[operand.name])

        for kernel, operands in self.calls:
            builder.call(kernel, [*map(address, operands), at(arena, workspace)])
        copy = ir.FunctionType(ir.VoidType(), [_POINTER, _POINTER, _I64, ir.IntType(1)])
        memcpy = ir.Function(self.module, copy, "llvm.memcpy.p0.p0.i64")
        for index, (name, result) in enumerate(zip(self.graph.outputs, results, strict=True)):
            size = _I64(_tensor_bytes(self.graph[name]))
            builder.call(
                memcpy, [entry_of(outputs, index), address(result), size, ir.IntType(1)(0)]
            )
        builder.ret_void()
        return function


def _tensor_bytes(tensor: Tensor) -> int:
    return math.prod(tensor.shape) * np.dtype(tensor.dtype).itemsize
