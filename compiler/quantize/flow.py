"""The steps of quantisation, top to bottom."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Collection, Mapping
from dataclasses import dataclass, field
from functools import reduce
from types import MappingProxyType
from typing import Any

import numpy as np
import onnx

from ... import plugins
from ...isa.errors import VdlaError
from ..frontends.doors.as_onnx import as_onnx
from .accuracy import Error, compare, report
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
from .damage import Damage, check_reached, measured, without
from .draft import Draft, attribute, label
from .four_bits import GROUP, WEIGHT_BITS, Moments
from .plan import FLOAT_AROUND, Plan, clip_bounds, data_operands, has_weights, plan
from .prepare import prepare
from .rewrite import rewrite
from .rotation import factor_ranges
from .runs import samples_of_runs
from .smooth import find_pairs, smooth
from .weights import FourBits, Scale, Weight, corrected, quantize_weights

#: The most signal to quantisation noise, in dB, that can be asked for: float32 itself has less.
MOST_SQNR = 150
#: Operands of a product of two activations have zero point 0, which saves sums, where that makes
#: their range at most so many times as wide.
MOST_WIDENED = 1.25


@dataclass(frozen=True, eq=False)
class Quantized:
    """What :func:`quantize` made.

    Attributes
    ----------
    model : onnx.ModelProto
        QDQ ONNX, int8; inputs and outputs are those of the float model.
    states : dict
        Its inputs that are outputs of the run before, by name, for :func:`vdla.compile`.
    initial : dict
        Values of these before the first run; those without are zeros.
    report : dict
        ``top1_agreement`` of the first output (None unless it is [N, classes]), ``outputs`` and
        ``layers`` with their signal to quantisation noise in dB, and the reason of each node that
        stays float.
    """

    model: onnx.ModelProto
    report: dict[str, Any]
    states: Mapping[str, str]
    initial: Mapping[str, np.ndarray]


def quantize(
    model: object,
    samples: Samples | np.ndarray,
    method: str = "minmax",
    percentile: float = PERCENTILE,
    bias_correction: bool = False,
    least_sqnr: float | None = None,
    smoothing: float | None = None,
    progress: Progress | None = None,
    float_nodes: Collection[str] = (),
    measures_error: bool = True,
    weight_bits: int | Mapping[str, int] = 8,
    weight_group: int = GROUP,
    states: Mapping[str, str] = MappingProxyType({}),
    initial: Mapping[str, np.ndarray] = MappingProxyType({}),
    dims: Mapping[str, int] = MappingProxyType({}),
    wide: Collection[str] = (),
) -> Quantized:
    """Quantise a float model. What is not ONNX becomes that first.

    Weights become int8, symmetric, with a scale per output channel; activations int8 with a scale
    and a zero point per tensor; biases int32.

    Parameters
    ----------
    model : object
        A float32 model: a path, bytes or an onnx.ModelProto of ONNX, a program of torch.export,
        whose buffers that it changes are states, or another one that a door makes ONNX of.
    samples : mapping of arrays by input, or the array of the only input
        Typical inputs, their first dimension any multiple of the model's batch. A few hundred
        pictures do. Other dimensions that the model leaves open have the sizes of the samples.
    method : str
        How the range of a tensor follows from its values on the samples: ``minmax``, ``percentile``
        or ``entropy`` (the least Kullback-Leibler divergence).
    percentile : float
        The share of values, in percent, that method ``percentile`` keeps; of the model's outputs
        it keeps all.
    bias_correction : bool
        Correct the biases by what rounding the weights adds to the mean of each channel.
    least_sqnr : float, optional
        The least signal to quantisation noise in dB that each output may have. The damage of each
        node is measured, and the nodes with most stay float until the outputs have it.
    smoothing : float, optional
        0 to 1: how much of the difference in size between channels of an activation moves into the
        weights that read it (usually 0.5); what the model computes stays the same.
    progress : callable, optional
        Called with (batches done, batches in all).
    float_nodes : collection of str
        Names of nodes that stay float.
    measures_error : bool
        Whether the report has signal to quantisation noise, which takes a run of both models.
    weight_bits : int, or mapping by names of nodes
        8, or 4 with a scale for each ``weight_group`` input channels of an output channel, which a
        machine with packed weights reads as 4 bits; the model stays one of int8. Nodes without a
        number have 8, as do convolutions in groups.
    states : mapping
        Inputs that are outputs of the run before, as for :func:`vdla.compile`. Then samples are
        runs in order, and have none for these.
    initial : mapping
        Values of states before the first run, where they are not zeros.
    dims : mapping
        Sizes that the model leaves open, by name; the quantised one has them.
    wide : collection of str
        Tensors of two bytes, such as sums that each layer of a transformer adds to: int8, and what
        rounding to it lost as a second int8. Sums and normalisations read both, others the first.

    Raises
    ------
    VdlaError
        For a model that cannot be read or run, or has nothing to quantise, for samples and names
        that do not fit it, and where no node on integers leaves the outputs ``least_sqnr``.
    """
    plugins.load_known()
    if method not in METHODS:
        raise VdlaError(f"method: expected one of {', '.join(METHODS)}, got {method!r}")
    if not 50 < percentile <= 100:
        raise VdlaError(f"percentile: expected above 50, at most 100, got {percentile!r}")
    if least_sqnr is not None and not 0 <= least_sqnr <= MOST_SQNR:
        raise VdlaError(f"least SQNR: expected 0 to {MOST_SQNR} dB, got {least_sqnr!r}")
    if least_sqnr is not None and not measures_error:
        raise VdlaError("measures_error: expected True with a least SQNR, got False")
    each = weight_bits.values() if isinstance(weight_bits, Mapping) else (weight_bits,)
    for bits in each:
        if bits not in WEIGHT_BITS:
            raise VdlaError(f"weight bits: expected 4 or 8, got {bits!r}")
    if type(weight_group) is not int or weight_group < 1:
        raise VdlaError(f"weight group: expected channels, at least 1, got {weight_group!r}")
    if smoothing is not None and not 0 <= smoothing <= 1:
        raise VdlaError(f"smoothing: expected 0 to 1, got {smoothing!r}")
    form = as_onnx(model)
    states, initial = {**form.states, **states}, {**form.initial, **initial}
    draft = Draft.load(form.model, samples, dims)
    if isinstance(samples, np.ndarray):
        given = [name for name in draft.inputs if name not in states]
        if len(given) != 1:
            raise VdlaError(f"samples: expected arrays by input ({', '.join(given)})")
        samples = {given[0]: samples}
    if states:
        samples = samples_of_runs(draft, samples, states, initial)
    samples = check_samples(draft, samples)
    names = {node.name for node in draft.nodes}
    unknown = [name for name in float_nodes if name not in names]
    if unknown:
        raise VdlaError(f"float nodes: expected nodes of the model, got {unknown[0]!r}")
    named = weight_bits if isinstance(weight_bits, Mapping) else dict.fromkeys(names, weight_bits)
    unknown = [name for name in named if name not in names]
    if unknown:
        raise VdlaError(f"weight bits: expected nodes of the model, got {unknown[0]!r}")
    unknown = [name for name in wide if name not in draft.shapes]
    if unknown:
        raise VdlaError(f"wide: expected tensors of the model, got {unknown[0]!r}")
    draft.float_nodes, draft.wide = frozenset(float_nodes), frozenset(wide)
    prepare(draft)
    made = plan(draft)
    if not made.groups:
        reasons = "; ".join(dict.fromkeys(r for r in made.reasons if r != FLOAT_AROUND))
        reasons = reasons or FLOAT_AROUND
        raise VdlaError(f"expected a model with an operator that has an integer form: {reasons}")
    batches = len(Probe(draft, samples, ()))
    small = {n.name: n.input[0] for n in draft.nodes if _is_small(draft, n, named)}
    passes = (1 if method == "minmax" else 2) + bias_correction + 2 * measures_error + bool(small)
    pairs = [] if smoothing is None else find_pairs(draft)
    steps = 0 if least_sqnr is None else len(measured(draft, made))
    advance = _counter(batches * (passes + bool(pairs)) + steps, progress)
    if smoothing is not None and pairs:
        smooth(draft, pairs, samples, smoothing, advance)
        made = plan(draft)
    stored = tuple(made.groups)
    outputs = tuple(name for name in draft.outputs if draft.dtypes[name].startswith("float"))
    copies = {} if least_sqnr is not None else draft.copies(made.groups)
    probed = tuple(n for n in stored if n not in copies or n in small.values())
    probe = Probe(draft, samples, probed, outputs)
    # The largest values of an output, such as the likeliest word's, are what it is read for.
    whole = {copies.get(name, name) for name in outputs}
    ranges = calibrate(probe, method, percentile, whole, advance)
    ranges |= {name: ranges[source] for name, source in copies.items()}
    moments = _moments(probe, {*small.values()}.intersection(probed), advance) if small else {}
    four = FourBits({*small}, weight_group, moments)
    job = _Job(draft, ranges, probe, bias_correction, four, copies, measures_error)
    if least_sqnr is None:
        built, alone = job.build(made, advance, is_last=True), {}
    else:
        built, alone = _with_least_sqnr(job, made, least_sqnr, advance)
    body = {"method": method, "bias_correction": bias_correction, "samples": batches}
    body |= {"least_sqnr_db": least_sqnr, "smoothing": smoothing}
    body |= {"smoothed": [label(pair.producer) for pair in pairs]}
    layers = report(draft, built.plan, built.scales, built.errors, alone)
    return Quantized(built.model, body | layers, states, initial)


@dataclass(frozen=True, eq=False)
class _Built:
    plan: Plan
    scales: dict[str, Scale]
    model: onnx.ModelProto
    errors: dict[str, Error]

    @property
    def sqnr_db(self) -> float:
        """The least of all outputs."""
        found = [self.errors[name].sqnr_db for name in self.names]
        return min(float("inf") if value is None else value for value in found)

    @property
    def names(self) -> list[str]:
        """The outputs that are compared."""
        return [value.name for value in self.model.graph.output if value.name in self.errors]


@dataclass(frozen=True, eq=False)
class _Job:
    """What a quantised model is built from, besides a plan."""

    draft: Draft
    ranges: dict[str, Range]
    probe: Probe
    bias_correction: bool
    four: FourBits = field(default_factory=FourBits)
    #: Of the float model, as :meth:`.draft.Draft.copies` has them.
    copies: Mapping[str, str] = field(default_factory=dict)
    measures_error: bool = True

    def numbers(
        self, made: Plan, advance: Callable[[], None]
    ) -> tuple[dict[str, Scale], dict[str, Weight]]:
        """Scales and weights."""
        scales = _scales(self.draft, made, self.ranges)
        weights = quantize_weights(self.draft, made, scales, self.four)
        if self.bias_correction:
            weights = corrected(self.draft, weights, self.probe.samples, advance)
        return scales, weights

    def build(self, made: Plan, advance: Callable[[], None], is_last: bool = False) -> _Built:
        """The quantised model of a plan, compared with the float one. After the last one, the
        draft has no constants: the probe has its own."""
        scales, weights = self.numbers(made, advance)
        quantised, dequantized = rewrite(self.draft, made, scales, weights)
        if is_last:
            self.probe.release_constants()
        if not self.measures_error:
            return _Built(made, scales, quantised.finish(), {})
        sources = {n: other for n, other in dequantized.items() if n not in self.copies}
        errors = compare(self.probe, quantised, sources, advance)
        copied = {*dequantized} - {*sources}
        errors |= {name: errors[self.copies[name]] for name in copied - {*self.probe.others}}
        return _Built(made, scales, quantised.finish(), errors)


def _is_small(draft: Draft, node: onnx.NodeProto, bits: Mapping[str, int]) -> bool:
    """Whether a node's weights are to have 4 bits."""
    together = node.op_type != "Conv" or attribute(node, "group", 1) == 1
    return bits.get(node.name) == 4 and has_weights(draft, node) and together


