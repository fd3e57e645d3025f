"""Lists of detected objects against TensorFlow Lite Micro's kernel."""

from __future__ import annotations

import numpy as np
import pytest
from flatbuffers import flexbuffers
from vdla.compiler.frontends.tflite.importer import import_tflite
from vdla.compiler.graph.interpret import interpret
from vdla.compiler.graph.passes import run_passes
from vdla.compiler.targets.cpu.graph_code import build_cpu
from vdla.isa.errors import VdlaError

from .single.draft import Case, micro
from .tflite_builder import TfliteBuilder

SCALES = {"y_scale": 10.0, "x_scale": 10.0, "h_scale": 5.0, "w_scale": 5.0}


def detector(seed: int, shapes: bool = True, **options: float) -> tuple[bytes, list[np.ndarray]]:
    rng = np.random.default_rng(seed)
    rows, classes, count = int(rng.integers(3, 40)), int(rng.integers(1, 5)), 6
    background = int(rng.integers(2))
    given = {
        "max_detections": count, "max_classes_per_detection": 1, "num_classes": classes,
        "nms_score_threshold": float(rng.uniform(0, 0.6)),
        "nms_iou_threshold": float(rng.uniform(0.1, 0.7)), "use_regular_nms": bool(seed % 2),
        **SCALES, **options,
    }  # fmt: skip
    packed = flexbuffers.Builder()
    with packed.Map():
        for key, value in given.items():
            packed.Key(key)
            packed.Bool(value) if isinstance(value, bool) else packed.Add(value)
    b = TfliteBuilder()
    anchors = np.concatenate([rng.uniform(0, 1, (rows, 2)), rng.uniform(0.1, 0.6, (rows, 2))], 1)
    x = b.tensor((1, rows, 4), "float32")
    scores = b.tensor((1, rows, classes + background), "float32")
    fixed = b.tensor((rows, 4), "float32", data=anchors.astype(np.float32))
    sizes = [(1, count, 4), (1, count), (1, count), (1,)] if shapes else [()] * 4
    results = [b.tensor(size, "float32") for size in sizes]
    b.operator(
        "TFLite_Detection_PostProcess", [x, scores, fixed], results, own=bytes(packed.Finish())
    )
    inputs = [rng.normal(size=(1, rows, 4)), rng.uniform(size=(1, rows, classes + background))]
    return b.file([x, scores], results), [v.astype(np.float32) for v in inputs]


@pytest.mark.slow
@pytest.mark.parametrize("seed", range(8))
def test_objects_are_those_of_micro(seed: int) -> None:
    pytest.importorskip("tflite_micro")
    data, inputs = detector(seed)
    wanted = micro(Case(data, inputs, 4))
    graph = import_tflite(data)
    count = int(wanted[3][0])
    assert count > 0
    for made in (interpret(graph, *inputs), build_cpu(run_passes(graph)).run(*inputs)):
        assert made[3] == count
        for y, z in zip(made[:3], wanted[:3], strict=True):
            np.testing.assert_allclose(y[:, :count], z[:, :count], rtol=1e-6)
            assert not y[:, count:].any()


def test_results_without_a_shape() -> None:
    data, inputs = detector(0, shapes=False)
    made, wanted = (interpret(import_tflite(d), *inputs) for d in (data, detector(0)[0]))
    for y, z in zip(made, wanted, strict=True):
        np.testing.assert_array_equal(y, z)


@pytest.mark.parametrize(
    ("options", "why"),
    [
        ({"max_detections": 1000}, "up to 256 objects of one class"),
        ({"max_classes_per_detection": 3, "use_regular_nms": False}, "of one class each, got 6 of"),
        ({"nms_iou_threshold": 1.5}, "an overlap from 0 to 1"),
        ({"num_classes": 20}, "scores of 20 classes"),
        ({"detections_per_class": 2, "use_regular_nms": True}, "at least 6 objects of each class"),
    ],
)
def test_refusals(options: dict[str, float], why: str) -> None:
    with pytest.raises(VdlaError, match=why):
        import_tflite(detector(1, **options)[0])


def test_damaged_options() -> None:
    b = TfliteBuilder()
    x, y = b.tensor((1, 2, 4), "float32"), b.tensor((1,), "float32")
    b.operator("TFLite_Detection_PostProcess", [x], [y], own=b"\xff\xff\xff")
    with pytest.raises(VdlaError, match="its options are damaged"):
        import_tflite(b.file([x], [y]))
