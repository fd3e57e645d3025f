"""From a node to its loop program as kernels: the template, its choice, the schedule."""

from __future__ import annotations

from collections.abc import Sequence

from ...choose.space import Knobs
from ...dumps import Dumps
from ...graph.ir import Graph, Node
from ...te.expr import HALF_DTYPES
from ..common.workload import Lowered
from .architectures import ARCHITECTURES, Architecture
from .dialects import Dialect
from .kernels import lower_kernels, to_launches
from .templates.base import GpuTemplate
from .templates.depthwise import Depthwise
from .templates.gemm import Gemm
from .templates.general import General
from .templates.rows import Rows
from .templates.tensor_gemm import TensorGemm

Templates = Sequence[GpuTemplate]
#: Kinds of factors of float32 products on tensor cores; the first one stands for none.
PRECISIONS = ("float32", "tf32", *HALF_DTYPES)
#: A node is computed by the first template that handles it; the last one handles all.
TEMPLATES: list[type[GpuTemplate]] = [Gemm, Depthwise, Rows, General]


def templates_of(
    dialect: Dialect, precision: str = PRECISIONS[0], architecture: Architecture = ARCHITECTURES[0]
) -> Templates:
    """The templates of a GPU: those of :data:`TEMPLATES`, and that of tensor cores before Gemm."""
    made = [kind() for kind in TEMPLATES]
    if dialect.tensor_cores:
        made.insert(TEMPLATES.index(Gemm), TensorGemm(precision, architecture))
    return made


def template_of(graph: Graph, node: Node, templates: Templates) -> GpuTemplate:
    """The template that computes a node."""
    return next(t for t in templates if isinstance(node.op, t.ops) and t.handles(graph, node))


def lower_node(
    graph: Graph, node: Node, template: GpuTemplate, knobs: Knobs, dumps: Dumps
) -> Lowered:
    """The kernels of a node with these knobs.

    Raises
    ------
    VdlaError
        When the operator or a dtype has no expression, naming the node.
    """
    found = template.schedule(graph, node, knobs)
    func = lower_kernels(found.schedule, found.args, node.name)
    return Lowered(to_launches(func, dumps), found.attributes)
