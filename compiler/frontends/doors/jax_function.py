"""The door of JAX: functions and what can be called like one, by ``jax2onnx``."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

import onnx

from ....isa.errors import VdlaError
from .package import Examples, check_examples, comes_from, describe, need, quiet


def convert_function(function: Callable[..., Any], examples: Examples | None) -> onnx.ModelProto:
    """The ONNX model of a function of JAX: its inputs are the leaves of the arguments, in JAX's
    order of leaves, its outputs those of the results.

    Parameters
    ----------
    function
        A function, jitted or not, or a module of Flax NNX or Equinox with its parameters in it.
    examples
        Its arguments, by position: arrays or ``jax.ShapeDtypeStruct``, or trees of them.

    Raises
    ------
    VdlaError
        Where jax2onnx is missing or does not have an operator of the function, and where the
        function itself fails.
    """
    check_examples(examples, "a function")
    if isinstance(examples, Mapping):
        raise VdlaError("example_inputs: expected a tuple with a function, got a mapping")
    if any(comes_from(value, "torch") for value in examples or ()):
        raise VdlaError(
            "model: expected a torch.nn.Module with tensors of torch, got a function; call it in"
            " the forward of a module"
        )
    converter, jax = need("jax2onnx"), need("jax")
    leaves, tree = jax.tree.flatten(tuple(examples or ()))
    inputs = [jax.ShapeDtypeStruct(jax.numpy.shape(x), jax.dtypes.result_type(x)) for x in leaves]

    def flat(*values: Any) -> Any:
        return function(*jax.tree.unflatten(tree, values))

    with quiet():
        try:
            return converter.to_onnx(flat, inputs=inputs)
        except Exception as error:  # of the function, of JAX and of its converter
            raise VdlaError(f"model: jax2onnx cannot convert it: {describe(error)}") from None
