"""Whole networks at full size as emulated CUDA kernels, against the CPU target
(``make gpu-emulated``)."""

from __future__ import annotations

import numpy as np
import pytest
import vdla
from vdla.bench.workloads import NETWORKS
from vdla.cli.arrays import model_inputs


@pytest.mark.sweep
@pytest.mark.parametrize("quantized", [True, False], ids=["int8", "float32"])
@pytest.mark.parametrize("name", NETWORKS)
def test_full_size(name: str, quantized: bool) -> None:
    model = NETWORKS[name](1, quantized).SerializeToString()
    module = vdla.compile(model, "cuda", emulate=True)
    arrays = model_inputs(module, None, 0)
    made = module.run(*arrays)
    for got, wanted in zip(made, vdla.compile(model, "cpu").run(*arrays), strict=True):
        assert np.ptp(got) > 0
        if quantized and name not in ("dcgan", "lstm_lm"):
            np.testing.assert_array_equal(got, wanted)
        else:
            np.testing.assert_allclose(got, wanted, rtol=1e-4, atol=1e-4 * np.abs(wanted).max())
