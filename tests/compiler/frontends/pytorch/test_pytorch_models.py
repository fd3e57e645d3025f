"""Networks of PyTorch: float, quantised by its own flow, from files, and what is refused."""

from __future__ import annotations

import io
import re
from pathlib import Path
from typing import Any

import numpy as np
import pytest

torch = pytest.importorskip("torch", reason="torch is not installed")

import vdla  # noqa: E402
from hypothesis import assume, given, settings  # noqa: E402
from hypothesis import strategies as st  # noqa: E402
from torch import nn  # noqa: E402
from torch.nn import functional as F  # noqa: E402
from vdla.cli import run_app  # noqa: E402
from vdla.compiler.frontends.pytorch.importer import import_torch  # noqa: E402
from vdla.compiler.frontends.sizes import Sizes  # noqa: E402

from .exact import Exact, step_of_result  # noqa: E402
from .pytorch_models import check, export, floats, run  # noqa: E402

pytestmark = pytest.mark.filterwarnings("default")  # torch's own, such as deprecations in it


# ---- random parameters ----

SMALL = st.integers(1, 3)


@pytest.mark.slow
@settings(max_examples=25)
@given(st.data())
def test_convolutions(data: st.DataObject) -> None:
    rank = data.draw(st.sampled_from([1, 2]))
    sizes = st.tuples(*[SMALL] * rank)
    kernel, stride, dilation = (data.draw(sizes) for _ in range(3))
    padding = data.draw(st.tuples(*[st.integers(0, 2)] * rank))
    groups, inputs, outputs = data.draw(SMALL), data.draw(SMALL), data.draw(SMALL)
    kinds = {1: (nn.Conv1d, nn.ConvTranspose1d), 2: (nn.Conv2d, nn.ConvTranspose2d)}[rank]
    options: dict[str, Any] = {"bias": data.draw(st.booleans())}
    kind = data.draw(st.sampled_from(kinds))
    if kind in (nn.ConvTranspose1d, nn.ConvTranspose2d):
        extra = zip(stride, dilation, strict=True)
        options["output_padding"] = [data.draw(st.integers(0, max(s, d) - 1)) for s, d in extra]
    channels = (inputs * groups, outputs * groups)
    torch.manual_seed(0)
    model = kind(*channels, kernel, stride, padding, dilation=dilation, groups=groups, **options)
    image = floats(2, channels[0], *data.draw(st.tuples(*[st.integers(3, 8)] * rank)))
    assume(_has_elements(model, image))
    check(model, image)


