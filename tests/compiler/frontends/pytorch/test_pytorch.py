"""Models of PyTorch against torch itself: operator by operator, and small networks."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

import pytest

torch = pytest.importorskip("torch", reason="torch is not installed")

from torch import nn  # noqa: E402
from torch.nn import functional as F  # noqa: E402

from .pytorch_models import check, floats  # noqa: E402

pytestmark = pytest.mark.filterwarnings("default")  # torch's own, such as deprecations in it

X, Y = floats(2, 3, 5), floats(2, 3, 5, seed=1)
IMAGE = floats(2, 4, 9, 7)
INTEGERS = torch.arange(-7, 8).reshape(3, 5)

ELEMENTWISE: dict[str, Callable[[Any, Any], Any]] = {
    "add": lambda x, y: x + y,
    "add alpha": lambda x, y: torch.add(x, y, alpha=2),
    "sub": lambda x, y: x - y,
    "rsub": lambda x, y: 1.5 - x + torch.rsub(x, y, alpha=3),
    "mul": lambda x, y: x * y * 0.25,
    "div": lambda x, y: x / (y.abs() + 1),
    "div floor": lambda x, y: torch.div(x, y, rounding_mode="floor"),
    "div trunc": lambda x, y: torch.div(x, y, rounding_mode="trunc"),
    "remainder": lambda x, y: torch.remainder(x, y),
    "fmod": lambda x, y: torch.fmod(x, y),
    "pow": lambda x, y: (x.abs() + 0.1) ** y,
    "square": lambda x, y: x.square() + y**3,
    "maximum": lambda x, y: torch.maximum(x, y) - torch.minimum(x, y),
    "compare": lambda x, y: ((x > y) | (x <= 0)) & (y != 0) ^ (x == 1),
    "compare number": lambda x, y: ((x * 3).to(torch.int64) > 0.5, x < 1, y >= -1, y == 0.25),
    "where": lambda x, y: torch.where(x > 0, y, -1.0),
    "logical": lambda x, y: torch.logical_not(x > 0) | torch.logical_xor(x > y, y > 0),
    "functions": lambda x, y: torch.exp(x) + torch.sin(y) * torch.cos(x) - torch.tan(x * 0.3),
    "inverse": lambda x, y: torch.asin(x / 9) + torch.acos(y / 9) + torch.atan(x) + torch.asinh(y),
    "hyperbolic": lambda x, y: torch.sinh(x) + torch.cosh(y) + torch.atanh(x / 9),
    "roots": lambda x, y: x.abs().sqrt() + (y.abs() + 1).rsqrt() + (y.abs() + 1).reciprocal(),
    "logs": lambda x, y: (torch.log(x.abs() + 1), torch.log2(y.abs()), torch.log10(y.abs())),
    "log1p": lambda x, y: torch.log1p(x.abs()) + torch.expm1(y),
    "whole": lambda x, y: (x.floor(), x.ceil(), x.round(), x.trunc(), x.sign(), -x, x.abs()),
    "predicates": lambda x, y: (torch.isnan(x / 0 * 0), torch.isinf(y / 0), torch.isfinite(x)),
    "erf": lambda x, y: torch.erf(x),
    "relu": lambda x, y: F.relu(x) + F.relu6(y * 9) + F.hardtanh(x, -0.5, 0.25),
    "sigmoid": lambda x, y: torch.sigmoid(x) * torch.tanh(y),
    "gelu": lambda x, y: F.gelu(x) + F.gelu(y, approximate="tanh"),
    "silu": lambda x, y: F.silu(x) + F.mish(y) + F.hardswish(x * 3) + F.hardsigmoid(y * 2),
    "leaky": lambda x, y: F.leaky_relu(x, 0.2) + F.elu(y, 0.7) + F.selu(x) + F.celu(y, 1.2),
    "softplus": lambda x, y: F.softplus(x) + F.softplus(y, beta=2) + F.softsign(x),
    "shrink": lambda x, y: F.softshrink(x) + F.hardshrink(y) + F.logsigmoid(x) + F.tanhshrink(y),
    "glu": lambda x, y: F.glu(torch.cat([x, y], 2)),
    "clamp": lambda x, y: x.clamp(-0.5, 0.5) + y.clamp(min=0.1) + torch.clamp(x, max=y),
    "dropout": lambda x, y: F.dropout(x, 0.5, training=False) + y,
    "lerp": lambda x, y: torch.lerp(x, y, 0.3) + torch.addcmul(x, x, y, value=0.5),
    "casts": lambda x, y: ((x * 9).to(torch.int32), (y > 0).to(torch.float32), x.double()),
    "constants": lambda x, y: x + torch.arange(5) + torch.ones(3, 5) * torch.full((5,), 2.0),
    "zeros_like": lambda x, y: torch.zeros_like(x) + torch.full_like(y, 3.0),
    "softmax": lambda x, y: (torch.softmax(x, 1), torch.log_softmax(y, -1)),
    "logsumexp": lambda x, y: torch.logsumexp(x, 2) + torch.softmax(y, 0).sum(2),
    "sum": lambda x, y: (x.sum(), y.sum(1), x.sum((0, 2), keepdim=True)),
    "mean": lambda x, y: (x.mean(), y.mean(-1), x.mean((0, 1), keepdim=True)),
    "var": lambda x, y: (x.var(), y.std(1), x.var((0, 2), correction=0, keepdim=True)),
    "var_mean": lambda x, y: torch.var_mean(x, 1) + torch.std_mean(y, (0, 2)),
    "extremes": lambda x, y: (x.amax(1), y.amin((0, 2)), x.max(), y.min(), x.prod(1)),
    "extremes with places": lambda x, y: (*x.max(1), *y.min(2, keepdim=True)),
    "places": lambda x, y: (x.argmax(1), y.argmin(), x.argmax(2, keepdim=True)),
    "any": lambda x, y: ((x > 1).any(), (y > 0).all(1), (x > 2).any(2, keepdim=True)),
    "norm": lambda x, y: torch.linalg.vector_norm(x, dim=1) + F.normalize(y, dim=1).sum(1),
    "norms of every order": lambda x, y: [
        torch.linalg.vector_norm(x, order, dim=(0, 2), keepdim=order > 1)
        for order in (0, 1, 2.5, -1, math.inf, -math.inf)
    ],
    "norm of everything": lambda x, y: torch.linalg.vector_norm(x, 1) + y[0, 0, 0].norm(),
    "view": lambda x, y: (x.reshape(6, 5).view(3, -1) + 1, y.flatten(1) + 1, y.flatten() + 1),
    "squeeze": lambda x, y: x.unsqueeze(1).unsqueeze(0).squeeze() + y[:1].squeeze(0),
    "permute": lambda x, y: x.permute(2, 0, 1) + y.transpose(0, 2).transpose(1, 2),
    "cat": lambda x, y: (torch.cat([x, y], 1) + 1, torch.stack([x, y], 1) * 2),
    "slice": lambda x, y: (x[:, 1:, ::2] + y[:, -2:, :3], x[:, :, -4:-1] + 1, x[0, 1] - y[1, 2]),
    "split": lambda x, y: [a * 2 for a in (*x.split(2, 2), *y.split([1, 2], 1), *x.chunk(2, 0))],
    "unbind": lambda x, y: [a * 2 for a in (*x.unbind(1), *y.unbind(0))],
    "expand": lambda x, y: x[:, :1].expand(-1, 4, -1) + y[:1, :1].repeat(2, 4, 1),
    "flip": lambda x, y: x.flip(0, 2) + y.roll(1, 2) + x.roll((1, 2), (0, 1)),
    "pad": lambda x, y: (F.pad(x, (1, 2, 0, 1), value=3.0), F.pad(y, (1, -1))),
    "pad modes": lambda x, y: (F.pad(x, (2, 1), "reflect"), F.pad(y, (2, 3), "replicate")),
    "index": lambda x, y: (x[:, [2, 0, -1]] + 1, y[[0, 1, 0], [2, 1, -1]] + 1),
    "index_select": lambda x, y: x.index_select(2, torch.tensor([4, 0])) + y[..., :2],
    "gather": lambda x, y: torch.gather(x, 2, torch.tensor([[[0, 4], [1, 1], [2, 0]]])) + 1,
    "assign": lambda x, y: _assigned(x, y),
    "triangle": lambda x, y: torch.tril(x) + torch.triu(y, 1),
    "outer": lambda x, y: torch.outer(x[0, 0], y[1, 1]) + torch.einsum("i,j->ij", x[0, 0], y[0, 1]),
    "meshgrid": lambda x, y: torch.meshgrid(x[0, 0], y[0, 0], indexing="ij")[0] + 1,
    "matmul": lambda x, y: x @ y.transpose(1, 2) + torch.bmm(x, y.transpose(1, 2)),
    "matmul of vectors": lambda x, y: (x[0, 0] @ y[0, 0], x @ y[0, 0], x[0, :, 0] @ y),
    "einsum": lambda x, y: (torch.einsum("bij,bkj->bik", x, y), torch.einsum("bij->bi", x)),
    "addmm": lambda x, y: torch.addmm(x[0, :, :3], x[1], y[0].T, beta=0.5, alpha=2),
    "baddbmm": lambda x, y: torch.baddbmm(x[:, :, :3], x, y.transpose(1, 2), beta=0.5),
    "cumsum": lambda x, y: x.cumsum(1) + y.cumsum(2),
    "unfold": lambda x, y: (x.unfold(1, 2, 1) + 1, y.unfold(2, 2, 3)),
    "nearest": lambda x, y: F.interpolate(x, scale_factor=2) + 1,
    "linear": lambda x, y: F.interpolate(y, 10, mode="linear"),
}  # fmt: skip


def _assigned(x: Any, y: Any) -> Any:
    made = x.clone()
    made[:, 1] = y[:, 0] * 2
    made[0, :, 2:4] = 7.0
    return made


@pytest.mark.parametrize("name", ELEMENTWISE)
def test_operator(name: str) -> None:
    check(ELEMENTWISE[name], X, Y)


IMAGES: dict[str, Callable[[Any], Any]] = {
    "max pool": lambda x: F.max_pool2d(x, 3, 2, 1),
    "max pool dilated": lambda x: F.max_pool2d(x, (2, 3), (1, 2), dilation=2),
    "max pool ceil": lambda x: F.max_pool2d(x, 2, 2, ceil_mode=True),
    "max pool of one image": lambda x: F.max_pool2d(x[0], 2),
    "max pool 1d": lambda x: F.max_pool1d(x[0], 3, 2, 1),
    "average pool": lambda x: F.avg_pool2d(x, 3, 2, 1) + F.avg_pool2d(x, 3, 2, 1, False, False),
    "average pool ceil": lambda x: F.avg_pool2d(x, 2, 2, ceil_mode=True),
    "average pool divisor": lambda x: F.avg_pool2d(x, (2, 3), divisor_override=4),
    "average pool 1d": lambda x: F.avg_pool1d(x[0], 3, 2),
    "average pool 3d": lambda x: F.avg_pool3d(x, 2),
    "adaptive": lambda x: F.adaptive_avg_pool2d(x, 1) + F.adaptive_avg_pool2d(x, (3, 1)),
    "adaptive uneven": lambda x: F.adaptive_avg_pool2d(x, (4, 5)),
    "adaptive 1d": lambda x: F.adaptive_avg_pool1d(x[0], 3),
    "adaptive max": lambda x: F.adaptive_max_pool2d(x, (3, 7)),
    "nearest": lambda x: F.interpolate(x, scale_factor=2),
    "nearest to a size": lambda x: F.interpolate(x, size=(5, 13)),
    "nearest exact": lambda x: F.interpolate(x, size=(5, 13), mode="nearest-exact"),
    "bilinear": lambda x: F.interpolate(x, scale_factor=2, mode="bilinear"),
    "bilinear corners": lambda x: F.interpolate(x, (4, 10), mode="bilinear", align_corners=True),
    "bicubic": lambda x: F.interpolate(x, (18, 9), mode="bicubic"),
    "pixel shuffle": lambda x: F.pixel_shuffle(x, 2) + 1,
    "channel shuffle": lambda x: F.channel_shuffle(x, 2) + 1,
    "pads": lambda x: F.pad(x, (1, 2, 3, 0), "reflect") + F.pad(x, (1, 2, 3, 0), "replicate"),
}  # fmt: skip


@pytest.mark.parametrize("name", IMAGES)
def test_image_operator(name: str) -> None:
    check(IMAGES[name], IMAGE)


@pytest.mark.parametrize("name", ["+", "//", "%", "trunc", "&", "<<"])
def test_integers(name: str) -> None:
    functions: dict[str, Callable[[Any], Any]] = {
        "+": lambda n: (n + 2 * n - 3, n / 2, n * 0.5, n.abs(), n.clamp(-2, 3), n.sum(), n.sum(1)),
        "//": lambda n: n // 3 + n // -2,
        "%": lambda n: n % 3 + torch.fmod(n, 4),
        "trunc": lambda n: torch.div(n, 3, rounding_mode="trunc"),
        "&": lambda n: (n & 5) | (n ^ 3) + ~n,
        "<<": lambda n: (n.float().sqrt().isnan(), n.max(1)[0], n.argmax(0), (n > 2.5)),
    }
    check(functions[name], INTEGERS)


# ---- layers ----

LAYERS: dict[str, tuple[Any, tuple[int, ...]]] = {
    "linear": (nn.Linear(5, 7), (2, 5)),
    "linear of three dimensions": (nn.Linear(5, 7, bias=False), (2, 3, 5)),
    "linear of a vector": (nn.Linear(5, 7), (5,)),
    "bilinear": (nn.Sequential(nn.Linear(5, 3), nn.Linear(3, 2)), (4, 5)),
    "batch norm": (nn.BatchNorm2d(4), (2, 4, 5, 6)),
    "batch norm 1d": (nn.BatchNorm1d(4, affine=False), (2, 4)),
    "layer norm": (nn.LayerNorm((3, 5)), (2, 3, 5)),
    "layer norm without weights": (nn.LayerNorm(5, elementwise_affine=False), (2, 3, 5)),
    "group norm": (nn.GroupNorm(2, 4), (2, 4, 5, 6)),
    "instance norm": (nn.InstanceNorm2d(4, affine=True), (1, 4, 5, 6)),
    "instance norm of a batch": (nn.InstanceNorm2d(4), (2, 4, 5, 6)),
    "rms norm": (nn.RMSNorm(5), (2, 3, 5)),
    "local response": (nn.LocalResponseNorm(3), (2, 4, 5, 6)),
    "prelu": (nn.PReLU(4), (2, 4, 5, 6)),
    "conv of one image": (nn.Conv2d(4, 3, 3), (4, 5, 6)),
    "conv same": (nn.Conv2d(4, 3, (3, 4), padding="same"), (1, 4, 5, 6)),
    "conv reflect": (nn.Conv2d(4, 3, 3, padding=1, padding_mode="reflect"), (1, 4, 5, 6)),
    "conv 1d": (nn.Conv1d(4, 6, 3, 2, 1, groups=2), (1, 4, 9)),
    "conv 3d": (nn.Conv3d(2, 3, 3, padding=1), (1, 2, 4, 5, 4)),
    "lstm": (nn.LSTM(4, 5, batch_first=True), (2, 3, 4)),
    "lstm both ways": (nn.LSTM(4, 5, num_layers=2, bidirectional=True), (3, 2, 4)),
    "gru": (nn.GRU(4, 5), (3, 2, 4)),
    "rnn": (nn.RNN(4, 5), (3, 2, 4)),
    "transformer": (nn.TransformerEncoderLayer(8, 2, 16, batch_first=True), (2, 3, 8)),
}


@pytest.mark.parametrize("name", LAYERS)
def test_layer(name: str) -> None:
    torch.manual_seed(0)
    model, shape = LAYERS[name]
    for key, buffer in model.named_buffers():
        if buffer.dtype == torch.float32:
            buffer.copy_(torch.rand(buffer.shape) + (0.5 if "var" in key else -0.5))
    check(_First(model), floats(*shape))


class _First(nn.Module):
    """The tensors of a model's nested results."""

    def __init__(self, model: nn.Module):
        super().__init__()
        self.model = model

    def forward(self, x: Any) -> Any:
        y = self.model(x)
        while not isinstance(y[0], torch.Tensor):
            y = y[0]
        return y if isinstance(y, torch.Tensor) else y[0]
