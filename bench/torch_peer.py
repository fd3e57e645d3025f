"""PyTorch on a GPU, the peer of :mod:`vdla.bench.gpu`: the same networks in every way that it has.
Only this module imports it.

Attention, GELU and products with a bias are the operators that PyTorch has for them, as people who
write in PyTorch would have them."""

from __future__ import annotations

import statistics
from collections.abc import Callable, Mapping, Sequence
from importlib.util import find_spec
from typing import Any

import numpy as np
import onnx
from onnx import numpy_helper

from ..compiler.targets.gpu.tensor_cores import element_of
from ..isa.errors import VdlaError

#: How PyTorch runs a network: as it is, compiled, and as one CUDA graph of either. Images are
#: [N, H, W, C] in memory.
WAYS = ("eager", "graph", "compile", "compile and graph")


#: What exported files spell out in several nodes, one behind the other, and PyTorch has whole.
_WHOLE = {
    ("MatMul", "Mul", "Add", "Softmax", "Transpose", "MatMul"): "Attention",
    ("MatMul", "Mul", "Softmax", "Transpose", "MatMul"): "Attention",
    ("Div", "Erf", "Add", "Mul", "Mul"): "Gelu",
    ("MatMul", "Add"): "Linear",
}


def check_installed() -> None:
    """Raise VdlaError where PyTorch is missing."""
    if find_spec("torch") is None:
        raise VdlaError("peers: expected PyTorch for torch, found none; pip install torch")


def network(model: onnx.ModelProto, dtype: str, device: str) -> Callable[..., tuple[Any, ...]]:
    """A float model of :data:`~.gpu.MODELS` as a function of PyTorch's tensors.

    Raises
    ------
    VdlaError
        For an operator that these networks do not have.
    """
    import torch  # pyright: ignore[reportMissingImports]

    kind = getattr(torch, element_of(dtype))
    constants: dict[str, Any] = {}
    for tensor in model.graph.initializer:
        array = numpy_helper.to_array(tensor)
        if array.ndim == 0 or array.dtype.kind == "i":
            constants[tensor.name] = array.tolist()  # scales and shapes
            continue
        value = torch.tensor(array).to(device, kind)
        is_image = value.ndim == 4
        constants[tensor.name] = (
            value.contiguous(memory_format=torch.channels_last) if is_image else value
        )
    steps = [(node, _attributes(node)) for node in _whole(model.graph.node)]
    names = [value.name for value in model.graph.input]
    results = [value.name for value in model.graph.output]

    def run(*inputs: Any) -> tuple[Any, ...]:
        known = {**constants, **dict(zip(names, inputs, strict=True))}
        for node, attributes in steps:
            operands = [known[name] for name in node.input if name]
            made = _result(torch, node.op_type, operands, attributes, len(node.output))
            made = made if isinstance(made, (list, tuple)) else [made]
            known |= dict(zip(node.output, made, strict=True))
        return tuple(known[name] for name in results)

    return run


def _whole(nodes: Sequence[onnx.NodeProto]) -> list[onnx.NodeProto]:
    """The nodes with one in place of each sequence of :data:`_WHOLE`: it reads what these read from
    others, in order, and has all their attributes."""
    whole, at = list[onnx.NodeProto](), 0
    kinds = tuple(node.op_type for node in nodes)
    while at < len(nodes):
        known = (pattern for pattern in _WHOLE if kinds[at : at + len(pattern)] == pattern)
        found = next(known, kinds[at : at + 1])
        parts = nodes[at : at + len(found)]
        at += len(found)
        if len(parts) == 1:
            whole.append(parts[0])
            continue
        made = {part.output[0] for part in parts}
        read = [name for part in parts for name in part.input if name not in made]
        node = onnx.helper.make_node(_WHOLE[found], read, parts[-1].output)
        node.attribute.extend(attribute for part in parts for attribute in part.attribute)
        whole.append(node)
    return whole


def _attributes(node: onnx.NodeProto) -> dict[str, Any]:
    return {a.name: onnx.helper.get_attribute_value(a) for a in node.attribute}


