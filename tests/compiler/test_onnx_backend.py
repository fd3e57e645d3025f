"""ONNX's own node tests through our compiler, and the backend interface."""

from __future__ import annotations

import re
import warnings
from collections import defaultdict
from functools import cache
from typing import Any

import numpy as np
import onnx
import pytest
from onnx import TensorProto, helper, numpy_helper
from vdla.compiler.frontends.onnx.ops import READERS
from vdla.compiler.onnx_backend import VdlaBackend, VdlaRep, prepare, run_model, run_node
from vdla.isa.errors import VdlaError

#: Element types that the compiler has.
CORE_TYPES = {
    TensorProto.FLOAT, TensorProto.DOUBLE, TensorProto.BOOL, TensorProto.INT8, TensorProto.UINT8,
    TensorProto.INT16, TensorProto.UINT16, TensorProto.INT32, TensorProto.UINT32,
    TensorProto.INT64, TensorProto.UINT64,
}  # fmt: skip
#: Cases that are refused, with what the refusal says.
REFUSED = {
    r"test_training_dropout": "dropout while training is random",
}
#: Operators without cases, or whose only cases have other types or are of operator sets before 7.
WITHOUT_CASES = {"GlobalLpPool", "LpPool", "Not", "SimplifiedLayerNormalization", "Upsample"}
#: Some operators without a reader: ONNX defines them by others.
FUNCTIONS = ("GroupNormalization", "MeanVarianceNormalization")
#: All operators that have cases.
OPERATORS = sorted(kind for kind in {*READERS, *FUNCTIONS} - WITHOUT_CASES if onnx.defs.has(kind))


@cache
def cases() -> dict[str, list[Any]]:
    """ONNX's cases of one operator each, by operator."""
    from onnx.backend.test.case.node import collect_testcases

    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # of the NumPy code that computes the expected values
        found = collect_testcases(None)
    by_operator = defaultdict(list)
    for case in found:
        graph = case.model.graph
        kinds = {node.op_type for node in graph.node}
        types = {v.type.tensor_type.elem_type for v in (*graph.input, *graph.output)}
        if len(kinds) == 1 and types <= CORE_TYPES and not re.search(r"[ui]nt[24]\b", case.name):
            by_operator[kinds.pop()].append(case)
    return by_operator


@pytest.mark.more
@pytest.mark.slow
@pytest.mark.parametrize("operator", OPERATORS)
def test_onnx_node_tests(operator: str) -> None:
    passed = 0
    for case in cases()[operator]:
        why = [text for name, text in REFUSED.items() if re.match(name, case.name)]
        if why:
            with pytest.raises(VdlaError, match=why[0]):
                run_case(case, prepare(case.model))
            continue
        run_case(case, prepare(case.model))
        passed += 1
    assert passed, f"onnx has no test of {operator} with these types"


def run_case(case: Any, prepared: VdlaRep) -> None:
    """The runner's comparison: dtypes, shapes, values within the case's tolerance."""
    for inputs, expected in case.data_sets:
        got = prepared.run([np.asarray(_array(i)) for i in inputs])
        assert len(got) == len(expected), case.name
        for a, b in zip(got, map(_array, expected), strict=True):
            assert (a.dtype, a.shape) == (b.dtype, b.shape), case.name
            np.testing.assert_allclose(a, b, case.rtol, case.atol, err_msg=case.name)


def _array(value: Any) -> np.ndarray:
    if isinstance(value, TensorProto):
        return numpy_helper.to_array(value)
    return np.asarray(value)


# ---- the interface ----


def reshaping() -> onnx.ModelProto:
    """y = reshape(x + x, shape), with a shape that is an input."""
    nodes = [
        helper.make_node("Add", ["x", "x"], ["twice"]),
        helper.make_node("Reshape", ["twice", "shape"], ["y"]),
    ]
    inputs = [
        helper.make_tensor_value_info("x", TensorProto.FLOAT, ["N", "C"]),
        helper.make_tensor_value_info("shape", TensorProto.INT64, ["R"]),
    ]
    y = helper.make_tensor_value_info("y", TensorProto.FLOAT, ["K"])
    graph = helper.make_graph(nodes, "reshaping", inputs, [y])
    return helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=8)


def test_one_module_for_each_shape() -> None:
    x = np.arange(6, dtype=np.float32).reshape(2, 3)
    prepared = prepare(reshaping())
    for shape in ([3, 2], [6], [3, 2], [1, -1]):
        (y,) = prepared([x, np.array(shape)])
        np.testing.assert_array_equal(y, (x + x).reshape(shape))
    (y,) = prepared([x[:1], np.array([3])])
    np.testing.assert_array_equal(y, x[0] + x[0])
    assert len(prepared.modules) == 4
    assert prepared.specialised == ["shape"]


def test_values_that_decide_nothing_are_no_specialisation() -> None:
    x = np.ones((2, 3), np.float32)
    prepared = prepare(reshaping())
    for factor in (1, 2, 3):
        np.testing.assert_array_equal(prepared([x * factor, np.array([6])])[0], [2 * factor] * 6)
    assert len(prepared.modules) == 1


def test_inputs_by_name_and_alone() -> None:
    x, shape = np.ones((1, 2), np.float32), np.array([2])
    (y,) = run_model(reshaping(), {"shape": shape, "x": x})
    assert y.tolist() == [2, 2]
    (y,) = run_model(reshaping(), [x.astype(np.float64), shape])  # as everywhere
    assert y.dtype == np.float32 and y.tolist() == [2, 2]
    (y,) = run_node(helper.make_node("Relu", ["x"], ["y"]), [np.float32([-1, 2])])
    assert y.tolist() == [0, 2]


def test_inputs_that_do_not_fit() -> None:
    prepared = prepare(reshaping())
    with pytest.raises(VdlaError, match="expected 2 inputs, got 1"):
        prepared([np.ones((1, 2), np.float32)])
    with pytest.raises(VdlaError, match="input 'shape' is missing"):
        prepared.run({"x": np.ones((1, 2), np.float32)})
    with pytest.raises(VdlaError, match=r"input 'x' expects float32\[1, 2\], got int32"):
        prepared([np.ones((1, 2), np.int32), np.array([2])])


def test_devices() -> None:
    assert VdlaBackend.supports_device("CPU")
    assert not VdlaBackend.supports_device("CUDA")
    with pytest.raises(VdlaError, match="expected device 'CPU', got 'CUDA'"):
        prepare(reshaping(), "CUDA")


def test_what_onnx_checker_refuses() -> None:
    """An output without a shape runs; a missing tensor is named."""
    model, x = reshaping(), np.ones((1, 2), np.float32)
    model.graph.output[0].type.tensor_type.ClearField("shape")
    with pytest.raises(onnx.checker.ValidationError):
        onnx.checker.check_model(model)
    assert prepare(model).run([x, np.array([2])])[0].tolist() == [2, 2]
    model.graph.node[0].input[0] = "nothing"
    with pytest.raises(VdlaError, match=r"reads 'nothing', which nothing before it defines"):
        prepare(model).run([x, np.array([2])])
