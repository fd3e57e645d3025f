"""Functions of JAX."""

from __future__ import annotations

from itertools import pairwise
from typing import Any

import numpy as np
import pytest

jax = pytest.importorskip("jax", reason="jax is not installed")
pytest.importorskip("jax2onnx", reason="jax2onnx is not installed")

import vdla  # noqa: E402
from vdla.isa.errors import VdlaError  # noqa: E402

pytestmark = [pytest.mark.filterwarnings("default"), pytest.mark.slow]


def parameters() -> list[tuple[np.ndarray, np.ndarray]]:
    rng, sizes = np.random.default_rng(0), (8, 16, 16, 4)
    return [
        (rng.normal(size=(n, m)).astype("f") / n**0.5, rng.normal(size=m).astype("f"))
        for n, m in pairwise(sizes)
    ]


def mlp(layers: Any, x: Any) -> Any:
    for weights, bias in layers[:-1]:
        x = jax.nn.gelu(x @ weights + bias)
    weights, bias = layers[-1]
    return jax.nn.softmax(x @ weights + bias)


def test_a_perceptron_with_constant_parameters() -> None:
    layers, x = parameters(), np.random.default_rng(1).normal(size=(3, 8)).astype("f")
    for function in (lambda x: mlp(layers, x), jax.jit(lambda x: mlp(layers, x))):
        module = vdla.compile(function, "cpu", example_inputs=(x,))
        [got] = module.run(x)
        np.testing.assert_allclose(got, mlp(layers, x), rtol=1e-5, atol=1e-6)


def test_parameters_may_be_inputs() -> None:
    """The leaves of all arguments, in JAX's order; only shapes and dtypes of examples count."""
    layers, x = parameters(), np.random.default_rng(1).normal(size=(3, 8)).astype("f")
    shape = jax.ShapeDtypeStruct(x.shape, x.dtype)
    module = vdla.compile(mlp, "cpu", example_inputs=(layers, shape))
    [got] = module.run(*jax.tree.leaves((layers, x)))
    np.testing.assert_allclose(got, mlp(layers, x), rtol=1e-5, atol=1e-6)


def test_refusals_are_one_line() -> None:
    x = np.ones((3, 3), "f")
    for function in (jax.numpy.linalg.svd, lambda x: x @ x[:2], lambda x: undefined + x):  # type: ignore[name-defined] # noqa: F821
        with pytest.raises(VdlaError, match="jax2onnx cannot convert it: ") as caught:
            vdla.compile(function, "cpu", example_inputs=(x,))
        assert "\n" not in str(caught.value)
