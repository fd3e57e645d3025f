"""PyTorch beside our kernels: what it runs is the same network; without it there is one line."""

from __future__ import annotations

from importlib.util import find_spec

import numpy as np
import onnxruntime
import pytest
from vdla.bench.gpu import TRANSFORMERS, gpu_rows
from vdla.bench.torch_peer import network
from vdla.isa.errors import VdlaError

from ..compiler.targets.gpu.networks import NETWORKS


@pytest.mark.parametrize("name", (*NETWORKS, *TRANSFORMERS))
def test_the_peer_computes_the_same_network(name: str) -> None:
    torch = pytest.importorskip("torch", reason="torch is not installed")
    model = TRANSFORMERS[name]() if name in TRANSFORMERS else NETWORKS[name](False)
    session = onnxruntime.InferenceSession(model.SerializeToString())
    rng = np.random.default_rng(0)
    inputs = {
        i.name: rng.integers(0, 30, i.shape)
        if "int64" in i.type
        else rng.normal(size=i.shape).astype(np.float32)
        for i in session.get_inputs()
    }
    found = network(model, "float32", "cpu")(*(torch.tensor(x) for x in inputs.values()))
    for got, wanted in zip(found, session.run(None, inputs), strict=True):
        np.testing.assert_allclose(got.numpy(), wanted, rtol=1e-4, atol=1e-5)


@pytest.mark.skipif(find_spec("torch") is not None, reason="PyTorch is installed")
def test_without_pytorch_there_is_one_line() -> None:
    with pytest.raises(VdlaError, match="peers: expected PyTorch for torch, found none"):
        gpu_rows(["dqn"], ["float32"], [1], 1, peers=["torch"])
