"""Operators of the domain ``ai.onnx.ml`` that stand beside trees: scaling, linear models, tables.

Maps and strings are not among the values of a graph: ``ZipMap`` hands on its tensor, whose columns
are in the order of the classes, and labels that are strings are refused.
"""

from __future__ import annotations

import numpy as np
import onnx
from onnx import numpy_helper

from ....graph.ir import Tensor
from ....graph.ops.movement import Concat, Gather, Identity
from ....te.expr import FLOAT_DTYPES, Expr, select
from .call import Call, Outputs, Reader
from .elementwise import absolute, function, negate, number
from .linear import matmul
from .trees import READERS as TREES
from .trees import class_labels, emit_label, post_transform, two_classes


def _real(call: Call, x: Tensor) -> Tensor:
    return call.cast(x, "float32")


def _scaler(call: Call) -> Outputs:
    x = _real(call, call.operand(0))
    operands = [call.value(call.array(name, "float32")) for name in ("offset", "scale")]
    return call.map(lambda v, offset, scale: (v - offset) * scale, x, *operands)


def _normalizer(call: Call) -> Outputs:
    """Rows over their largest element, or their L1 or L2 norm; a row of norm 0 stays."""
    x, norm = _real(call, call.operand(0)), call.text("norm", "MAX")
    last = (len(x.shape) - 1,)
    rules = {
        "MAX": lambda: call.reduce("max", x, last),
        "L1": lambda: call.reduce("+", call.map(absolute, x), last),
        "L2": lambda: call.map(
            lambda v: function("sqrt", v), call.reduce("+", call.map(lambda v: v * v, x), last)
        ),
    }
    if norm not in rules:
        raise call.refuse(f"norm is one of {', '.join(rules)}, got {norm!r}")

    def rule(v: Expr, total: Expr) -> Expr:
        return select(total.equal(number(0, total)), v, v / total)

    return call.map(rule, x, rules[norm]())


def _binarizer(call: Call) -> Outputs:
    bound = call.number("threshold", 0.0)
    return call.map(
        lambda v: select(number(bound, v) < v, number(1, v), number(0, v)), call.operand(0)
    )


def _imputer(call: Call) -> Outputs:
    """Elements that are missing (NaN, or a value that says so) from a list with one value, or one
    for each column."""
    x = call.operand(0)
    kind = "float" if x.dtype in FLOAT_DTYPES else "int64"
    read = call.number if kind == "float" else call.integer
    missing = read(f"replaced_value_{kind}", 0)
    values = call.value(
        call.array(f"imputed_value_{kind}s", "float32" if kind == "float" else kind), x.dtype
    )

    def rule(v: Expr, other: Expr) -> Expr:
        gone = v.equal(number(missing, v)) if missing == missing else negate(v.equal(v))
        return select(gone, other, v)

    return call.map(rule, x, values)


def _extractor(call: Call) -> Outputs:
    """Columns by number."""
    x = call.operand(0)
    places = call.reshape(call.operand(1), (int(np.prod(call.operand(1).shape)),))
    rows = x if len(x.shape) > 1 else call.reshape(x, (1, *x.shape))
    return call.emit(Gather(len(rows.shape) - 1), rows, places)


def _vectorizer(call: Call) -> Outputs:
    rows = [_real(call, x) for x in call.all_operands()]
    return call.emit(Concat(1), *rows)


def _one_hot(call: Call) -> Outputs:
    if call.attributes.get("cats_strings"):
        raise call.refuse("categories are strings, which are not supported")
    x, categories = call.operand(0), call.value(call.array("cats_int64s", "int64"))
    column = call.cast(call.reshape(x, (*x.shape, 1)), "int64")
    equal = call.map(lambda v, c: v.equal(c).astype("float32"), column, categories)
    return equal


def _label_encoder(call: Call) -> Outputs:
    """The value that stands at an element's key, else the default."""
    x = call.operand(0)
    keys, values = (_column(call, f"{name}_") for name in ("keys", "values"))
    if keys.size != values.size or not keys.size:
        raise call.refuse(f"expected as many values as keys, got {values.size} of {keys.size}")
    given = call.attributes.get("default_tensor")
    if isinstance(given, onnx.TensorProto) and list(given.dims) in ([], [1]):
        fallback = numpy_helper.to_array(given).item()
    elif values.dtype.kind == "f":
        fallback = call.number("default_float", -0.0)
    else:
        fallback = call.integer("default_int64", -1)
    table = call.value(np.array([fallback, *values], values.dtype))
    column = call.reshape(x, (*x.shape, 1))
    numbers = call.value(np.arange(1, keys.size + 1), "int64")

    def place(v: Expr, key: Expr, n: Expr) -> Expr:
        same = v.equal(key) | (negate(v.equal(v)) & negate(key.equal(key)))
        return select(same, n, number(0, n))

    found = call.map(place, column, call.value(keys, x.dtype), numbers)
    return call.emit(Gather(0), table, call.reduce("max", found, (len(x.shape),), keepdims=False))


def _column(call: Call, prefix: str) -> np.ndarray:
    """Keys or values, in whichever attribute they are."""
    for name, dtype in (("int64s", "int64"), ("floats", "float32")):
        if f"{prefix}{name}" in call.attributes:
            return call.array(f"{prefix}{name}", dtype)
    tensor = call.attributes.get(f"{prefix}tensor")
    if isinstance(tensor, onnx.TensorProto) and tensor.data_type != onnx.TensorProto.STRING:
        return numpy_helper.to_array(tensor).reshape(-1)
    raise call.refuse(f"{prefix[:-1]} are strings, which are not supported")


def _product(call: Call, targets: int) -> Tensor:
    """Rows times coefficients, plus intercepts [rows, targets]. Of more coefficients than there are
    features the first ones count, as in ONNX Runtime, whose own example has twice as many."""
    x, weights = _real(call, call.operand(0)), call.array("coefficients", "float32")
    if len(x.shape) != 2 or targets < 1 or weights.size < targets * x.shape[1]:
        raise call.refuse(f"expected {targets} rows of coefficients for {x.type_text}")
    used = weights[: targets * x.shape[1]].reshape(targets, -1)
    y = matmul(call, x, call.value(used.T))
    intercepts = call.array("intercepts", "float32")
    return call.map(lambda v, b: v + b, y, call.value(intercepts)) if intercepts.size else y


def _linear_regressor(call: Call) -> Outputs:
    y = _product(call, call.integer("targets", 1))
    return post_transform(call, y, call.text("post_transform", "NONE"))


def _linear_classifier(call: Call) -> Outputs:
    labels = class_labels(call, "classlabels_ints")
    name = call.text("post_transform", "NONE")
    scores = _product(call, max(call.array("intercepts", "float32").size, 1))
    if scores.shape[1] == 1:
        return two_classes(call, scores, labels, name, 0.0, sums_to_one=True)
    return emit_label(call, scores, labels), post_transform(call, scores, name)


#: In the domain ``ai.onnx.ml``.
READERS: dict[str, Reader] = TREES | {
    "ArrayFeatureExtractor": _extractor,
    "Binarizer": _binarizer,
    "FeatureVectorizer": _vectorizer,
    "Imputer": _imputer,
    "LabelEncoder": _label_encoder,
    "LinearClassifier": _linear_classifier,
    "LinearRegressor": _linear_regressor,
    "Normalizer": _normalizer,
    "OneHotEncoder": _one_hot,
    "Scaler": _scaler,
    "ZipMap": lambda call: call.emit(Identity(), call.operand(0)),
}
