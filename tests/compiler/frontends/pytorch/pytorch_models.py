"""PyTorch models for tests: exported, imported, compiled for the host and compared with torch."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import torch
from vdla.compiler.frontends.pytorch.importer import import_torch
from vdla.compiler.graph.ir import Graph
from vdla.compiler.graph.passes import run_passes
from vdla.compiler.targets.cpu.graph_code import build_cpu


class Function(torch.nn.Module):
    """A function as a model."""

    def __init__(self, function: Callable[..., Any]):
        super().__init__()
        self.function = function

    def forward(self, *operands: torch.Tensor) -> Any:
        return self.function(*operands)


def export(model: Callable[..., Any], *operands: torch.Tensor, **options: Any) -> Any:
    """The exported program of a model or a function, in evaluation mode."""
    module = model if isinstance(model, torch.nn.Module) else Function(model)
    return torch.export.export(module.eval(), operands, **options)


def floats(*shape: int, seed: int = 0) -> torch.Tensor:
    return torch.randn(*shape, generator=torch.Generator().manual_seed(seed))


def run(graph: Graph, *operands: torch.Tensor) -> list[np.ndarray]:
    """The outputs of a graph on the host, after all passes."""
    compiled = build_cpu(run_passes(graph))
    return list(compiled.run(*(t.detach().numpy() for t in operands)))


def check(model: Any, *operands: torch.Tensor, rtol: float = 1e-4, atol: float = 1e-5) -> Graph:
    """Compare the compiled model's outputs with torch's; the graph as imported."""
    program = export(model, *operands)
    graph = import_torch(program)
    expected = program.module()(*operands)
    expected = [expected] if isinstance(expected, torch.Tensor) else list(expected)
    read = dict(zip(names(program), operands, strict=True))
    got = run(graph, *(read[name] for name in graph.inputs))
    assert len(got) == len(expected)
    for mine, theirs in zip(got, expected, strict=True):
        assert (str(mine.dtype), mine.shape) == (str(theirs.dtype)[6:], tuple(theirs.shape))
        np.testing.assert_allclose(mine, theirs.detach().numpy(), rtol, atol)
    return graph


def names(program: Any) -> list[str]:
    """Names of the inputs that a user gives."""
    return [n for n in program.graph_signature.user_inputs if isinstance(n, str)]
