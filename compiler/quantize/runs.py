"""Samples of a model with states: in each run these have what the run before left."""

from __future__ import annotations

from collections.abc import Mapping

import numpy as np

from ..frontends.states import with_states
from ..onnx_backend import VdlaRep
from .calibrate import Probe, Samples, check_samples
from .draft import Draft


def samples_of_runs(
    draft: Draft,
    samples: Samples,
    states: Mapping[str, str],
    initial: Mapping[str, np.ndarray],
) -> dict[str, np.ndarray]:
    """The samples, which are runs in order, with arrays for the states of each run.

    Raises
    ------
    VdlaError
        As :func:`~..frontends.states.with_states` and :func:`.calibrate.check_samples`.
    """
    tied = with_states(draft.imported(), states, initial)
    held = {before: value for before, _, value in tied.state_values if before in states}
    samples = check_samples(draft, samples, held)
    kept: dict[str, list[np.ndarray]] = {name: [] for name in held}
    model, constants = draft.outline([*states.values()])
    module = VdlaRep(model, values=constants)
    for batch in Probe(draft, samples, ()).batches():
        for name, value in held.items():
            kept[name].append(value)
        results = dict(zip(states, module.run(batch | held), strict=True))
        held = {
            name: results[name][tuple(slice(-size, None) for size in value.shape)]
            for name, value in held.items()
        }
    arrays = {name: np.stack(values) for name, values in kept.items()}
    return samples | {name: a.reshape(-1, *a.shape[2:]) for name, a in arrays.items()}