@pytest.mark.slow
@settings(max_examples=25)
@given(st.data())
def test_pooling(data: st.DataObject) -> None:
    pair = st.tuples(SMALL, SMALL)
    kernel, stride = data.draw(pair), data.draw(st.none() | pair)
    padding = tuple(data.draw(st.integers(0, k // 2)) for k in kernel)
    ceil = data.draw(st.booleans())
    if data.draw(st.booleans()):
        model: nn.Module = nn.MaxPool2d(kernel, stride, padding, data.draw(pair), ceil_mode=ceil)
    else:
        include = data.draw(st.booleans())
        model = nn.AvgPool2d(kernel, stride, padding, ceil, include)
    image = floats(1, 2, *data.draw(st.tuples(st.integers(3, 8), st.integers(3, 8))))
    assume(_has_elements(model, image))
    check(model, image)


def _has_elements(model: nn.Module, image: Any) -> bool:
    try:
        return model(image).numel() > 0
    except RuntimeError:  # a window that does not fit
        return False


# ---- networks ----


class Residual(nn.Module):
    """ResNet's block, with a projection where it changes size, and a classifier."""

    def __init__(self) -> None:
        super().__init__()
        self.conv1, self.norm1 = nn.Conv2d(3, 16, 3, 2, 1, bias=False), nn.BatchNorm2d(16)
        self.conv2, self.norm2 = nn.Conv2d(16, 16, 3, 1, 1, bias=False), nn.BatchNorm2d(16)
        self.skip = nn.Sequential(nn.Conv2d(3, 16, 1, 2, bias=False), nn.BatchNorm2d(16))
        self.head = nn.Linear(16, 10)

    def forward(self, x: Any) -> Any:
        y = self.norm2(self.conv2(F.relu(self.norm1(self.conv1(x)))))
        y = F.max_pool2d(F.relu(y + self.skip(x)), 2)
        return self.head(torch.flatten(F.adaptive_avg_pool2d(y, 1), 1))


class Inverted(nn.Module):
    """MobileNetV2's block: wider, depthwise, narrower, and the way past it."""

    def __init__(self) -> None:
        super().__init__()
        self.layers = nn.Sequential(
            nn.Conv2d(8, 32, 1, bias=False), nn.BatchNorm2d(32), nn.ReLU6(),
            nn.Conv2d(32, 32, 3, 1, 1, groups=32, bias=False), nn.BatchNorm2d(32), nn.ReLU6(),
            nn.Conv2d(32, 8, 1, bias=False), nn.BatchNorm2d(8),
        )  # fmt: skip

    def forward(self, x: Any) -> Any:
        return x + self.layers(x)


class Language(nn.Module):
    """Embedding, LSTM and the probabilities of the next word."""

    def __init__(self) -> None:
        super().__init__()
        self.words = nn.Embedding(11, 6)
        self.lstm = nn.LSTM(6, 5, batch_first=True)
        self.head = nn.Linear(5, 11)

    def forward(self, words: Any, state: Any, cell: Any) -> Any:
        y, (state, cell) = self.lstm(self.words(words), (state, cell))
        return F.log_softmax(self.head(y), dim=-1), state, cell


class Attention(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.norm = nn.LayerNorm(8)
        self.attention = nn.MultiheadAttention(8, 2, batch_first=True)
        self.mlp = nn.Sequential(nn.Linear(8, 16), nn.GELU(), nn.Linear(16, 8))

    def forward(self, x: Any) -> Any:
        y = self.norm(x)
        x = x + self.attention(y, y, y, need_weights=False)[0]
        q = x[:, None]
        x = x + F.scaled_dot_product_attention(q, q, q, is_causal=True)[:, 0]
        return x + self.mlp(x)


def _trained(model: nn.Module) -> nn.Module:
    """Statistics of batch normalisation as after training."""
    torch.manual_seed(1)
    for module in model.modules():
        if isinstance(module, nn.BatchNorm2d) and module.running_mean is not None:
            module.running_mean.uniform_(-0.3, 0.3)
            module.running_var.uniform_(0.5, 1.5)
    return model.eval()


def test_residual_network() -> None:
    check(_trained(Residual()), floats(2, 3, 16, 12))


def test_inverted_residual() -> None:
    check(_trained(Inverted()), floats(1, 8, 7, 9))


def test_language_model() -> None:
    words = torch.tensor([[1, 10, 3], [0, 0, 7]])
    check(_trained(Language()), words, floats(1, 2, 5), floats(1, 2, 5, seed=1))


def test_attention() -> None:
    check(_trained(Attention()), floats(2, 4, 8))


# ---- inputs, outputs, sizes ----


def test_outputs_that_nothing_computes() -> None:
    """Inputs, parameters and constants as outputs, and one output twice."""
    check(lambda x, y: (x, y, torch.ones(2), x + y, x.clone()), floats(2), floats(2, seed=1))


def test_inputs_that_nothing_reads() -> None:
    check(lambda x, y: x * 2, floats(2), floats(3))


def test_the_batch_may_be_open() -> None:
    model = _trained(Attention())
    shapes = {"x": {0: torch.export.Dim("batch")}}
    program = export(model, floats(2, 4, 8), dynamic_shapes=shapes)
    for batch in (1, 3):
        x = floats(batch, 4, 8)
        graph = import_torch(program, Sizes(batch))
        assert graph[graph.inputs[0]].shape == (batch, 4, 8)
        [got] = run(graph, x)
        np.testing.assert_allclose(got, model(x).detach().numpy(), 1e-4, 1e-5)


def test_another_open_size_is_given() -> None:
    shapes = ({1: torch.export.Dim("length", max=9)},)
    program = export(lambda x: x.softmax(1), floats(2, 4), dynamic_shapes=(shapes,))
    with pytest.raises(vdla.VdlaError, match=r"got \[2, s\d+\]; give them with --dim s\d+=N") as no:
        import_torch(program)
    [name] = set(re.findall(r"s\d+", str(no.value)))
    module = vdla.compile(program, "cpu", dims={name: (1, 9)})
    for length in (9, 3):
        x = floats(2, length)
        np.testing.assert_allclose(module.run(x.numpy())[0], x.softmax(1).numpy(), 1e-5, 1e-6)


def test_a_batch_out_of_range() -> None:
    shapes = ({0: torch.export.Dim("batch", min=2, max=8)},)
    program = export(lambda x: x * 2, floats(2, 4), dynamic_shapes=(shapes,))
    with pytest.raises(vdla.VdlaError, match=r"expected 2 to 8 for dimension 's\d+', got 9$"):
        import_torch(program, Sizes(9))


# ---- what is refused ----


def test_a_refusal_names_node_operator_and_line() -> None:
    with pytest.raises(vdla.VdlaError) as caught:
        import_torch(export(lambda x: torch.sort(x * 2)[0], floats(4)))
    text = str(caught.value)
    assert "node 'sort' (aten.sort.default, " in text and "pytorch_models.py:" in text
    assert "\n" not in text and "nearest names: aten." in text


@pytest.mark.parametrize(
    ("function", "expected"),
    [
        (lambda x: x.half(), "a result has type float16, supported are float32,"),
        (lambda x: F.dropout(x, 0.5, True), "expected a model for inference, got dropout"),
        (lambda x: F.batch_norm(x, None, None, training=True), "inference, got training"),
        (lambda x: F.max_pool2d(x[None], 2, return_indices=True)[1], "output 1 is not supported"),
        (lambda x: x[x > 0] * 2, "expected sizes that shapes decide, got u0"),
        (lambda x: x.round(decimals=2), "supported is decimals = 0, got 2"),
        (lambda x: F.adaptive_max_pool2d(x[None], 3), r"divides \[4, 4\], got \[3, 3\]"),
    ],
)
def test_refusals(function: Any, expected: str) -> None:
    with pytest.raises(vdla.VdlaError, match=expected) as caught:
        import_torch(export(function, floats(2, 4, 4)))
    assert "\n" not in str(caught.value) and "pytorch_models.py:" in str(caught.value)


def test_results_that_are_no_tensors() -> None:
    with pytest.raises(vdla.VdlaError, match=r"expected tensors as outputs, got .*value=None"):
        import_torch(export(lambda x: (x * 2, None), floats(2)))


def test_nested_operands_and_shared_parameters() -> None:
    class Tied(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.first = nn.Linear(4, 4)
            self.second = self.first
            self.register_buffer("offset", torch.ones(4), persistent=False)

        def forward(self, pair: dict[str, Any], factor: float, unused: None) -> Any:
            y = self.second(F.relu(self.first(pair["a"]), inplace=True)) * factor
            return {"sum": y + pair["b"], "rest": [y - self.offset]}

    a, b = floats(2, 4), floats(2, 4, seed=1)
    model = Tied().eval()
    program = torch.export.export(model, ({"a": a, "b": b}, 1.5, None))
    got = run(import_torch(program), a, b)
    wanted = model({"a": a, "b": b}, 1.5, None)
    for mine, theirs in zip(got, [wanted["sum"], *wanted["rest"]], strict=True):
        np.testing.assert_allclose(mine, theirs.detach().numpy(), 1e-5, 1e-6)


class Cache(nn.Module):
    """Rows at a place that the module counts; the sums of all, and what a constant is added to."""

    def __init__(self) -> None:
        super().__init__()
        self.register_buffer("rows", torch.arange(12.0).reshape(1, 4, 3))
        self.register_buffer("place", torch.zeros(1, dtype=torch.int64))

    def forward(self, x: Any) -> Any:
        self.rows.index_copy_(1, self.place + torch.arange(x.shape[1]), x)
        self.place += x.shape[1]
        return self.rows.sum(1), self.rows[:, :1] * self.place


def test_buffers_that_a_model_changes_are_states(tmp_path: Path) -> None:
    """Their values before the first run are the model's; ``reset`` returns to them."""
    model, rows = Cache(), [floats(1, 2, 3, seed=seed) for seed in (1, 2)]
    program = export(Cache(), rows[0])  # which shares its buffers with the model
    wanted = [[y.detach().numpy() for y in model(x)] for x in rows]
    for module in (vdla.compile(program, "cpu"), saved_and_loaded(program, tmp_path)):
        for _ in range(2):
            for x, outputs in zip(rows, wanted, strict=True):
                got = module.run(x.numpy())
                assert len(got) == 2
                for mine, theirs in zip(got, outputs, strict=True):
                    np.testing.assert_allclose(mine, theirs, 1e-6, 1e-6)
            module.reset()


def saved_and_loaded(program: Any, folder: Path) -> vdla.Module:
    vdla.compile(program, "cpu").save(folder / "module")
    return vdla.load(folder / "module")


class Loose(nn.Module):
    """A cache that is no buffer."""

    def __init__(self) -> None:
        super().__init__()
        self.rows = torch.zeros(1, 4, 3)

    def forward(self, x: Any) -> Any:
        self.rows.index_copy_(1, torch.arange(x.shape[1]), x)
        return self.rows.sum(1)


def test_a_model_that_changes_what_is_no_buffer() -> None:
    with pytest.raises(vdla.VdlaError, match=r"changes '.*', which is no buffer.* strict=True"):
        import_torch(export(Loose(), floats(1, 2, 3)))


def test_parameters_of_half_precision() -> None:
    program = export(nn.Linear(4, 2).bfloat16(), floats(1, 4).bfloat16())
    with pytest.raises(vdla.VdlaError, match="'weight' has type bfloat16, supported are"):
        import_torch(program)


@pytest.mark.parametrize("damage", ["empty", "cut", "other archive", "flipped"])
def test_damaged_files(damage: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    path = tmp_path / "m.pt2"
    torch.export.save(export(nn.Linear(4, 2), floats(1, 4)), path)
    data = bytearray(path.read_bytes())
    if damage == "other archive":
        with io.BytesIO() as buffer:
            torch.save({"weight": floats(2)}, buffer)
            data = bytearray(buffer.getvalue())
    if damage == "flipped":
        at = data.index(b'"graph_module"')
        data[at : at + 14] = b'"graph_mXdule"'
    path.write_bytes({"empty": b"", "cut": data[: len(data) // 2]}.get(damage, data))
    assert run_app(["run", str(path)]) == 2
    error = capsys.readouterr().err
    said = {
        "empty": "an empty file",
        "cut": "a damaged zip archive",
        "other archive": "what torch.save wrote",
        "flipped": "expected a program that torch.export.save",
    }
    assert error.count("\n") == 1 and "m.pt2: expected a " in error and said[damage] in error


# ---- quantised ----


def quantised(model: nn.Module, *operands: Any) -> Any:
    """A model after PyTorch's own quantisation flow (PT2E), calibrated on its operands."""
    from torchao.quantization.pt2e import quantize_pt2e as flow
    from torchao.testing.pt2e import _xnnpack_quantizer as xnnpack

    config = xnnpack.get_symmetric_quantization_config(is_per_channel=True)
    quantizer = xnnpack.XNNPACKQuantizer().set_global(config)
    prepared = flow.prepare_pt2e(torch.export.export(model, operands).module(), quantizer)
    prepared(*operands)
    return torch.export.export(flow.convert_pt2e(prepared), operands)


@pytest.mark.parametrize("model", [Residual, Inverted])
def test_quantised_networks_run_on_the_accelerator(model: type[nn.Module]) -> None:
    """Every element is the integer that the program means, with nothing lost to float32."""
    torch.manual_seed(0)
    x = floats(1, *((3, 16, 16) if model is Residual else (8, 9, 9)))
    program = quantised(_trained(model()), x)
    step, exact = step_of_result(program), Exact(program.module())
    accelerated = vdla.compile(program, "sim")
    on_host = {layer.op for layer in accelerated.compiled.layers if layer.target == "cpu"}
    assert on_host <= {"Quantize", "Dequantize", "PackWindows"}
    for seed in range(3):
        image = floats(*x.shape, seed=seed)
        [got] = accelerated.run(image.numpy())
        [host] = vdla.compile(program, "cpu").run(image.numpy())
        np.testing.assert_array_equal(got, host)
        wanted = exact.run(image).detach().numpy()
        np.testing.assert_array_equal(np.rint(got / step), np.rint(wanted / step))
        assert len(np.unique(got)) > 5


class Pairs(nn.Module):
    """A dense layer as the flow writes it, by hand: uint8 operand, a scale per channel."""

    def __init__(self) -> None:
        super().__init__()
        self.register_buffer("weight", torch.randint(-127, 128, (6, 20), dtype=torch.int8))
        self.register_buffer("scales", torch.rand(6) * 0.02 + 0.01)
        self.register_buffer("zeros", torch.zeros(6, dtype=torch.int64))
        self.bias = nn.Parameter(floats(6))

    def forward(self, x: Any) -> Any:
        q = torch.ops.quantized_decomposed
        ranges = (0, 255, torch.uint8)
        x = q.dequantize_per_tensor(
            q.quantize_per_tensor(x, 0.02, 120, *ranges), 0.02, 120, *ranges
        )
        w = q.dequantize_per_channel(self.weight, self.scales, self.zeros, 0, -127, 127, torch.int8)
        y = F.relu(F.linear(x, w, self.bias))
        return q.quantize_per_tensor(y, 0.05, 3, 2, 200, torch.uint8)


def test_pairs_by_hand(tmp_path: Path) -> None:
    """As a file, through the command; with bounds within those of the type."""
    torch.manual_seed(0)
    from torch.ao.quantization.fx import _decomposed

    assert _decomposed  # defines the operators
    x = floats(4, 20)
    program = export(Pairs(), x)
    path = tmp_path / "pairs.pt2"
    torch.export.save(program, path)
    [got] = vdla.compile(path, "sim").run(x.numpy())
    wanted = program.module()(x).numpy()
    assert got.dtype == np.uint8 and got.min() >= 2 and got.max() <= 200
    np.testing.assert_array_equal(got, wanted)
    [host] = vdla.compile(program, "cpu").run(x.numpy())
    np.testing.assert_array_equal(got, host)