def _result(torch: Any, kind: str, x: Sequence[Any], given: Mapping[str, Any], count: int) -> Any:
    """What one operator makes of its operands. Windows have the same border on both sides."""
    functions, bias = torch.nn.functional, x[2] if len(x) > 2 else None
    window = {"stride": given.get("strides", 1), "padding": given.get("pads", [0, 0])[:2]}
    match kind:
        case "Conv":
            return functions.conv2d(x[0], x[1], bias, **window, groups=given.get("group", 1))
        case "ConvTranspose":
            return functions.conv_transpose2d(x[0], x[1], bias, **window)
        case "MaxPool":
            return functions.max_pool2d(x[0], given["kernel_shape"], **window)
        case "GlobalAveragePool":
            return x[0].mean((2, 3), keepdim=True)
        case "Gemm":
            return functions.linear(x[0], x[1] if given.get("transB") else x[1].T, bias)
        case "Flatten":
            return x[0].flatten(given.get("axis", 1))
        case "Reshape":
            return x[0].reshape(x[1])
        case "Transpose":
            return x[0].permute(given["perm"])
        case "Concat":
            return torch.cat(list(x), given["axis"])
        case "Slice":
            [first], [end], [axis] = x[1:4]
            return x[0].narrow(axis, first, end - first)  # these networks step by one
        case "Gather":
            return x[0][x[1]]
        case "Linear":
            return functions.linear(x[0], x[1].T, x[2])
        case "LayerNormalization":
            return functions.layer_norm(x[0], x[1].shape, x[1], x[2])
        case "Gelu":
            return functions.gelu(x[0])
        case "Attention":
            query, keys, scale, *mask, value = x
            return functions.scaled_dot_product_attention(
                query, keys.transpose(-1, -2), value.permute(given["perm"]),
                *mask, scale=scale,
            )  # fmt: skip
        case "Split":
            return x[0].chunk(count, given["axis"])  # these networks split evenly
        case "Add" | "Mul":
            return x[0] + x[1] if kind == "Add" else x[0] * x[1]
        case "Relu" | "Sigmoid" | "Tanh":
            return getattr(torch, kind.lower())(x[0])
        case "Identity":
            return x[0]
    raise VdlaError(f"peers: expected an operator of the networks of bench gpu, got {kind}")


class TorchPeer:
    """A network on the GPU, in some ways of :data:`WAYS`."""

    def __init__(
        self,
        model: onnx.ModelProto,
        arrays: Sequence[np.ndarray],
        dtype: str,
        ways: Sequence[str] = WAYS,
    ):
        import torch  # pyright: ignore[reportMissingImports]
        from torch.fx.experimental.proxy_tensor import make_fx  # pyright: ignore

        self.torch = torch
        _set_precision(torch, dtype)
        # Libraries may try their algorithms, as our schedules were chosen, before anything counts.
        torch.backends.cudnn.benchmark = True
        kind = getattr(torch, element_of(dtype))
        self.inputs = [torch.tensor(array, device="cuda") for array in arrays]
        self.inputs = [x.to(kind) if x.is_floating_point() else x for x in self.inputs]
        self.inputs = [
            x.contiguous(memory_format=torch.channels_last) if x.ndim == 4 else x
            for x in self.inputs
        ]
        eager = network(model, dtype, "cuda")
        self.ways: dict[str, Callable[[], Any]] = {}
        with torch.inference_mode():
            for way in ways:
                run = eager
                if way.startswith("compile"):
                    # As one graph of operators: of this module's Python it would compile pieces.
                    whole = make_fx(eager)(*self.inputs)
                    run = torch.compile(whole, mode="max-autotune-no-cudagraphs", fullgraph=True)
                self.ways[way] = (
                    self._graph(run) if way.endswith("graph") else lambda run=run: run(*self.inputs)
                )

    def _graph(self, function: Callable[..., Any]) -> Callable[[], None]:
        """A function as one CUDA graph, ready to be replayed."""
        torch, stream = self.torch, self.torch.cuda.Stream()
        stream.wait_stream(torch.cuda.current_stream())
        with torch.cuda.stream(stream):
            for _ in range(3):
                function(*self.inputs)
        torch.cuda.current_stream().wait_stream(stream)
        graph = torch.cuda.CUDAGraph()
        with torch.cuda.graph(graph):
            function(*self.inputs)
        return graph.replay

    def time_ms(self, way: str) -> float:
        """The time of one run, by the GPU's clock."""
        begin, end = (self.torch.cuda.Event(enable_timing=True) for _ in range(2))
        with self.torch.inference_mode():
            begin.record()
            self.ways[way]()
            end.record()
        end.synchronize()
        return float(begin.elapsed_time(end))


def _set_precision(torch: Any, dtype: str) -> None:
    """Let products of float32 round their factors to tf32, or not."""
    for part in (torch.backends.cuda.matmul, torch.backends.cudnn):
        part.allow_tf32 = dtype == "tf32"


def product_ms(x: np.ndarray, w: np.ndarray, kind: str, warm_rounds: int, rounds: int) -> float:
    """The median of PyTorch's times, in ms, of a product of two matrices, the second one
    transposed."""
    import torch  # pyright: ignore[reportMissingImports]

    _set_precision(torch, kind)
    dtype = getattr(torch, element_of(kind))
    wide = "int8" if kind == "int8" else "float32"  # NumPy's bfloat16 is none of PyTorch's
    a, b = (torch.tensor(m.astype(wide), device="cuda").to(dtype) for m in (x, w))
    multiply = torch._int_mm if kind == "int8" else torch.matmul
    times_ms = []
    for _ in range(warm_rounds + rounds):
        begin, end = (torch.cuda.Event(enable_timing=True) for _ in range(2))
        begin.record()
        multiply(a, b.t())
        end.record()
        end.synchronize()
        times_ms.append(float(begin.elapsed_time(end)))
    return statistics.median(times_ms[warm_rounds:])
