"""What a program of PyTorch's quantisation flow means, computed without errors of float32."""

from __future__ import annotations

from typing import Any

import torch
from torch.fx import Interpreter, Node

#: A quotient that is a tie at this many decimal places is one. Errors of float64 are far smaller,
#: and it is improbable that another quotient lies so near to a tie.
TIE_DECIMALS = 8


class Exact(Interpreter):
    """Runs a quantised program in float64, with the biases of an integer implementation.

    torch itself runs the program in float32. There a tie, such as the average of 16 integers often
    is, is rounded either way. Integer implementations see ties as ties, and they round a bias to a
    multiple of the product of its operands' scales.
    """

    def run_node(self, n: Node) -> Any:
        self.node = n
        return super().run_node(n)

    def call_function(self, target: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        match str(target).split("."):
            case ["quantized_decomposed", "quantize_per_tensor", _]:
                x, scale, zero, low, high = args[:5]
                steps = torch.round(torch.round(x / scale, decimals=TIE_DECIMALS))
                return torch.clamp(steps + zero, low, high)
            case ["quantized_decomposed", "dequantize_per_tensor", _]:
                q, scale, zero = args[:3]
                return (q.double() - zero) * scale
            case ["quantized_decomposed", "dequantize_per_channel", _]:
                q, scales, zeros = args[:3]
                shape = (-1, *(1,) * (q.dim() - 1))
                return (q.double() - zeros.view(shape)) * scales.double().view(shape)
            case ["aten", "conv2d" | "linear", _]:
                x, weight, bias, *rest = args
                step = self._scale(self.node.args[0]) * self._scale(self.node.args[1])
                args = (x, weight, torch.round(bias.double() / step) * step, *rest)
        return super().call_function(target, args, kwargs)

    def _scale(self, n: Any) -> Any:
        """The scale, or one for each channel, of the tensor that a node makes."""
        while "dequantize" not in str(n.target):
            n = n.args[0]
        scale = n.args[1]
        return self.fetch_attr(scale.target).double() if isinstance(scale, Node) else scale


def step_of_result(program: Any) -> float:
    """The scale of a program's only output."""
    (output,) = program.graph.output_node().args[0]
    return output.args[1]
