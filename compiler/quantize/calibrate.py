"""Ranges of a float model's tensors, from samples of its inputs."""

from __future__ import annotations

import gc
from collections.abc import Callable, Collection, Iterator, Mapping
from dataclasses import dataclass
from functools import cached_property

import numpy as np
import onnx

from ...isa.errors import VdlaError
from ..onnx_backend import VdlaRep
from .draft import Draft

METHODS = ("minmax", "percentile", "entropy")
#: Bins of a histogram, from the lowest to the highest value.
BINS = 2048
#: Share of the values, in percent, that method "percentile" keeps.
PERCENTILE = 99.99
#: Values of an 8-bit integer.
LEVELS = 256

Samples = Mapping[str, np.ndarray]
Progress = Callable[[int, int], None]


@dataclass(frozen=True)
class Range:
    """Real values from ``lo`` to ``hi``."""

    lo: float
    hi: float

    def union(self, other: Range) -> Range:
        return Range(min(self.lo, other.lo), max(self.hi, other.hi))

    def balanced(self, most: float) -> Range:
        """The range with as many values below zero as above, so that its zero point is 0, where it
        is at most ``most`` times as wide then; otherwise as it is."""
        far = max(-self.lo, self.hi)
        is_near = 2 * far <= most * (self.hi - self.lo)
        return Range(-far * 128 / 127, far) if is_near else self  # int8's lowest is -128


@dataclass(frozen=True)
class Probe:
    """Runs a model on samples, one batch at a time, and returns values of its tensors. It is
    compiled at the first run."""

    draft: Draft
    samples: Samples
    tensors: tuple[str, ...]
    #: Tensors whose values are returned, too, but not calibrated.
    others: tuple[str, ...] = ()

    def __len__(self) -> int:
        """How many batches there are."""
        name, array = next(iter(self.samples.items()))
        return array.shape[0] // (self._rows[name] or 1)

    @cached_property
    def _rows(self) -> dict[str, int]:
        """What the first dimension of each input is in a batch: 1 where it is open, 0 of a
        scalar."""
        sizes = {name: self.draft.sizes(name) for name in self.samples}
        return {name: max(1, found[0]) if found else 0 for name, found in sizes.items()}

    def run(self, advance: Callable[[], None]) -> Iterator[dict[str, np.ndarray]]:
        """The tensors' values, batch after batch; who takes them out as they are used needs the
        memory of few of them at a time."""
        for number, batch in enumerate(self.batches()):
            values = self.module.run(batch)
            if not number:
                gc.collect()  # the compiler leaves circles of objects behind
            yield dict(zip(self._outputs, values, strict=True))
            del values
            advance()

    @cached_property
    def module(self) -> VdlaRep:
        """What runs the model."""
        model, constants = self.draft.outline([*self._outputs])
        return VdlaRep(model, values=constants)

    def release_constants(self) -> None:
        """Forget the draft's constants; the code has its own."""
        self.draft.constants.clear()
        self.module.values.clear()

    @property
    def _outputs(self) -> tuple[str, ...]:
        return tuple(dict.fromkeys((*self.tensors, *self.others)))

    def batches(self) -> Iterator[dict[str, np.ndarray]]:
        """The samples of one batch after another."""
        for number in range(len(self)):
            yield {
                name: array[number * rows : (number + 1) * rows] if rows else array[number, ...]
                for name, rows in self._rows.items()
                for array in (self.samples[name],)
            }


