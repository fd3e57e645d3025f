"""Quantised networks against ONNX's definition (``vdla bench definition``): each operator by
itself, and the answers.

The networks have random weights, and ``vdla quantize`` makes them int8 from one random image. A
step that one operator is off moves on to the answers, so these are of several images, and have a
standard error. They are compared with two readings of the definition: with ONNX Runtime's sums of
float32, and with exact numbers.

The definition is float operators between dequantisation and quantisation. In float32 their sums are
rounded, in an order that nobody defines, so a result next to a tie depends on who computes it.
ONNX's reference evaluator computes in float64, which holds every product and sum of quantised
numbers: what is left is the definition itself.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass
from typing import Any

import numpy as np
import onnx
import onnx.numpy_helper
from onnx.reference import ReferenceEvaluator
from onnx.reference.op_run import OpRun

from ..compiler.onnx_backend import VdlaRep
from ..compiler.quantize import quantize
from .distance import Distance, distances, runtime
from .modern import check_names, efficientnet_lite0, mobilenet_v3, resnet50
from .workloads import mobilenet_v2

#: Builders of float networks by name, each of the side of its images.
NETWORKS: dict[str, Callable[[int], onnx.ModelProto]] = {
    "resnet50": resnet50,
    "mobilenet_v2": lambda side: mobilenet_v2(quantized=False, side=side),
    "mobilenet_v3": mobilenet_v3,
    "efficientnet_lite0": efficientnet_lite0,
}


@dataclass(frozen=True)
class Row:
    """Elements of all operators of one kind, or of a network's answers.

    Attributes
    ----------
    what : the operator, or whose answers
    elements : how many are compared
    equal : how many of them are as defined
    largest : the largest distance, in steps of the result's quantisation
    error : of answers of several images, the standard error of the share that is as defined
    """

    what: str
    elements: int
    equal: int
    largest: int
    error: float | None = None


def definition_rows(
    names: Sequence[str], side: int, images: int, progress: Callable[[int, int], None]
) -> list[dict[str, Any]]:
    """A row for each kind of operator of each network, on one image, and for its answers to all
    images; see :class:`Row`.

    Raises
    ------
    VdlaError
        For a name that there is no network of, and where ONNX Runtime is not installed.
    """
    check_names(names, NETWORKS)
    found = []
    for number, name in enumerate(names):
        progress(number, len(names))
        model, inputs = quantised(name, side, images)
        rows = (*operators(distances(model, inputs[:1])), *answers(model, inputs))
        found += [{"network": name} | asdict(row) for row in rows]
    return found


def quantised(name: str, side: int, images: int) -> tuple[onnx.ModelProto, list[np.ndarray]]:
    """A quantised network and images [1, 3, side, side] for it."""
    rng = np.random.default_rng(0)
    first, *others = rng.standard_normal((1 + images, 1, 3, side, side), np.float32)
    return quantize(NETWORKS[name](side), first).model, others


def operators(found: list[Distance]) -> Iterator[Row]:
    """The distances of single operators, added up by kind."""
    for kind in dict.fromkeys(row.op for row in found):
        rows = [row for row in found if row.op == kind]
        equal = sum(row.counts[0] for row in rows)
        yield Row(kind, sum(row.elements for row in rows), equal, max(r.largest for r in rows))


def answers(model: onnx.ModelProto, images: Sequence[np.ndarray]) -> Iterator[Row]:
    """The answers of VDLA and of ONNX Runtime's optimised run, against the run as written; then all
    three against the definition in exact numbers.
    """
    name, step, module = model.graph.input[0].name, _last_step(model), VdlaRep(model)

    def of_onnx_runtime(optimised: bool) -> np.ndarray:
        session = runtime(optimised=optimised)(model)
        return np.stack([session.run(None, {name: image})[0] for image in images])

    ours = np.stack([module.run([image])[0] for image in images])
    optimised, written = (of_onnx_runtime(optimised=value) for value in (True, False))
    exact = np.stack([exact_answers(model, {name: image}) for image in images])
    of_optimised = "answers of ONNX Runtime, optimised"
    yield _answers("answers", ours, written, step)
    yield _answers(of_optimised, optimised, written, step)
    yield _answers("answers, in exact numbers", ours, exact, step)
    yield _answers(f"{of_optimised}, in exact numbers", optimised, exact, step)
    yield _answers("answers of ONNX Runtime, as written, in exact numbers", written, exact, step)


def _answers(what: str, made: np.ndarray, wanted: np.ndarray, step: float) -> Row:
    """The distance of some answers to all images from others."""
    images = len(made)
    steps = np.rint(np.abs(made - wanted) / step).astype(int).reshape(images, -1)
    shares = (steps == 0).mean(axis=1)
    error = float(shares.std(ddof=1) / images**0.5) if images > 1 else None
    return Row(what, steps.size, int((steps == 0).sum()), int(steps.max()), error)


def _last_step(model: onnx.ModelProto) -> float:
    """The scale of the last tensor."""
    (last,) = (n for n in model.graph.node if model.graph.output[0].name in n.output)
    (scale,) = (t for t in model.graph.initializer if t.name == last.input[1])
    return float(onnx.numpy_helper.to_array(scale))


# ---- exact numbers -------------------------------------------------------------------------------

#: Numbers of steps that are so near to a tie are ties: float64 divides with an error of 1e-16, and
#: sums of float32 are wrong by 1e-5 of a step.
_TIE = 1e-9


def exact_answers(model: onnx.ModelProto, inputs: Mapping[str, np.ndarray]) -> np.ndarray:
    """The model's first output in float64, by the definitions of its operators.

    An input of float32 is quantised in float32: IEEE defines a single division.
    """
    found: Any = ReferenceEvaluator(model, new_ops=[QuantizeLinear, DequantizeLinear])
    return found.run(None, dict(inputs))[0]


class QuantizeLinear(OpRun):
    """Quantisation of float64, whose quotients next to a tie are ties."""

    op_domain = ""

    def _run(self, x: np.ndarray, *parameters: np.ndarray, axis: int | None, **_: Any):  # type: ignore[override]
        scale, zero = (_along(p, axis, x.ndim) for p in parameters)
        steps = x / scale.astype(x.dtype)
        if x.dtype == np.float64:
            halves = np.rint(2 * steps)
            steps = np.where(np.abs(2 * steps - halves) < _TIE, halves / 2, steps)
        limits = np.iinfo(zero.dtype)
        return (np.clip(np.rint(steps) + zero, limits.min, limits.max).astype(zero.dtype),)


class DequantizeLinear(OpRun):
    """Dequantisation to float64."""

    op_domain = ""

    def _run(self, x: np.ndarray, *parameters: np.ndarray, axis: int | None, **_: Any):  # type: ignore[override]
        scale, *zero = (_along(p, axis, x.ndim).astype(np.float64) for p in parameters)
        return ((x - (zero[0] if zero else 0.0)) * scale,)


def _along(value: np.ndarray, axis: int | None, rank: int) -> np.ndarray:
    """Scales or zero points of an axis, 1 where none is given, to be broadcast."""
    along = (1 if axis is None else axis) % rank
    return value.reshape([-1 if i == along else 1 for i in range(rank)] if value.ndim else ())
