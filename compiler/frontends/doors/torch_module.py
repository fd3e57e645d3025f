"""The door of ``torch.nn.Module``: ``torch.export`` traces it with example inputs."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from ....isa.errors import VdlaError
from .package import Examples, check_examples, comes_from, describe, need, quiet


def is_torch_module(model: object) -> bool:
    """Whether a model is an instance of ``torch.nn.Module``."""
    return any(
        (kind.__module__, kind.__name__) == ("torch.nn.modules.module", "Module")
        for kind in type(model).__mro__
    )


def export_module(module: Any, examples: Examples | None) -> Any:
    """The ``torch.export.ExportedProgram`` of a module.

    Parameters
    ----------
    module
        A ``torch.nn.Module``, which is exported in the mode that it is in.
    examples
        Its arguments, by position or by name. Their shapes are the shapes of the program.

    Raises
    ------
    VdlaError
        Where the arguments are no tensors, and where torch cannot export the module.
    """
    torch = need("torch")
    from ..pytorch.graph import changed_constants  # it imports torch

    if isinstance(module, torch.jit.ScriptModule):
        raise VdlaError(
            "model: TorchScript is not supported; give the torch.nn.Module that it was made from"
        )
    check_examples(examples, "a torch.nn.Module")
    named = isinstance(examples, Mapping)
    arguments, by_name = ((), dict(examples)) if named else (tuple(examples or ()), {})
    for value in (*arguments, *by_name.values()):
        if comes_from(value, "numpy") or comes_from(value, "jax") or comes_from(value, "jaxlib"):
            raise VdlaError(
                f"example_inputs: expected tensors of torch, got {type(value).__name__};"
                " torch.from_numpy makes one of an array"
            )
    with torch.no_grad(), quiet():
        try:
            program = torch.export.export(module, arguments, by_name)
            if changed_constants(program):
                program = torch.export.export(module, arguments, by_name, strict=True)
            return program
        except Exception as error:  # whatever the module's own code raises, too
            raise VdlaError(f"model: torch cannot export it: {describe(error)}") from None
