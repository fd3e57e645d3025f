"""Compiled graphs in the cache folder: found again, told apart, and made again where damaged."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
from vdla.compiler.graph.ir import Graph, Node, Tensor
from vdla.compiler.graph.ops.convolution import Conv2d
from vdla.compiler.targets.common import cache as kept
from vdla.compiler.targets.cpu import graph_code as cpu
from vdla.compiler.targets.cpu.graph_code import build_cpu, compile_graph
from vdla.compiler.targets.cpu.processor import host

from ..damage import DAMAGE

X = np.random.default_rng(0).normal(0, 1, (1, 4, 9, 9)).astype(np.float32)


def network(factor: float = 1.0, stride: int = 1) -> Graph:
    weight = np.random.default_rng(1).normal(0, factor, (8, 4, 3, 3)).astype(np.float32)
    size = (9 - 3) // stride + 1
    tensors = [
        Tensor("x", X.shape, "float32"), Tensor.constant("w", weight),
        Tensor("y", (1, 8, size, size), "float32"),
    ]  # fmt: skip
    node = Node("conv", Conv2d((stride, stride), (0, 0, 0, 0), (1, 1), 1), ("x", "w"), "y")
    return Graph("kept", ("x",), ("y",), (node,), {t.name: t for t in tensors})


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """An empty cache that keeps everything."""
    monkeypatch.setenv("VDLA_CACHE", str(tmp_path))
    monkeypatch.setattr(kept, "KEPT_FROM_S", 0.0)
    return tmp_path


def files(folder: Path) -> set[str]:
    return {path.name for path in folder.iterdir()}


def test_code_is_compiled_once(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    first = build_cpu(network())
    (y,) = first.run(X)
    assert len(files(folder)) == 1
    with monkeypatch.context() as patch:
        patch.setattr(cpu, "optimise", lambda *_: pytest.fail("compiled again"))
        again = build_cpu(network())
    np.testing.assert_array_equal(again.run(X)[0], y)
    assert again.code.object_file == first.code.object_file
    assert (again.code.plan, again.code.offsets) == (first.code.plan, first.code.offsets)


def test_whatever_changes_code_has_a_file_of_its_own(
    folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Weights (their checksum is in the description), attributes, the processor, the compiler."""
    compile_graph(network(), host())
    compile_graph(network(factor=2.0), host())
    compile_graph(network(stride=2), host())
    compile_graph(network(), replace(host(), cpu="x86-64"))
    assert len(files(folder)) == 4
    monkeypatch.setattr(kept, "source_digest", lambda *rooms: "another")
    compile_graph(network(), host())
    assert len(files(folder)) == 5


@pytest.mark.parametrize("damage", DAMAGE)
def test_damaged_files_are_made_again(folder: Path, damage: str) -> None:
    expected = build_cpu(network()).run(X)[0]
    (path,) = folder.iterdir()
    whole = path.read_bytes()
    path.write_bytes(DAMAGE[damage](whole))
    np.testing.assert_array_equal(build_cpu(network()).run(X)[0], expected)
    assert path.read_bytes() == whole


def test_a_cache_that_cannot_be_written_costs_only_time(
    folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    blocked = folder / "file"
    blocked.write_text("")
    monkeypatch.setenv("VDLA_CACHE", str(blocked))
    assert build_cpu(network()).run(X)[0].shape == (1, 8, 7, 7)


def test_small_graphs_are_not_kept(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(kept, "KEPT_FROM_S", 1000.0)
    build_cpu(network())
    assert not files(folder)
