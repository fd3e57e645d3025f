"""Weights of 4 bits: what they are, how near they stay, and what the machine makes of them."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import onnx
import pytest
import vdla
from onnx import TensorProto, helper, numpy_helper
from vdla import VdlaError
from vdla.compiler.quantize.four_bits import Moments, four_bits
from vdla.compiler.targets.vdla.expressions import Epilogue, Window
from vdla.compiler.targets.vdla.machine import Budget, Context
from vdla.compiler.targets.vdla.templates.convolution import ProductsWorkload
from vdla.isa.packed import scales_of
from vdla.isa.params import PRESETS

from .peers import peer

PACKED = replace(PRESETS["16x16"], packed_weights=1)


def real(stored: np.ndarray, steps: np.ndarray) -> np.ndarray:
    return stored * steps[:, None].astype(np.float64)


@pytest.mark.parametrize("inputs", [16, 48, 40, 7])
def test_each_group_is_a_scale_times_four_bits(inputs: int) -> None:
    """And no weight is further off than the steps that its group has."""
    rng = np.random.default_rng(inputs)
    weight = rng.standard_normal((20, inputs)) * rng.uniform(0.1, 3, (20, 1))
    weight[3] = 0
    stored, steps = four_bits(weight, 16, None)
    assert stored.dtype == np.int8 and steps.dtype == np.float32 and not stored[3].any()
    filled = np.zeros((20, -(-inputs // 16) * 16), np.int8)
    filled[:, :inputs] = stored
    assert scales_of(filled.reshape(20, -1, 16)).all()
    error = np.abs(real(stored, steps) - weight)
    assert error.max() < np.abs(weight).max() / 7
    noise = np.square(error).sum() / np.square(weight).sum()
    assert noise < 0.011  # 20 dB


def test_errors_are_taken_back() -> None:
    """The products of samples whose channels depend on each other are nearer than by rounding;
    where no two channels do, both are the same."""
    rng = np.random.default_rng(5)
    samples = rng.standard_normal((400, 12)) @ rng.standard_normal((12, 96))
    samples += 0.3 * rng.standard_normal(samples.shape)
    weight = rng.standard_normal((24, 96))
    found = [four_bits(weight, 16, m) for m in (None, Moments(samples.T @ samples, 400))]
    errors = [np.square(samples @ (real(*made) - weight).T).sum() for made in found]
    assert errors[1] < 0.07 * errors[0]
    alone = [four_bits(weight, 16, m)[0] for m in (None, Moments(np.eye(96), 400))]
    np.testing.assert_array_equal(*alone)


def model_of(nodes: list[onnx.NodeProto], shape: list[int], **sizes: tuple) -> onnx.ModelProto:
    """A model from ``x`` to ``y`` with random constants of these sizes."""
    rng = np.random.default_rng(9)
    stored = [
        numpy_helper.from_array(rng.standard_normal(size).astype(np.float32), name)
        for name, size in sizes.items()
    ]
    x = helper.make_tensor_value_info("x", TensorProto.FLOAT, shape)
    y = helper.make_tensor_value_info("y", TensorProto.FLOAT, None)
    graph = helper.make_graph(nodes, "test", [x], [y], stored)
    return helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=8)


MAKE = helper.make_node
MODELS = {
    "dense": (
        model_of(
            [MAKE("MatMul", ["x", "v"], ["a"], "a"), MAKE("MatMul", ["a", "w"], ["y"], "b")],
            [1, 160], v=(160, 72), w=(72, 200),
        ),
        (1, 160),
    ),
    "convolutions": (
        model_of(
            [
                MAKE("Conv", ["x", "v", "c"], ["a"], "a", pads=[1] * 4),
                MAKE("Relu", ["a"], ["r"], "r"),
                MAKE("Conv", ["r", "w"], ["d"], "b", group=2),
                MAKE("Conv", ["d", "u"], ["y"], "d"),
            ],
            [1, 64, 6, 6], v=(40, 64, 3, 3), c=(40,), w=(8, 20, 1, 1), u=(56, 8, 3, 3),
        ),
        (1, 64, 6, 6),
    ),
}  # fmt: skip


@pytest.mark.slow
@pytest.mark.parametrize("kind", MODELS)
def test_a_machine_reads_four_bits(kind: str) -> None:
    """Fewer bytes and no more cycles, and the results of a machine that reads int8."""
    model, shape = MODELS[kind]
    rng = np.random.default_rng(2)
    x = rng.standard_normal((8, *shape[1:])).astype(np.float32)
    samples = x.reshape(8, *shape[1:])
    made = vdla.quantize(model, samples, weight_bits=4).model
    eight = vdla.quantize(model, samples).model
    wanted, found = (peer(m, x=x[:1]) for m in (model, made))
    noise = np.square(found - wanted).sum() / np.square(wanted).sum()
    assert 1e-4 < noise < 0.05
    modules = [vdla.compile(made, "sim", hw) for hw in (PACKED, PRESETS["16x16"])]
    results = [module.run(x[:1])[0] for module in (*modules, vdla.compile(made, "cpu"))]
    for other in results[1:]:
        np.testing.assert_array_equal(results[0], other)
    packed, plain = (module.report for module in modules)
    assert packed["dram"]["read_bytes"] < 0.85 * plain["dram"]["read_bytes"]
    assert packed["cycles"] < plain["cycles"]
    # Weights that are no scales times 4 bits are read as ever.
    module = vdla.compile(eight, "sim", PACKED)
    np.testing.assert_array_equal(module.run(x[:1])[0], vdla.compile(eight, "cpu").run(x[:1])[0])
    assert module.report["dram"]["read_bytes"] == plain["dram"]["read_bytes"]


def test_records_of_other_weights_hold() -> None:
    """What is not packed has the key that it had before there was such a thing."""
    window, context = Window((1, 1)), Context(Budget.whole(PACKED))
    plain = ProductsWorkload(8, 7, 7, 24, window, 1, context, 0, Epilogue(), False)
    assert "packed" not in plain.key
    assert '"packed":true' in replace(plain, packed=True).key


@pytest.mark.more
@pytest.mark.slow
def test_the_rtl_reads_four_bits() -> None:
    model, shape = MODELS["dense"]
    x = np.random.default_rng(2).standard_normal((8, *shape[1:])).astype(np.float32)
    made = vdla.quantize(model, x, weight_bits=4).model
    hw = replace(PRESETS["8x8"], packed_weights=1)
    sim, rtl = (vdla.compile(made, target, hw) for target in ("sim", "rtl"))
    np.testing.assert_array_equal(sim.run(x[:1])[0], rtl.run(x[:1])[0])
    assert sim.report["cycles"] == rtl.report["cycles"]


@pytest.mark.slow
def test_some_nodes_of_four_bits() -> None:
    """By name; the others are as without."""
    model, shape = MODELS["dense"]
    x = np.random.default_rng(2).standard_normal((8, *shape[1:])).astype(np.float32)
    made = [vdla.quantize(model, x, weight_bits=bits).model for bits in (8, {"b": 4}, 4)]
    weights = [
        {i.name: numpy_helper.to_array(i) for i in m.graph.initializer if len(i.dims) == 2}
        for m in made
    ]
    alike = [
        {n for n in weights[0] if np.array_equal(weights[i][n], weights[j][n])}
        for i, j in ((0, 1), (1, 2))
    ]
    assert [len(names) for names in alike] == [1, 1] and alike[0] != alike[1]


@pytest.mark.parametrize(
    ("options", "said"),
    [
        ({"weight_bits": 5}, "weight bits: expected 4 or 8, got 5"),
        ({"weight_bits": {"a": 3}}, "weight bits: expected 4 or 8, got 3"),
        ({"weight_bits": {"z": 4}}, "weight bits: expected nodes of the model, got 'z'"),
        ({"weight_group": 0}, "weight group: expected channels, at least 1, got 0"),
    ],
)
def test_refusals(options: dict, said: str) -> None:
    model, shape = MODELS["dense"]
    with pytest.raises(VdlaError, match=f"^{said}"):
        vdla.quantize(model, np.zeros(shape, np.float32), **options)
