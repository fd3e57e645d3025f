"""A program of ``torch.export`` as ONNX, which ``torch.onnx`` writes."""

from __future__ import annotations

from typing import Any

import numpy as np
import onnx
import torch  # pyright: ignore[reportMissingImports]
from torch.export.graph_signature import InputKind, OutputKind  # pyright: ignore[reportMissingImports]

from ....isa.errors import VdlaError
from ..pytorch.graph import check_output, decomposed, load_program
from .package import describe, need, quiet

Written = tuple[onnx.ModelProto, dict[str, str], dict[str, np.ndarray]]


def write_onnx(source: Any) -> Written:
    """A program, a file of one or its bytes, as ONNX; which of its outputs are states of its inputs
    in the next run, and the values of these before the first run, by the inputs' names. States are
    buffers that the program changes, such as caches.

    Raises
    ------
    VdlaError
        Where the program cannot be read, torch cannot write it, onnxscript is not installed, or a
        program that changes buffers leaves sizes open.
    """
    program, where = load_program(source)
    need("onnxscript")
    functional = decomposed(program, where, {})
    changed = set[str]()
    for spec in functional.graph_signature.output_specs:
        check_output(spec)
        if spec.kind == OutputKind.BUFFER_MUTATION:
            changed.add(spec.target)
    if changed and program.range_constraints:
        sizes = ", ".join(map(str, program.range_constraints))
        raise VdlaError(
            f"{where}: expected fixed sizes of a program that changes {min(changed)!r}, got open"
            f" ones ({sizes})"
        )
    try:
        with torch.no_grad(), quiet():
            return _with_states(functional, changed) if changed else (_written(program), {}, {})
    except Exception as error:  # whatever torch's exporter raises
        raise VdlaError(f"{where}: torch.onnx cannot write it: {describe(error)}") from None


def _written(program: Any, **names: Any) -> onnx.ModelProto:
    return torch.onnx.export(program, (), dynamo=True, verbose=False, **names).model_proto


def _with_states(program: Any, changed: set[str]) -> Written:
    """A program in which buffers change as its outputs alone: they are given, as inputs are."""
    signature = program.graph_signature
    examples = {node.name: node.meta["val"] for node in program.graph.nodes if "val" in node.meta}
    stored = program.state_dict | program.constants
    given, known, names = dict[str, Any](), dict[str, Any](), dict[str, str]()
    for spec in signature.input_specs:
        name, example = spec.arg.name, examples.get(spec.arg.name)
        if spec.target in changed:
            given[name], names[spec.target] = stored[spec.target].detach().clone(), name
        elif spec.kind != InputKind.USER_INPUT:
            known[name] = stored[spec.target].detach()
        elif example is not None and isinstance(example, torch.Tensor):
            given[name] = torch.zeros(tuple(example.shape), dtype=example.dtype)
        else:
            known[name] = spec.arg.value

    class Explicit(torch.nn.Module):
        def forward(self, **arguments: Any) -> Any:
            values = known | arguments
            return program.graph_module(*(values[s.arg.name] for s in signature.input_specs))

    outputs = [
        f"{names[spec.target]}.next" if spec.target in changed else spec.arg.name
        for spec in signature.output_specs
    ]
    explicit = torch.export.export(Explicit(), (), given)
    model = _written(explicit, kwargs=given, input_names=[*given], output_names=outputs)
    initial = {name: given[name].numpy() for name in names.values()}
    return model, {name: f"{name}.next" for name in initial}, initial
