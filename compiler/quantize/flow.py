"""The steps of quantisation, top to bottom."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from functools import reduce
from pathlib import Path
from typing import Any

import numpy as np
import onnx

from ... import plugins
from ...isa.errors import VdlaError
from .accuracy import compare, report
from .calibrate import (
    METHODS,
    PERCENTILE,
    Probe,
    Progress,
    Range,
    Samples,
    calibrate,
    check_samples,
)
from .draft import Draft
from .plan import FLOAT_AROUND, Plan, clip_bounds, plan
from .prepare import prepare
from .rewrite import rewrite
from .weights import Scale, corrected, quantize_weights


@dataclass(frozen=True, eq=False)
class Quantized:
    """What :func:`quantize` made.

    Attributes
    ----------
    model : onnx.ModelProto
        QDQ ONNX, int8; inputs and outputs are those of the float model.
    report : dict
        ``top1_agreement`` of the first output (None unless it is [N, classes]), ``outputs`` and
        ``layers`` with their signal to quantisation noise in dB, and the reason of each node that
        stays float.
    """

    model: onnx.ModelProto
    report: dict[str, Any]


def quantize(
    model: str | Path | bytes | onnx.ModelProto,
    samples: Samples | np.ndarray,
    method: str = "minmax",
    percentile: float = PERCENTILE,
    bias_correction: bool = False,
    progress: Progress | None = None,
) -> Quantized:
    """Quantise a float ONNX model.

    Weights become int8, symmetric, with a scale per output channel; activations int8 with a scale
    and a zero point per tensor; biases int32.

    Parameters
    ----------
    model : path, bytes or onnx.ModelProto
        A float32 model.
    samples : mapping of arrays by input, or the array of the only input
        Typical inputs, their first dimension any multiple of the model's batch. A few hundred
        pictures do.
    method : str
        How the range of a tensor follows from its values on the samples: ``minmax``, ``percentile``
        or ``entropy`` (the least Kullback-Leibler divergence).
    percentile : float
        The share of values, in percent, that method ``percentile`` keeps.
    bias_correction : bool
        Correct the biases by what rounding the weights adds to the mean of each channel.
    progress : callable, optional
        Called with (batches done, batches in all).

    Raises
    ------
    VdlaError
        For a model that cannot be read or run, or has nothing to quantise, and for samples that do
        not fit it.
    """
    plugins.load_known()
    if method not in METHODS:
        raise VdlaError(f"method: expected one of {', '.join(METHODS)}, got {method!r}")
    if not 50 < percentile <= 100:
        raise VdlaError(f"percentile: expected above 50, at most 100, got {percentile!r}")
    draft = Draft.load(model)
    if isinstance(samples, np.ndarray):
        if len(draft.inputs) != 1:
            raise VdlaError(f"samples: expected arrays by input ({', '.join(draft.inputs)})")
        samples = {draft.inputs[0]: samples}
    samples = check_samples(draft.model, samples)
    prepare(draft)
    made = plan(draft)
    if not made.groups:
        reasons = "; ".join(dict.fromkeys(r for r in made.reasons if r != FLOAT_AROUND))
        reasons = reasons or FLOAT_AROUND
        raise VdlaError(f"expected a model with an operator that has an integer form: {reasons}")
    stored = tuple(made.groups)
    probe = Probe(draft.finish([*stored]), samples, stored)
    passes = (1 if method == "minmax" else 2) + bias_correction + 2
    advance = _counter(len(probe) * passes, progress)
    scales = _scales(draft, made, calibrate(probe, method, percentile, advance))
    weights = quantize_weights(draft, made, scales)
    if bias_correction:
        weights = corrected(draft, weights, samples, advance)
    quantised, dequantized = rewrite(draft, made, scales, weights)
    errors = compare(draft, quantised, dequantized, samples, advance)
    body = {"method": method, "bias_correction": bias_correction, "samples": len(probe)}
    return Quantized(quantised.finish(), body | report(draft, made, scales, errors))


def _scales(draft: Draft, made: Plan, ranges: dict[str, Range]) -> dict[str, Scale]:
    """The scale of each stored tensor, from the union of the ranges that share it."""
    bounds = {
        node.output[0]: clip_bounds(draft, node)
        for node in draft.nodes
        if node.op_type in ("Relu", "Clip")
    }
    for name, limit in bounds.items():
        if name in ranges and limit is not None:
            found = ranges[name]
            ranges[name] = Range(max(found.lo, limit[0]), min(found.hi, limit[1]))
    scales: dict[str, Scale] = {}
    for names in made.members().values():
        shared = Scale.of(reduce(Range.union, (ranges[name] for name in names)))
        scales |= dict.fromkeys(names, shared)
    return scales


def _counter(total: int, progress: Progress | None) -> Callable[[], None]:
    done = 0

    def advance() -> None:
        nonlocal done
        done += 1
        if progress is not None:
            progress(done, total)

    return advance
