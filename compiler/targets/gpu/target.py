"""Graphics processors as targets: CUDA, and OpenCL. They take every operator."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from functools import partial
from typing import ClassVar

from ....isa.errors import VdlaError
from ....runtime.gpu.cuda import capability_of_device
from ...choose.chooser import Chooser
from ...dumps import Dumps
from ...graph.ir import Graph, Node
from ...graph.ops.base import Fusion
from ...graph.ops.channels_last import ChannelsLast
from ...te.expr import HALF_DTYPES
from ...te.schedule import Schedule
from ...te.tensor import Tensor
from ...tir.ir import PrimFunc
from ..base import Compiled, GraphPass, Options, Part, Target, layer_info
from .architectures import ARCHITECTURES, Architecture, choose_architecture, find_architecture
from .dialects import CUDA, OPENCL, Dialect
from .func_code import FuncKernels
from .graph_code import GraphKernels, fuse
from .kernels import lower_kernels, to_launches
from .layer import GpuLayer
from .lowering import PRECISIONS, Templates, template_of, templates_of
from .passes.channels_last import channels_last
from .passes.fold_transposes import fold_transposes, remove_reshapes
from .passes.in_phases import in_phases
from .passes.narrow_tensors import narrow_tensors
from .templates.tensor_gemm import TensorGemm


class Gpu(Target):
    """Kernels in one language, which ``device`` runs (``runtime/gpu/devices.py``)."""

    host = None
    dialect: ClassVar[Dialect]
    device: str
    templates: Templates

    def __init__(self, options: Options):
        if options.threads > 1:
            raise VdlaError(f"threads: expected 1 with target {self.name}, got {options.threads}")
        precisions = PRECISIONS if self.dialect.tensor_cores else PRECISIONS[:1]
        if options.precision not in precisions:
            raise VdlaError(
                f"precision: expected {' or '.join(precisions)} with target {self.name}, got "
                f"{options.precision!r}"
            )
        self.batch, self.precision = options.hw.batch, options.precision
        architecture = self.architecture(options)
        self.templates = templates_of(self.dialect, options.precision, architecture)
        self.machine_key = self.dialect.name
        if architecture is not ARCHITECTURES[0]:
            self.machine_key += f", {architecture.name}"
        if options.precision != PRECISIONS[0]:
            self.machine_key += f", {options.precision}"

    def architecture(self, options: Options) -> Architecture:
        """What kernels may use."""
        return ARCHITECTURES[0]

    def graph_passes(self, chooser: Chooser) -> Sequence[tuple[str, GraphPass]]:
        passes: list[tuple[str, GraphPass]] = [
            ("in_phases", in_phases),
            ("remove_reshapes", remove_reshapes),
        ]
        weights = partial(fold_transposes, is_product=self.is_product)
        passes.append(("fold_transposes", weights))
        if not self.dialect.tensor_cores:
            return passes
        size = 2 if self.precision in HALF_DTYPES else 4
        passes.append(("channels_last", partial(channels_last, pays=self.pays, float_bytes=size)))
        if self.precision in HALF_DTYPES:
            narrow = partial(narrow_tensors, dtype=self.precision, is_product=self.is_product)
            passes.append(("narrow_tensors", narrow))
        return passes

    def is_product(self, graph: Graph, node: Node) -> bool:
        """Whether a node is a product of float32 on tensor cores."""
        tensor_gemm = next((t for t in self.templates if isinstance(t, TensorGemm)), None)
        dtypes = {t.dtype for t in graph.operands(node)[:2]}
        return dtypes == {"float32"} and bool(tensor_gemm and tensor_gemm.handles(graph, node))

    def pays(self, graph: Graph, node: Node) -> bool:
        """Whether a convolution with channels last is one on tensor cores."""
        tensor_gemm = next(t for t in self.templates if isinstance(t, TensorGemm))
        moved = replace(node, op=ChannelsLast(node.op))
        return tensor_gemm.handles(graph, moved)

    def fuse(self, graph: Graph) -> Graph:
        """The graph whose nodes become kernels, after all passes."""
        return fuse(graph, self.templates)

    def compile(self, part: Part, chooser: Chooser, dumps: Dumps) -> Compiled:
        graph = part.as_graph()
        step, moved = None, dict[str, tuple]()
        if graph.outputs:
            made = GraphKernels(self.fuse(graph), self.dialect, self.templates, chooser, dumps)
            step, moved = made.program(self.device), made.moved()
        layers = [
            replace(
                layer_info(graph, node, None, chooser.of(node.name)),
                kernels=moved.get(node.name, ()),
            )
            for node in part.nodes
        ]
        return Compiled(step, layers)

    def layers(self, part: Part, chooser: Chooser) -> list[GpuLayer]:
        """The layers of a part that compute something, as a tuner compiles them."""
        graph = self.fuse(part.as_graph())
        found = []
        for node in graph.nodes:
            if node.op.fusion is Fusion.ALIAS or 0 in graph.result(node).shape:
                continue
            template = template_of(graph, node, self.templates)
            workload = template.workload(graph, node)
            found.append(GpuLayer(graph, node, template, workload, self.dialect, self.device))
        return found

    def lower(self, schedule: Schedule, args: list[Tensor], name: str) -> PrimFunc:
        return lower_kernels(schedule, args, name)

    def compile_func(self, func: PrimFunc, dumps: Dumps) -> FuncKernels:
        return FuncKernels.of(to_launches(func, dumps), self.dialect, self.device, dumps)


class Cuda(Gpu):
    """CUDA C++: by the driver of an NVIDIA GPU, or emulated on the host's processor."""

    name = "cuda"
    title = "the GPU"
    dialect = CUDA

    def __init__(self, options: Options):
        super().__init__(options)
        self.device = "emulated" if options.emulate else "cuda"

    def architecture(self, options: Options) -> Architecture:
        if options.arch is not None:
            return find_architecture(options.arch)
        return choose_architecture(None if options.emulate else capability_of_device())


class OpenCl(Gpu):
    """OpenCL C, by the first device of a platform."""

    name = "opencl"
    title = "the OpenCL device"
    dialect = OPENCL
    device = "opencl"
