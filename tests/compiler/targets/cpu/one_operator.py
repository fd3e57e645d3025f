"""One operator by itself: as a graph, as a loop program, on arrays."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

import numpy as np
from vdla.compiler.graph.ir import Graph, Node, Tensor, infer
from vdla.compiler.graph.ops.base import Op, Type
from vdla.compiler.targets.base import expression_of
from vdla.compiler.targets.cpu.core import Core
from vdla.compiler.targets.cpu.graph_code import build_cpu, compile_func
from vdla.compiler.targets.cpu.lowering import choose_knobs, lower_node, new_chooser
from vdla.compiler.targets.cpu.processor import host_processor
from vdla.compiler.te.schedule import create_schedule
from vdla.compiler.tir.ir import PrimFunc
from vdla.compiler.tir.lower import lower


def graph_of(op: Op, types: Sequence[Type]) -> Graph:
    """A graph of one operator ``node`` on operands of these types."""
    operands = tuple(Tensor(f"x{i}", *of) for i, of in enumerate(types))
    names = tuple(tensor.name for tensor in operands)
    tensors = {t.name: t for t in (*operands, Tensor("y", *infer(op, operands, "node")))}
    return Graph("one", names, ("y",), (Node("node", op, names, "y"),), tensors)


def scheduled(op: Op, types: Sequence[Type]) -> PrimFunc:
    """Its loop program, with what its template chooses for a core whose speeds do not depend on
    this machine."""
    graph, processor = graph_of(op, types), replace(host_processor(), core=Core())
    [node] = graph.nodes
    knobs = choose_knobs(graph, node, processor, new_chooser(processor))
    return lower_node(graph, node, processor, knobs).func


def plain(op: Op, types: Sequence[Type]) -> PrimFunc:
    """Its loop program without any schedule."""
    graph = graph_of(op, types)
    found = expression_of(graph, graph.nodes[0])
    return lower(create_schedule(found.output), [*found.args, found.output], "node")


def run_op(op: Op, arrays: Sequence[np.ndarray]) -> np.ndarray:
    """Its result, as machine code."""
    graph = graph_of(op, [(a.shape, str(a.dtype)) for a in arrays])
    return build_cpu(graph).run(*arrays)[0]


def as_plain_loops(op: Op, arrays: Sequence[np.ndarray]) -> np.ndarray:
    """Its result, which is the same with its template's schedule and without any."""
    types = [(a.shape, str(a.dtype)) for a in arrays]
    results = []
    for func in (plain(op, types), scheduled(op, types)):
        shape, dtype = func.params[-1].shape, func.params[-1].dtype
        results.append(np.full(shape, np.nan if dtype[0] == "f" else 85, dtype))
        compile_func(func)(*arrays, results[-1])
    np.testing.assert_array_equal(*results)
    return results[0]
