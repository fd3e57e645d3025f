"""Functions of one int8: tables of float operators."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import onnx
import onnxruntime
import pytest
import vdla
from onnx import TensorProto, helper, numpy_helper
from vdla import HwParams
from vdla.isa.params import PRESETS


def tanh(shape: tuple[int, ...]) -> onnx.ModelProto:
    """int8 to int8."""
    make, info = helper.make_node, helper.make_tensor_value_info
    constants = {"a": np.float32(0.04), "b": np.float32(2 / 255), "z": np.int8(0)}
    nodes = [
        make("DequantizeLinear", ["x", "a", "z"], ["real"], "in"),
        make("Tanh", ["real"], ["tanh"], "f"),
        make("QuantizeLinear", ["tanh", "b", "z"], ["y"], "out"),
    ]
    stored = [numpy_helper.from_array(np.asarray(v), n) for n, v in constants.items()]
    x, y = (info(name, TensorProto.INT8, shape) for name in "xy")
    graph = helper.make_graph(nodes, "tanh", [x], [y], stored)
    return helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=8)


SMALL = replace(PRESETS["4x4"], vector_table=2, tmp_depth=48, par_depth=64, out_depth=64)


@pytest.mark.slow
@pytest.mark.parametrize("hw", ["16x16", SMALL], ids=["16x16", "small"])
@pytest.mark.parametrize("shape", [(1, 20), (1, 33, 7, 11), (1, 64, 16, 16)], ids=str)
@pytest.mark.parametrize("vthreads", [1, 2])
def test_on_the_accelerator(hw: HwParams | str, shape: tuple[int, ...], vthreads: int) -> None:
    """Tiles of all sizes, and what remains at their ends."""
    x = np.random.default_rng(1).integers(-128, 128, shape, np.int8)
    module = vdla.compile(tanh(shape), hw=hw, vthreads=vthreads)
    session = onnxruntime.InferenceSession(tanh(shape).SerializeToString())
    np.testing.assert_array_equal(module.run(x)[0], session.run(None, {"x": x})[0])
    (row,) = module.report["layers"]
    assert (row["name"], row["op"], row["target"]) == ("f", "QTable", "accel")


def test_a_configuration_without_a_table_leaves_it_to_the_host() -> None:
    module = vdla.compile(tanh((1, 20)), hw=HwParams())
    x = np.arange(-10, 10, dtype=np.int8).reshape(1, 20)
    np.testing.assert_array_equal(module.run(x)[0], vdla.compile(tanh((1, 20)), "cpu").run(x)[0])
    (row,) = module.report["layers"]
    assert row["target"] == "cpu" and "which needs vector_table = 1 or 2" in row["reason"]


def sines(shape: tuple[int, ...], functions: int) -> onnx.ModelProto:
    """Sines one after the other: tables of different scales, each too uneven for few pieces."""
    make, info = helper.make_node, helper.make_tensor_value_info
    stored, nodes, name = [np.float32(1 / 127), np.int8(0)], [], "x"
    names = ["step", "z"]
    for n in range(functions):
        names.append(f"a{n}")
        stored.append(np.float32(0.7 + 0.2 * n))
        result = "y" if n == functions - 1 else f"y{n}"
        nodes += [
            make("DequantizeLinear", [name, f"a{n}", "z"], [f"real{n}"]),
            make("Sin", [f"real{n}"], [f"sin{n}"], f"f{n}"),
            make("QuantizeLinear", [f"sin{n}", "step", "z"], [result]),
        ]
        name = result
    constants = [numpy_helper.from_array(v, n) for n, v in zip(names, stored, strict=True)]
    x, y = (info(name, TensorProto.INT8, shape) for name in "xy")
    graph = helper.make_graph(nodes, "sines", [x], [y], constants)
    return helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=8)


#: With a table in the vector unit.
TABLED = replace(SMALL, vector_table=1)


TABLES = {
    "4x4": TABLED,
    "two passes": replace(TABLED, batch=2, vector_passes=2),
    "16x16": HwParams(vector_table=1),
    "4x4 of int16": replace(TABLED, vector_table=2),
    "16x16 of int16": HwParams(vector_table=2),
}


@pytest.mark.slow
@pytest.mark.parametrize("hw", TABLES.values(), ids=TABLES)
@pytest.mark.parametrize("shape", [(20,), (33, 7, 11)], ids=str)
def test_any_function_by_the_table(hw: HwParams, shape: tuple[int, ...]) -> None:
    """Two tables, which change in the course of a program, as ONNX Runtime has them."""
    shape = (hw.batch, *shape)
    model = sines(shape, 2)
    x = np.random.default_rng(1).integers(-128, 128, shape, np.int8)
    module = vdla.compile(model, hw=hw)
    session = onnxruntime.InferenceSession(model.SerializeToString())
    np.testing.assert_array_equal(module.run(x)[0], session.run(None, {"x": x})[0])
    assert [row["target"] for row in module.report["layers"]] == ["accel", "accel"]


def test_a_table_is_set_once_and_bound_by_the_bus() -> None:
    """Twice as many vectors take what the bus needs for the second half, and 10 % at most.

    The whole of a small tensor takes more: 9,537 cycles for 64 x 64 vectors, 16 % over 8,192 beats,
    because the first tile of 128 vectors is loaded and looked up before anything is stored (500
    cycles). From then on a store of 256 beats ends every 281 cycles.
    """
    cycles = {}
    for rows in (64, 128):
        shape = (1, 16, rows, 64)
        module = vdla.compile(sines(shape, 1), hw=HwParams(vector_table=1))
        module.run(np.random.default_rng(1).integers(-128, 128, shape, np.int8))
        (program,) = module.compiled.programs
        opcodes = [insn.opcode.name for insn in program.insns]
        assert opcodes.count("TABLE") == 1 and opcodes.count("VECTOR") > 4
        cycles[rows] = module.report["cycles"]
    # A vector takes two beats of the bus, which is what bounds it.
    assert 1 <= (cycles[128] - cycles[64]) / (2 * 64 * 64) < 1.1
