"""A ``torch.nn.Module`` with example inputs, and the backend of ``torch.compile``."""

from __future__ import annotations

import tomllib
from importlib import import_module
from pathlib import Path
from typing import Any

import numpy as np
import pytest

torch = pytest.importorskip("torch", reason="torch is not installed")

import vdla  # noqa: E402
from torch import nn  # noqa: E402
from vdla.api import torch_backend  # noqa: E402
from vdla.isa.errors import VdlaError  # noqa: E402

pytestmark = pytest.mark.filterwarnings("default")  # torch's own, such as deprecations in it
ROOT = Path(__file__).resolve().parents[4]


class Normed(nn.Module):
    """Parameters, buffers, an attribute that is a tensor, and an input as an output."""

    def __init__(self) -> None:
        super().__init__()
        self.conv, self.norm = nn.Conv2d(3, 4, 3), nn.BatchNorm2d(4)
        self.register_buffer("scale", torch.rand(4))
        self.shift = torch.ones(1) * 2

    def forward(self, image: Any, *, factor: Any = None) -> Any:
        y = self.norm(self.conv(image)).mean((2, 3)) * self.scale + self.shift
        return y if factor is None else y * factor, image


class Broken(nn.Module):
    """Two graphs with Python between them, that returns a number too."""

    def __init__(self) -> None:
        super().__init__()
        self.first, self.second = nn.Linear(4, 4), nn.Linear(4, 2)

    def forward(self, x: Any) -> Any:
        y = self.first(x).relu()
        torch._dynamo.graph_break()
        if y.sum() > 0:
            y = y * 2
        return self.second(y), y.shape[0]


@pytest.fixture(autouse=True)
def new_torch() -> None:
    torch.manual_seed(0)
    torch.compiler.reset()


def compiled(model: nn.Module, **options: Any) -> Any:
    return torch.compile(model, backend=torch_backend.compile_graph, **options)


def test_the_package_names_the_backend() -> None:
    metadata = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
    module, name = metadata["entry-points"]["torch_dynamo_backends"]["vdla"].split(":")
    assert getattr(import_module(module), name) is torch_backend.compile_graph


def test_the_backend_by_its_name() -> None:
    if "vdla" not in torch._dynamo.list_backends():
        pytest.skip("vdla is not installed, so that torch does not know its entry points")
    model, x = nn.Linear(4, 2), torch.randn(3, 4)
    got = torch.compile(model, backend="vdla")(x)
    torch.testing.assert_close(got, model(x))
    assert not got.requires_grad


def test_a_module_by_position_and_by_name() -> None:
    model, x, factor = Normed().eval(), torch.randn(2, 3, 8, 8), torch.randn(2, 1)
    exported = torch.export.export(model, (x,), {"factor": factor})
    wanted = vdla.compile(exported, "cpu").run(x.numpy(), factor.numpy())
    module = vdla.compile(model, "cpu", example_inputs={"image": x, "factor": factor})
    assert [tensor.name for tensor in module.inputs] == ["image", "factor"]
    for got, other in zip(module.run(x.numpy(), factor.numpy()), wanted, strict=True):
        np.testing.assert_array_equal(got, other)
    by_position = vdla.compile(model, "cpu", example_inputs=[x]).run(x.numpy())
    for got, same in zip(by_position, compiled(model)(x), strict=True):
        np.testing.assert_array_equal(got, same.numpy())


def test_every_set_of_shapes_is_compiled(monkeypatch: pytest.MonkeyPatch) -> None:
    made: list[Any] = []
    real = torch_backend.compile
    monkeypatch.setattr(
        torch_backend, "compile", lambda *args, **kw: made.append(kw) or real(*args, **kw)
    )
    model = Normed().eval()
    run = compiled(model, options={"threads": 2})
    for size in (2, 4, 5, 4):
        x = torch.randn(size, 3, 8, 8)
        torch.testing.assert_close(run(x), model(x))
    assert made == [{"target": "cpu", "threads": 2}] * 3


def test_a_changed_parameter_is_seen() -> None:
    model, x = Normed().eval(), torch.randn(2, 3, 8, 8)
    run = compiled(model)
    before = run(x)[0]
    with torch.no_grad():
        model.conv.weight.mul_(2)
    torch.testing.assert_close(run(x), model(x))
    model.load_state_dict(Normed().state_dict())
    torch.testing.assert_close(run(x), model(x))
    assert not torch.equal(before, run(x)[0])


