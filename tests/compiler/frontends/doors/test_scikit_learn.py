"""scikit-learn's models, which skl2onnx makes ONNX of."""

from __future__ import annotations

import numpy as np
import pytest

skl2onnx = pytest.importorskip("skl2onnx", reason="skl2onnx is not installed")

import vdla  # noqa: E402
from sklearn.decomposition import PCA  # noqa: E402
from sklearn.ensemble import RandomForestClassifier  # noqa: E402
from sklearn.neural_network import MLPRegressor  # noqa: E402
from sklearn.pipeline import make_pipeline  # noqa: E402

pytestmark = pytest.mark.filterwarnings("default")


def test_a_pipeline() -> None:
    rng = np.random.default_rng(0)
    x = rng.normal(size=(100, 5)).astype("f")
    network = MLPRegressor(hidden_layer_sizes=(8,), max_iter=500, random_state=0)
    model = make_pipeline(PCA(3), network).fit(x, x[:, 0])
    [got] = vdla.compile(skl2onnx.to_onnx(model, x[:1]), "cpu").run(x)
    np.testing.assert_allclose(got[:, 0], model.predict(x), rtol=1e-4, atol=1e-5)


def test_a_forest() -> None:
    """Labels are the model's, and so are the probabilities, of each row of any number of rows."""
    rng = np.random.default_rng(1)
    x = rng.normal(size=(200, 6)).astype("f")
    y = (x[:, 0] > 0).astype(int) + (x[:, 1] * x[:, 2] > 0.2)
    model = RandomForestClassifier(20, max_depth=7, random_state=0).fit(x, y)
    file = skl2onnx.to_onnx(model, x[:1], options={"zipmap": False})
    labels, chances = vdla.compile(file, "cpu").run(x)
    np.testing.assert_array_equal(labels, model.predict(x))
    np.testing.assert_allclose(chances, model.predict_proba(x), atol=1e-5)