def _moments(
    probe: Probe, names: Collection[str], advance: Callable[[], None]
) -> dict[str, Moments]:
    """The moments of matrices, by their names, on the samples."""
    sums: dict[str, np.ndarray] = {}
    counts: Counter[str] = Counter()
    for values in probe.run(advance):
        for name in names:
            if values[name].ndim == 2:
                x = values[name].astype(np.float64)
                sums[name] = sums.get(name, 0) + x.T @ x
                counts[name] += len(x)
    return {name: Moments(sums[name], counts[name]) for name in sums}


def _with_least_sqnr(
    job: _Job, made: Plan, least_sqnr: float, advance: Callable[[], None]
) -> tuple[_Built, dict[int, float]]:
    """The model in which as few nodes stay float as the answers need to have ``least_sqnr`` dB on
    all samples; and the damage of each node.
    """

    def silent() -> None:
        """Not counted: how often it happens is not known before."""

    scales, weights = job.numbers(made, silent)
    damage = Damage.of(job.draft, made, scales, weights, job.probe.samples)
    alone = damage.alone(advance)
    heads = damage.chosen(alone, least_sqnr)
    while True:
        chosen = without(job.draft, made, alone, heads)
        check_reached(chosen, alone, least_sqnr)
        built = job.build(chosen, advance)
        if built.sqnr_db >= least_sqnr:
            return built, alone
        # On all samples the noise is larger, and scales that fewer nodes share are others.
        heads.append(min({*alone} - {*heads}, key=lambda head: alone[head]))
        advance = silent


def _scales(draft: Draft, made: Plan, ranges: dict[str, Range]) -> dict[str, Scale]:
    """The scale of each stored tensor, from the union of the ranges that share it; and of what
    rotary embeddings turn these by."""
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
    multiplied = _multiplied(draft)
    for names in made.members().values():
        span = reduce(Range.union, (ranges[name] for name in names))
        if not multiplied.isdisjoint(names):
            span = span.balanced(MOST_WIDENED)
        shared = Scale.of(span)
        scales |= dict.fromkeys(names, shared)
    factors = factor_ranges(draft, made.groups)
    return scales | {name: Scale.of(span.balanced(MOST_WIDENED)) for name, span in factors.items()}


def _multiplied(draft: Draft) -> set[str]:
    """Operands of products of two activations."""
    products = (node for node in draft.nodes if node.op_type == "MatMul")
    pairs = (data_operands(draft, node) for node in products)
    return {name for pair in pairs if len(pair) == 2 for name in pair}


def _counter(total: int, progress: Progress | None) -> Callable[[], None]:
    done = 0

    def advance() -> None:
        nonlocal done
        done += 1
        if progress is not None:
            progress(done, total)

    return advance
