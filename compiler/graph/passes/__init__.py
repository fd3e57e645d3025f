"""The graph passes, in order: each a pure function from graph to graph in a file of its own."""

from __future__ import annotations

from collections.abc import Callable

from ..ir import Graph
from ..verify import verify
from .common_subexpressions import common_subexpressions
from .dead_code import dead_code
from .drop_identities import drop_identities
from .exact_add import exact_add
from .fold_activations import fold_activations
from .fold_constants import fold_constants
from .fold_pads import fold_pads
from .fuse_qdq import fuse_qdq
from .fuse_tables import fuse_tables
from .make_signed import make_signed
from .merge_transposes import merge_transposes
from .raise_quantize import raise_quantize
from .sink_conversions import sink_conversions
from .unique_names import unique_names

GraphPass = Callable[[Graph], Graph]

GRAPH_PASSES: tuple[GraphPass, ...] = (
    fold_constants,
    common_subexpressions,
    make_signed,
    sink_conversions,
    raise_quantize,
    drop_identities,
    fold_activations,
    fuse_qdq,
    fuse_tables,
    fold_pads,
    exact_add,
    merge_transposes,
    dead_code,
    unique_names,
)


def run_passes(
    graph: Graph,
    passes: tuple[GraphPass, ...] = GRAPH_PASSES,
    observe: Callable[[str, Graph], None] | None = None,
) -> Graph:
    """Apply the passes, verifying after each; ``observe(name, graph)`` sees every result."""
    for apply in passes:
        graph = apply(graph)
        verify(graph)
        if observe is not None:
            observe(apply.__name__, graph)
    return graph
