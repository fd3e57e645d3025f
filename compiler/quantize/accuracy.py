"""How far a quantised model is from the float one, tensor by tensor and in its answers."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np

from .calibrate import Probe
from .draft import Draft, label
from .plan import Plan
from .weights import Scale


@dataclass
class Error:
    """Sums over the samples: squares of the values (``signal``) and of their errors (``noise``),
    rows of answers, and rows whose largest value is in the same place (``equal``).
    """

    signal: float = 0.0
    noise: float = 0.0
    largest: float = 0.0
    equal: int = 0
    rows: int = 0

    def add(self, real: np.ndarray, quantised: np.ndarray) -> None:
        a, b = real.astype(np.float64), quantised.astype(np.float64)
        self.signal += float((a * a).sum())
        self.noise += float(((a - b) ** 2).sum())
        self.largest = max(self.largest, float(np.abs(a - b).max(initial=0)))
        if real.ndim == 2 and real.shape[1] > 1:
            self.equal += int((a.argmax(axis=1) == b.argmax(axis=1)).sum())
            self.rows += len(real)

    @property
    def sqnr_db(self) -> float | None:
        """Signal to quantisation noise; None where either is zero."""
        if not self.signal or not self.noise:
            return None
        return 10 * float(np.log10(self.signal / self.noise))


def compare(
    probe: Probe, quantised: Draft, dequantized: Mapping[str, str], advance: Callable[[], None]
) -> dict[str, Error]:
    """The error of every quantised tensor and every output, by the name that ``probe``, of the
    float model, has for it."""
    pairs = {name: name for name in probe.others} | dict(dequantized)
    other = Probe(quantised, probe.samples, tuple(dict.fromkeys(pairs.values())))
    errors = {name: Error() for name in pairs}
    # The other one first: it is compiled before there are values of the float model.
    for stored, real in zip(other.run(advance), probe.run(advance), strict=True):
        for name in pairs:
            errors[name].add(real.pop(name), stored[pairs[name]])
        stored.clear()
    return errors


def report(
    draft: Draft,
    plan: Plan,
    scales: Mapping[str, Scale],
    errors: Mapping[str, Error],
    alone: Mapping[int, float],
) -> dict[str, Any]:
    """The report, for JSON: a row for each node, which includes the nodes merged into it, and for
    each output. ``errors`` are those that were measured, and so is ``alone``, the damage of nodes
    by position.
    """
    layers = []
    for i, (node, reason) in enumerate(zip(draft.nodes, plan.reasons, strict=True)):
        if i in plan.merged:
            continue
        chain = [draft.nodes[place] for place in plan.chain(i)]
        name = chain[-1].output[0]
        scale, error = (None, None) if reason else (scales[name], errors.get(name))
        layers.append(
            {
                "name": label(node),
                "op": "+".join(part.op_type for part in chain),
                "type": "float32" if reason else "int8",
                "reason": reason,
                "scale": scale and scale.scale,
                "zero_point": scale and scale.zero_point,
                "sqnr_db": error and error.sqnr_db,
                "alone_db": _finite(alone.get(i)),
            }
        )
    outputs = {
        name: {
            "sqnr_db": error.sqnr_db,
            "max_error": error.largest,
            "top1_agreement": error.equal / error.rows if error.rows else None,
        }
        for name, error in errors.items()
        if name in draft.outputs
    }
    first = next(iter(outputs.values()), {"top1_agreement": None})
    return {
        "top1_agreement": first["top1_agreement"],
        "outputs": outputs,
        "layers": layers,
        "merged": draft.fused,
    }


def _finite(decibel: float | None) -> float | None:
    """None without noise, too: JSON has no infinity."""
    return None if decibel is None or not np.isfinite(decibel) else decibel
