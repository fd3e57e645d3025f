"""The bench of GPUs on a stand-in for the driver: right results pass, wrong ones do not."""

from __future__ import annotations

import ctypes

import numpy as np
import pytest
from vdla.bench import gpu
from vdla.bench.ablation import cooperation_rows, fusion_rows
from vdla.bench.gpu import KINDS, gpu_rows, product_rows
from vdla.isa.errors import VdlaError

from ..runtime.test_cuda_driver import driver, opened

__all__ = ["driver"]  # a fixture


@pytest.mark.more
@pytest.mark.slow
def test_networks(driver: ctypes.CDLL) -> None:
    steps: list[tuple[int, int]] = []
    rows = gpu_rows(
        ["dqn"], ["int8", "float32"], [1], 3, lambda *step: steps.append(step), opened(driver, [])
    )
    assert [(row["name"], row["kind"], row["batch"]) for row in rows] == [
        ("dqn", "int8", 1), ("dqn", "float32", 1),
    ]  # fmt: skip
    assert rows[0]["error"] == 0 < rows[1]["error"] < 1e-5
    assert all(row["ratio"] is None and row["kernels"] > 5 for row in rows)
    assert steps == [(n, 4) for n in range(1, 5)]


@pytest.mark.more
@pytest.mark.slow
def test_products(driver: ctypes.CDLL) -> None:
    rows = product_rows(KINDS, [96], 3, open=opened(driver, []))
    assert [row["kind"] for row in rows] == list(KINDS)
    assert all(row["tflops"] > 0 and row["torch_ms"] is None for row in rows)
    assert rows[0]["error"] == 0


def test_results_of_int8_are_seldom_at_the_ends() -> None:
    graph = gpu.product_graph("int8", 512)
    rng = np.random.default_rng(0)
    found = gpu._product(graph, [gpu.random_operand(rng, graph[name]) for name in ("x", "w", "b")])
    assert np.mean(np.abs(found.astype(int)) >= 127) < 0.1 and np.std(found) > 20


@pytest.mark.slow
def test_a_wrong_product_is_refused(driver: ctypes.CDLL, monkeypatch: pytest.MonkeyPatch) -> None:
    right = gpu._product
    monkeypatch.setattr(gpu, "_product", lambda *given: right(*given) + 1)
    with pytest.raises(VdlaError, match="bench gpu-products: 96 in float32: expected NumPy's"):
        product_rows(["float32"], [96], 3, open=opened(driver, []))


@pytest.mark.more
@pytest.mark.slow
def test_ablation(driver: ctypes.CDLL) -> None:
    [lstm] = fusion_rows(["lstm_lm"], 1, opened(driver, []), emulate=True)
    assert lstm["kernels"]["fused"] < lstm["kernels"]["unfused"] and lstm["error"] == 0
    [product] = cooperation_rows([128], 1, opened(driver, []))
    assert product["kernels"] == {"cooperative": 1, "alone": 1} and product["error"] < 1e-6


def test_transformers_are_for_one_sentence_in_float() -> None:
    with pytest.raises(VdlaError, match="expected float kinds and batch 1 for bert"):
        gpu_rows(["bert"], ["float32"], [1, 64], 1)
