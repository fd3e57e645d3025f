"""Open first dimensions of ONNX models, against ONNX Runtime: a batch where images are apart, and
another compilation where they are not."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import onnx.parser
import onnxruntime
import pytest
import vdla
from vdla.compiler.batches import find_batch
from vdla.compiler.frontends.load import open_model
from vdla.compiler.frontends.sizes import ONE
from vdla.module import Module

#: Nodes between x and y, and the dimension of y along which its images lie.
APART = {
    "softmax": ("y = Softmax<axis=1>(x)", 0),
    "transposed": ("y = Transpose<perm=[1, 0, 2]>(x)", 1),
    "cumsum": ("a = Constant<value_int=1>() y = CumSum(x, a)", 0),
    "mean": ("a = Constant<value_ints=[1]>() y = ReduceMean<keepdims=0>(x, a)", 0),
    "all other means": ("a = Constant<value_ints=[1, 2]>() y = ReduceMean(x, a)", 0),
    "rows of all images": (
        "s = Constant<value_ints=[-1, 4]>() r = Reshape(x, s) w = Constant<value = float[4, 2] "
        "{1, 2, 3, 4, 5, 6, 7, 8}>() p = MatMul(r, w) t = Constant<value_ints=[-1, 3, 2]>() "
        "y = Reshape(p, t)",
        0,
    ),
    "rows as outputs": ("s = Constant<value_ints=[-1, 4]>() y = Reshape(x, s)", 0),
    "a token of each image": (
        "t = Constant<value = float[1, 1, 4] {1, 2, 3, 4}>() s = Shape(x) i = Constant"
        "<value_ints=[0]>() n = Gather(s, i) r = Constant<value_ints=[1, 4]>() "
        "e = Concat<axis=0>(n, r) c = Expand(t, e) y = Concat<axis=1>(c, x)",
        0,
    ),
    "attention": (
        "t = Transpose<perm=[0, 2, 1]>(x) p = MatMul(x, t) q = Softmax(p) y = MatMul(q, x)", 0,
    ),
    "places": (
        "s = Shape(x) i = Constant<value_int=1>() l = Gather(s, i) z = Constant<value_int=0>() "
        "o = Constant<value_int=1>() p = Range(z, l, o) f = Cast<to=1>(p) u = Constant"
        "<value_ints=[1]>() c = Unsqueeze(f, u) y = Add(x, c)",
        0,
    ),
    "looked up by its number": (
        "s = Shape(x) i = Constant<value_int=0>() l = Gather(s, i) z = Constant<value_int=0>() "
        "o = Constant<value_int=1>() p = Range(z, l, o) y = Gather(x, p)",
        0,
    ),
    "folded": (
        "s = Constant<value_ints=[-1, 2, 6]>() r = Reshape(x, s) t = Transpose<perm=[1, 2, 0]>(r) "
        "a = Constant<value_ints=[0]>() y = ReduceMax<keepdims=0>(t, a)",
        1,
    ),
    "the same for all": ("w = Constant<value = float[2] {1, 2}>() y = Neg(w) z = Neg(x)", None),
}  # fmt: skip
#: Nodes that mix images, and what the reason names.
MIXED = {
    "softmax": ("y = Softmax<axis=0>(x)", "Reduce"),
    "cumsum": ("a = Constant<value_int=0>() y = CumSum(x, a)", "depend on the number of images"),
    "mean": ("a = Constant<value_ints=[0]>() y = ReduceMean(x, a)", "across the elements"),
    "product": (
        "s = Constant<value_ints=[-1, 12]>() r = Reshape(x, s) t = Transpose<perm=[1, 0]>(r) "
        "y = MatMul(t, r)",
        "",
    ),
    "reversed": (
        "a = Constant<value_ints=[-1]>() b = Constant<value_ints=[-100]>() c = Constant"
        "<value_ints=[0]>() y = Slice(x, a, b, c, a)",
        "across the elements",
    ),
    "first image": ("i = Constant<value_int=0>() y = Gather(x, i)", ""),
    "looked up by the next number": (
        "s = Shape(x) i = Constant<value_int=0>() l = Gather(s, i) z = Constant<value_int=1>() "
        "o = Constant<value_int=1>() n = Add(l, o) p = Range(z, n, o) q = Mod(p, l) "
        "y = Gather(x, q)",
        "",
    ),
    "twice": ("y = Concat<axis=0>(x, x)", ""),
    "divided by their number": (
        "s = Shape(x) i = Constant<value_int=0>() n = Gather(s, i) f = Cast<to=1>(n) y = Div(x, f)",
        "'f'",
    ),
    "number of images": (
        "s = Shape(x) y = Cast<to=1>(s) z = Neg(x)",
        "'y'",
    ),
    "places in the batch": (
        "s = Shape(x) i = Constant<value_int=0>() l = Gather(s, i) z = Constant<value_int=0>() "
        "o = Constant<value_int=1>() p = Range(z, l, o) f = Cast<to=1>(p) u = Constant"
        "<value_ints=[1, 2]>() c = Unsqueeze(f, u) y = Add(x, c)",
        "depends on the image",
    ),
    "rows of two images": (
        "s = Constant<value_ints=[3, -1]>() r = Reshape(x, s) y = Softmax(r)",
        "",
    ),
    "apart in an output": (
        "t = Transpose<perm=[1, 0, 2]>(x) s = Constant<value_ints=[-1]>() y = Reshape(t, s)",
        "within dimension 0",
    ),
}


def parsed(nodes: str, more: str = "") -> onnx.ModelProto:
    declared = " z," if " z = Neg(x)" in nodes else ""
    outputs = f"float[N, 3, 4]{declared} float[?] y" if declared else "float[?] y"
    head = '<ir_version: 8, opset_import: ["" : 18]> g (float[N, 3, 4] x) => '
    model = onnx.parser.parse_model(f"{head}({outputs}) {{{nodes}}}")
    for output in model.graph.output:
        output.type.tensor_type.ClearField("shape")
    return model


def expect_equal(module: Module, model: onnx.ModelProto, images: int) -> None:
    x = np.random.default_rng(images).standard_normal((images, 3, 4)).astype(np.float32)
    session = onnxruntime.InferenceSession(model.SerializeToString())
    for got, wanted in zip(module.run(x), session.run(None, {"x": x}), strict=True):
        np.testing.assert_allclose(got, np.asarray(wanted), atol=1e-5, strict=True)


@pytest.mark.parametrize("name", APART)
def test_images_that_are_apart_run_in_turn(name: str) -> None:
    nodes, axis = APART[name]
    model = parsed(nodes)
    module = vdla.compile(model, "cpu")
    compiled = module.compiled
    assert {t.name: t.axis for t in module.outputs}["y"] == axis
    for images in (1, 3, 2):
        expect_equal(module, model, images)
    assert module.compiled is compiled


@pytest.mark.parametrize("name", MIXED)
def test_images_that_are_not_are_compiled_together(name: str) -> None:
    nodes, reason = MIXED[name]
    model = parsed(nodes)
    read = open_model(model)
    batch = find_batch(read(ONE), ONE, read)
    assert batch.why_not and reason in batch.why_not
    module = vdla.compile(model, "cpu")
    for images in (1, 3, 2, 3):
        expect_equal(module, model, images)


def test_an_input_without_images_is_the_same_for_all() -> None:
    model = onnx.parser.parse_model(
        '<ir_version: 8, opset_import: ["" : 18]> g (float[N, 4] x, float[2, N, 3] h, float[4] w)'
        " => (float[N, 4] y, float[2, N, 3] k) {y = Mul(x, w) k = Neg(h)}"
    )
    module = vdla.compile(model, "cpu")
    assert [t.axis for t in (*module.inputs, *module.outputs)] == [0, 1, None, 0, 1]
    x, h, w = (np.arange(n, dtype=np.float32) for n in (12, 18, 4))
    y, k = module.run(x.reshape(3, 4), h.reshape(2, 3, 3), w)
    np.testing.assert_array_equal(y, x.reshape(3, 4) * w)
    np.testing.assert_array_equal(k, -h.reshape(2, 3, 3))
    with pytest.raises(vdla.VdlaError, match="expected 3 for dimension 'N', as other inputs"):
        module.run(x.reshape(3, 4), h.reshape(2, 3, 3)[:, :2], w)


def test_a_loaded_module_has_its_batch_only(tmp_path: Path) -> None:
    module = vdla.compile(parsed(MIXED["mean"][0]), "cpu", dims={"N": 2})
    module.save(tmp_path / "m")
    loaded = vdla.load(tmp_path / "m")
    x = np.ones((2, 3, 4), np.float32)
    np.testing.assert_array_equal(loaded.run(x)[0], module.run(x)[0])
    with pytest.raises(vdla.VdlaError, match=r"expected float32 of shape \(2, 3, 4\), got"):
        loaded.run(np.ones((4, 3, 4), np.float32))
    with pytest.raises(vdla.VdlaError, match="expected 2 for dimension 'N', got 4"):
        module.run(np.ones((4, 3, 4), np.float32))


def test_the_accelerator_keeps_images_apart() -> None:
    nodes = APART["transposed"][0]
    module, model = vdla.compile(parsed(nodes), "sim"), parsed(nodes)
    expect_equal(module, model, 3)
