"""The processor as a target: it takes every operator."""

from __future__ import annotations

from dataclasses import replace
from functools import partial

from ....runtime.native import NativeCode
from ...choose.chooser import Chooser
from ...dumps import Dumps
from ...tir.ir import PrimFunc
from ...tir.printer import print_func
from ..base import Compiled, Options, Part, Target, layer_info
from ..common.workload import workload_of
from .graph_code import (
    CpuKernel,
    compile_func,
    compile_graph,
    load_graph_code,
    object_file,
    on_blocks,
)
from .layer import CpuLayer
from .lowering import template_of, templates_of
from .processor import Processor, host_processor


class Cpu(Target):
    """Machine code for a processor."""

    name = "cpu"
    title = "the CPU"
    host = None

    def __init__(self, options: Options, processor: Processor | None = None):
        """Without a ``processor``, code is for this machine's processor and is loaded. With one, it
        is an object file, to be linked on its machine.
        """
        self.processor = processor or replace(host_processor(), threads=options.threads)
        self.batch = options.hw.batch
        self.loads = processor is None
        self.timed = options.profile
        self.templates = templates_of(self.processor)
        self.machine_key = self.processor.key

    def compile(self, part: Part, chooser: Chooser, dumps: Dumps) -> Compiled:
        graph = part.as_graph()
        function: NativeCode | None = None
        if graph.outputs and self.loads:
            found = load_graph_code(graph, self.processor, chooser, dumps, self.timed)
            function = found.function
        elif graph.outputs:
            function = object_file(compile_graph(graph, self.processor, chooser, dumps))
        layers = [layer_info(graph, node, None, chooser.of(node.name)) for node in part.nodes]
        return Compiled(function, layers)

    def layers(self, part: Part, chooser: Chooser) -> list[CpuLayer]:
        """The layers of a part that have knobs, after the processor's passes with the choices of
        ``chooser``.
        """
        graph = on_blocks(part.as_graph(), self.processor, chooser)
        found = []
        for node in graph.nodes:
            template = template_of(graph, node, self.processor)
            workload = workload_of(graph, node)
            found.append(CpuLayer(graph, node, template, workload, self.processor))
        return found

    def compile_func(self, func: PrimFunc, dumps: Dumps) -> CpuKernel:
        dumps.write(func.name, "lower", partial(print_func, func))
        return compile_func(func, self.processor)