def test_results_stay_as_they_are() -> None:
    """A run does not write over what one before it returned."""
    run = compiled(nn.Linear(4, 2))
    first = run(torch.ones(1, 4))
    copy = first.clone()
    run(torch.zeros(1, 4))
    assert torch.equal(first, copy)


def test_several_graphs_and_numbers() -> None:
    model, x = Broken().eval(), torch.randn(3, 4)
    y, size = compiled(model)(x)
    torch.testing.assert_close(y, model(x)[0])
    assert size == 3


def test_a_number_that_changes() -> None:
    """torch passes it as a tensor from its second value on."""

    def function(x: Any, factor: float) -> Any:
        return torch.sin(x) * factor + x.sum()

    run, x = torch.compile(function, backend=torch_backend.compile_graph), torch.randn(3)
    for factor in (2.5, 3.5, 4.5, 3.5):
        torch.testing.assert_close(run(x, factor), function(x, factor))


def test_sizes_that_are_symbols_from_the_beginning() -> None:
    model = nn.Linear(4, 2)
    run = compiled(model, dynamic=True)
    for size in (3, 5):
        x = torch.randn(size, 4)
        torch.testing.assert_close(run(x), model(x))


def test_what_is_refused_falls_back_only_if_torch_is_told_so() -> None:
    class Sorted(nn.Module):
        def forward(self, x: Any) -> Any:
            return torch.linalg.svdvals(x)

    x = torch.randn(3, 3)
    with pytest.raises(torch._dynamo.exc.BackendCompilerFailed, match=r"VdlaError: .*_linalg_svd"):
        compiled(Sorted())(x)
    torch.compiler.reset()
    with torch._dynamo.config.patch(suppress_errors=True):
        torch.testing.assert_close(compiled(Sorted())(x), Sorted()(x))


def test_a_buffer_that_torch_would_not_see_change() -> None:
    """Under torch.compile a state would be apart from the model's buffer."""

    class Counter(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.register_buffer("count", torch.zeros(1))

        def forward(self, x: Any) -> Any:
            self.count += 1
            return x + self.count

    with pytest.raises(torch._dynamo.exc.BackendCompilerFailed, match="torch would not see"):
        compiled(Counter())(torch.ones(1))


WRONG: dict[str, tuple[Any, Any, str]] = {
    "no example inputs": (nn.Linear(4, 2), None, "example_inputs: expected a tuple .*got None"),
    "a bare tensor": (nn.Linear(4, 2), torch.ones(1, 4), "expected a tuple .* got Tensor"),
    "arrays": (nn.Linear(4, 2), (np.ones((1, 4), "f"),), "expected tensors of torch, got ndarray"),
    "another shape": (nn.Linear(4, 2), (torch.ones(1, 5),), "torch cannot export it: a and b"),
    "an argument too many": (nn.Linear(4, 2), (torch.ones(1, 4),) * 2, "torch cannot export it"),
    "another name": (nn.Linear(4, 2), {"x": torch.ones(1, 4)}, "torch cannot export it: .*input"),
    "a class": (nn.Linear, (torch.ones(1, 4),), "got the class Linear"),
    "a state dict": (nn.Linear(4, 2).state_dict(), None, "a state dict has weights"),
    "a tensor": (torch.ones(3), None, "got Tensor; give the torch.nn.Module"),
    "a function": (torch.relu, (torch.ones(3),), "call it in the forward of a module"),
    "examples of a program": (
        torch.export.export(nn.Linear(4, 2), (torch.ones(1, 4),)), (torch.ones(1, 4),),
        "got ExportedProgram, which says what its inputs are",
    ),
    "training": (nn.Sequential(nn.Linear(4, 2), nn.Dropout()), (torch.ones(1, 4),), "call eval"),
    "statistics": (nn.BatchNorm1d(4), (torch.ones(3, 4),), "call eval"),
    "another dtype": (nn.Linear(4, 2).bfloat16(), (torch.ones(1, 4).bfloat16(),), "bfloat16"),
}  # fmt: skip


@pytest.mark.parametrize("name", WRONG)
def test_a_wrong_use_is_one_line(name: str) -> None:
    model, examples, message = WRONG[name]
    with pytest.raises(VdlaError, match=message) as caught:
        vdla.compile(model, "cpu", example_inputs=examples)
    assert "\n" not in str(caught.value)


def test_torchscript_is_refused() -> None:
    traced = torch.jit.trace(nn.Linear(4, 2), torch.ones(1, 4))
    with pytest.raises(VdlaError, match="TorchScript is not supported"):
        vdla.compile(traced, "cpu", example_inputs=(torch.ones(1, 4),))
