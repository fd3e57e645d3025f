"""The graph passes, in order: each a pure function from graph to graph in a file of its own.

:func:`register_pass` adds one.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import partial

from ....isa.additions import check_free, note
from ....isa.errors import VdlaError
from ..ir import Graph
from ..verify import verify
from .common_subexpressions import common_subexpressions
from .dead_code import dead_code
from .drop_identities import drop_identities
from .exact_add import exact_add
from .fold_activations import fold_activations
from .fold_constants import fold_constants
from .fold_pads import fold_pads
from .fuse_layer_norm import fuse_layer_norm
from .fuse_qdq import fuse_qdq
from .fuse_rotation import fuse_rotation
from .fuse_softmax import fuse_softmax
from .fuse_tables import fuse_tables
from .make_signed import make_signed
from .merge_transposes import merge_transposes
from .narrow_states import narrow_states
from .quantise_concats import quantise_concats
from .quantise_functions import quantise_functions
from .raise_quantize import raise_quantize
from .sink_conversions import sink_conversions
from .unique_names import unique_names
from .wrap_repeats import wrap_repeats

GraphPass = Callable[[Graph], Graph]

GRAPH_PASSES: list[GraphPass] = [
    fold_constants,
    common_subexpressions,
    make_signed,
    narrow_states,
    wrap_repeats,
    sink_conversions,
    raise_quantize,
    drop_identities,
    fold_activations,
    quantise_functions,
    fuse_qdq,
    fuse_softmax,
    fuse_layer_norm,
    fuse_rotation,
    quantise_concats,
    fuse_tables,
    fold_pads,
    exact_add,
    merge_transposes,
    dead_code,
    unique_names,
]


def register_pass(apply: GraphPass, before: str = "dead_code") -> None:
    """Add a pass. Its name is the function's; the graph is verified after it, as after every pass.

    Parameters
    ----------
    apply : from a graph to a graph, without a change to the first
    before : the name of the pass that it comes before

    Raises
    ------
    VdlaError
        For a name that is taken, and for an unknown pass that it should come before.
    """
    names = [known.__name__ for known in GRAPH_PASSES]
    check_free("graph pass", apply.__name__, names)
    if before not in names:
        raise VdlaError(
            f"graph pass {apply.__name__!r}: expected before one of {', '.join(names)}, "
            f"got {before!r}"
        )
    GRAPH_PASSES.insert(names.index(before), apply)
    note(f"graph pass {apply.__name__}", partial(GRAPH_PASSES.remove, apply))


def run_passes(graph: Graph, passes: Sequence[GraphPass] = GRAPH_PASSES) -> Graph:
    """Apply the passes, verifying after each."""
    for apply in passes:
        before, graph = graph, apply(graph)
        verify(graph, before)
    return graph
