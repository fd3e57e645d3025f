"""Graphics processors as targets: CUDA, and OpenCL. They take every operator."""

from __future__ import annotations

from typing import ClassVar

from ....isa.errors import VdlaError
from ....runtime.gpu.program import Open, Session
from ...choose.chooser import Chooser
from ...dumps import Dumps
from ..base import Compiled, Options, Part, Target, layer_info
from .dialects import CUDA, OPENCL, Dialect
from .graph_code import kernels_of_graph
from .lowering import TEMPLATES


class Gpu(Target):
    """Kernels in one language, which ``open`` runs."""

    host = None
    dialect: ClassVar[Dialect]

    def __init__(self, options: Options):
        if options.threads > 1:
            raise VdlaError(f"threads: expected 1 with target {self.name}, got {options.threads}")
        self.batch = options.hw.batch
        self.emulate = options.emulate
        self.templates = TEMPLATES
        self.machine_key = self.dialect.name

    def open(self) -> Open:
        """What makes a program ready to run."""
        raise NotImplementedError

    def compile(self, part: Part, chooser: Chooser, dumps: Dumps) -> Compiled:
        graph = part.as_graph()
        step = None
        if graph.outputs:
            found = kernels_of_graph(graph, self.dialect, chooser, dumps)
            step = found.program(self.name, self.open())
        layers = [layer_info(graph, node, None, chooser.of(node.name)) for node in part.nodes]
        return Compiled(step, layers)


class Cuda(Gpu):
    """CUDA C++: by the driver of an NVIDIA GPU, or emulated on the host's processor."""

    name = "cuda"
    title = "the GPU"
    dialect = CUDA

    def open(self) -> Open:
        if self.emulate:
            from ....runtime.gpu.emulated import EmulatedSession

            return EmulatedSession
        return _no_driver


def _no_driver(program: object) -> Session:
    raise VdlaError(
        "target cuda: expected a CUDA driver (libcuda.so.1), found none; --emulate runs the kernels"
        " on the processor"
    )


class OpenCl(Gpu):
    """OpenCL C, by the first device of a platform."""

    name = "opencl"
    title = "the OpenCL device"
    dialect = OPENCL

    def __init__(self, options: Options):
        if options.emulate:
            raise VdlaError("emulate: expected target 'cuda' with it, got 'opencl'")
        super().__init__(options)

    def open(self) -> Open:
        from ....runtime.gpu.opencl import OpenClSession

        return OpenClSession
