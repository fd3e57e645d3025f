"""What the quantiser loses (``vdla bench quantised``): float networks against their int8 models, by
how they are quantised.

Weights are random, so activations have channels of
one size. Those of trained networks differ, which is what smoothing is for: ``uneven`` networks
compute the same with channels that random factors make larger and smaller.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import onnx

from ..compiler.quantize import quantize
from ..compiler.quantize.draft import Draft
from ..compiler.quantize.prepare import prepare
from ..compiler.quantize.smooth import find_pairs, move
from ..runtime.files import whole_file
from .modern import bert, check_names, vit_tiny
from .workloads import mobilenet_v2

#: Standard deviation of the binary logarithm of the factors of ``uneven`` networks.
SPREAD = 2.0
#: Batches of samples.
SAMPLES = 8
VOCABULARY = 1000
#: Builders of float networks by name.
NETWORKS: dict[str, Callable[[], onnx.ModelProto]] = {
    "bert": bert,
    "mobilenet_v2": lambda: mobilenet_v2(quantized=False),
    "vit_tiny": vit_tiny,
}
#: Options of the quantiser, by what they are called in the table.
OPTIONS: dict[str, dict[str, Any]] = {
    "plain": {},
    "smoothing 0.5": {"smoothing": 0.5},
}


def uneven(model: onnx.ModelProto) -> onnx.ModelProto:
    """The same function, with factors moved between channels and the weights that read them."""
    draft = Draft.load(model)
    prepare(draft)
    rng = np.random.default_rng(1)
    for pair in find_pairs(draft):
        channels = draft.shapes[pair.consumers[0].input[0]]
        count = channels[1] if pair.consumers[0].op_type == "Conv" else channels[-1]
        move(draft, pair, 2.0 ** rng.normal(0, SPREAD, count))
    return draft.finish()


def make_samples(model: onnx.ModelProto) -> dict[str, np.ndarray]:
    """Random inputs: tokens, images or sequences, :data:`SAMPLES` times what the model takes."""
    rng = np.random.default_rng(0)
    found = {}
    for value in model.graph.input:
        first, *shape = (d.dim_value for d in value.type.tensor_type.shape.dim)
        size = (SAMPLES * first, *shape)
        words = value.type.tensor_type.elem_type == onnx.TensorProto.INT64
        found[value.name] = (
            rng.integers(0, VOCABULARY, size) if words else rng.standard_normal(size, np.float32)
        )
    return found


def quantised_rows(
    names: Sequence[str], progress: Callable[[int, int], None], save: Path | None = None
) -> list[dict[str, Any]]:
    """Every network, as it is and uneven, with all options: ``sqnr_db`` of its output, on the
    samples that it was quantised with; ``int8`` and ``float32`` nodes; how many activations were
    ``smoothed``. ``save`` is a folder for the int8 models, as they are and without options.

    Raises
    ------
    VdlaError
        For a name that there is no network of.
    """
    check_names(names, NETWORKS)
    changes = {"": lambda model: model, ", uneven": uneven}
    jobs = [(name, suffix, options) for name in names for suffix in changes for options in OPTIONS]
    found = []
    for number, (name, suffix, options) in enumerate(jobs):
        progress(number, len(jobs))
        model = changes[suffix](NETWORKS[name]())
        made = quantize(model, make_samples(model), **OPTIONS[options])
        report = made.report
        if save is not None and not (suffix or OPTIONS[options]):
            save.mkdir(parents=True, exist_ok=True)
            with whole_file(save / f"{name}-int8.onnx") as place:
                onnx.save_model(made.model, str(place))
        kinds = [row["type"] for row in report["layers"]]
        (output,) = report["outputs"].values()
        found.append({
            "network": name + suffix, "options": options, "sqnr_db": output["sqnr_db"],
            "int8": kinds.count("int8"), "float32": len(kinds) - kinds.count("int8"),
            "smoothed": len(report["smoothed"]),
        })  # fmt: skip
    return found