def check_samples(
    draft: Draft, samples: Samples, states: Collection[str] = ()
) -> dict[str, np.ndarray]:
    """The samples by input, in the inputs' dtype; without those of states.

    Raises
    ------
    VdlaError
        When an input has none, a state has some, or their shapes or numbers do not fit.
    """
    found, counts = {}, {}
    for name in states:
        if name in samples:
            raise VdlaError(f"samples: expected none of the state {name!r}, which runs make")
    for value in draft.model.graph.input:
        if value.name not in draft.inputs or value.name in states:
            continue
        if value.name not in samples:
            raise VdlaError(f"samples: expected {value.name!r}, got {', '.join(samples)}")
        array = samples[value.name]
        sizes = draft.sizes(value.name) or [1]
        rest = sizes[1:]
        fits = array.ndim == len(sizes) and all(
            n in (0, m) for n, m in zip(rest, array.shape[1:], strict=True)
        )
        if not fits or not array.size or array.shape[0] % max(1, sizes[0]):
            wanted = "".join(f", {n or 'any'}" for n in rest)
            raise VdlaError(
                f"samples {value.name!r}: expected shape (a multiple of {max(1, sizes[0])}"
                f"{wanted}), got {array.shape}"
            )
        if not np.isfinite(array).all():
            raise VdlaError(f"samples {value.name!r}: expected finite values, got NaN or infinity")
        dtype = onnx.helper.tensor_dtype_to_np_dtype(value.type.tensor_type.elem_type)
        found[value.name] = np.ascontiguousarray(array, dtype)
        counts[array.shape[0] // max(1, sizes[0])] = value.name
    if len(counts) != 1:
        raise VdlaError(f"samples: expected as many of every input, got {sorted(counts)}")
    return found


def calibrate(
    probe: Probe, method: str, percentile: float, whole: set[str], advance: Callable[[], None]
) -> dict[str, Range]:
    """The range of each tensor by ``method``; "percentile" and "entropy" go over the samples twice.
    By the former, the tensors in ``whole`` keep their full range.

    Raises
    ------
    VdlaError
        When a tensor is not finite on some sample.
    """
    ranges = _extremes(probe, advance)
    if method == "minmax":
        return ranges
    if method == "entropy":  # a range that is stored has zero in it
        ranges = {name: span.union(Range(0.0, 0.0)) for name, span in ranges.items()}
    histograms = {name: np.zeros(BINS, np.int64) for name in probe.tensors}
    for values in probe.run(advance):
        for name in probe.tensors:
            value = values.pop(name)
            span = (ranges[name].lo, ranges[name].hi)
            # Zeros, of which a ReLU makes many, are exact in any range: they say nothing about it.
            counted = value[value != 0] if method == "entropy" else value
            if span[0] < span[1]:  # in float64, whose numbers tell all bins apart
                histograms[name] += np.histogram(counted.astype(np.float64), BINS, span)[0]
    if method == "percentile":
        cut = ranges.keys() - whole
        return ranges | {n: by_percentile(histograms[n], ranges[n], percentile) for n in cut}
    return {n: by_entropy(histograms[n], r) for n, r in ranges.items()}


def _extremes(probe: Probe, advance: Callable[[], None]) -> dict[str, Range]:
    ranges: dict[str, Range] = {}
    for values in probe.run(advance):
        for name in probe.tensors:
            value = values.pop(name)
            if not np.isfinite(value).all():
                raise VdlaError(
                    f"tensor {name!r}: expected finite values on the samples, got NaN or infinity"
                )
            seen = Range(float(value.min()), float(value.max()))
            ranges[name] = ranges[name].union(seen) if name in ranges else seen
    return ranges


def by_percentile(histogram: np.ndarray, span: Range, percentile: float) -> Range:
    """The range of ``percentile`` percent of the values; of the rest, half is left out at each end.

    An end stays where more values lie in its last bin than may be left out, as zeros do after a
    ReLU.
    """
    total = np.cumsum(histogram)
    if not total[-1]:
        return span
    rest = total[-1] * (1 - percentile / 100) / 2
    edges = np.linspace(span.lo, span.hi, BINS + 1)
    low = int(np.searchsorted(total, rest, "right"))
    high = int(np.searchsorted(total, total[-1] - rest, "left"))
    return Range(float(edges[low]), float(edges[high + 1]))


def by_entropy(histogram: np.ndarray, span: Range) -> Range:
    """The range whose 256 levels describe the values with the least loss of information; ``span``
    has zero in it.

    Ranges grow around zero bin by bin, at both ends in proportion. For each, the histogram is
    quantised to ``LEVELS`` levels, and compared to the histogram with everything beyond the range
    at its ends. The range with the least Kullback-Leibler divergence is returned.
    """
    if not histogram.any():
        return span
    counts, width = histogram.astype(np.float64), (span.hi - span.lo) / BINS
    zero = round(-span.lo / width)
    best, kept = np.inf, span
    for size in range(LEVELS, BINS + 1, BINS // LEVELS):
        first = round(zero * (1 - size / BINS))
        loss = _divergence(counts, first, size)
        if loss < best:
            best, kept = loss, Range(span.lo + first * width, span.lo + (first + size) * width)
    return kept


def _divergence(counts: np.ndarray, first: int, size: int) -> float:
    """Kullback-Leibler divergence of ``size`` quantised bins from the same bins, not quantised,
    with all other bins added at the ends."""
    inside = counts[first : first + size]
    clipped = inside.copy()
    clipped[0] += counts[:first].sum()
    clipped[-1] += counts[first + size :].sum()
    level = np.arange(size) * LEVELS // size
    present = inside > 0
    filled = np.maximum(np.bincount(level, present, LEVELS), 1)
    share = np.bincount(level, inside, LEVELS) / filled
    quantised = np.where(present, share[level], 0)
    if not quantised.any():
        return np.inf
    p, q = clipped / clipped.sum(), quantised / quantised.sum()
    seen = p > 0
    # Where only clipped values lie, the quantised histogram is 0; a small number keeps the
    # divergence finite.
    return float((p[seen] * np.log(p[seen] / np.maximum(q[seen], 1e-9))).sum())
