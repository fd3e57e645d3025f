"""The step in int8: calibrated on blocks of text, with the caches that the float step makes."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import onnx
import onnx.helper

from ..compiler.quantize import quantize
from ..module import compile
from .gguf import LlamaConfig
from .llama import cache_names
from .tokens import Tokens

#: Blocks that the step is calibrated on, beside the prompt.
BLOCKS = 16
#: The share of values without a level at which a node stays float.
MOST_CRUSHED = 0.1
#: Ends of names of products by weights, and of sums of rows, in the step.
RESULTS = (".weight y", " attended", " out")
#: Text that every step is calibrated on.
TEXT = """\
Once upon a time there was a small machine in a quiet house by the sea. Every morning it counted \
the boats, and every evening it told the children how many had come home. "Seven," it said, \
"and one of them is red." The children laughed, because they had painted it themselves.

A computer stores numbers as bits. To add two numbers, it adds their lowest bits first and carries \
what is left; that takes 1 cycle here, 2 or 3 there, and in 1948 it took much longer. Programs are \
lists of instructions: load, compute, store. If a result is needed before it is ready, the machine \
waits. Most of the art is to let it wait for as little as possible.

def mean(values):
    total = sum(values)
    return total / len(values)  # raises ZeroDivisionError for an empty list

What is the capital of France? The capital of France is Paris, a city of two million people on the \
river Seine. It is known for its museums, its bread and its bridges. Is it far from London? It is \
about 340 kilometres, or two hours and sixteen minutes by train.
"""


def block_of(text: Sequence[int], start: int, rows: int) -> np.ndarray:
    """The tokens of a block, int64 [1, rows], filled up behind the end of the text."""
    block = np.zeros((1, rows), np.int64)
    part = text[start : start + rows]
    block[0, : len(part)] = part
    return block


def quantised_step(
    step: onnx.ModelProto, config: LlamaConfig, tokens: Tokens, prompt: str
) -> onnx.ModelProto:
    """The step with products on integers (:func:`vdla.quantize`), its caches still float32.

    A trained model may have a few numbers that are thousands of times as large as all others. Where
    these would leave many values of a product or sum no level but zero, it stays float.
    """
    samples, results = _run(step, config, [tokens.encode(text) for text in (TEXT, prompt)])
    crushed = [name for name, values in results.items() if _is_crushed(values)]
    return quantize(step, samples, float_nodes=crushed).model


def _is_crushed(values: np.ndarray) -> bool:
    """Whether many values are less than half a step of int8 for the range of all."""
    half = (values.max() - values.min()) / (2 * 255)
    return bool((np.abs(values) < half).mean() > MOST_CRUSHED)


def _run(
    step: onnx.ModelProto, config: LlamaConfig, texts: Sequence[Sequence[int]]
) -> tuple[dict[str, np.ndarray], dict[str, np.ndarray]]:
    """The inputs of all blocks of texts, as the float step makes them; and the results of products
    by weights and of sums of rows, by the names of both node and result."""
    watched = [
        node.name for node in step.graph.node
        if node.op_type in ("Add", "MatMul") and node.name.endswith(RESULTS)
    ]  # fmt: skip
    model = onnx.ModelProto()
    model.CopyFrom(step)
    model.graph.output.extend(map(onnx.helper.make_empty_tensor_value_info, watched))
    module = compile(model, "cpu")
    shapes = {tensor.name: tensor.shape for tensor in module.inputs}
    rows, context = shapes["tokens"][1], shapes["past_key_values.0.key"][2]
    found: list[dict[str, np.ndarray]] = []
    results: dict[str, list[np.ndarray]] = {name: [] for name in watched}
    names = [tensor.name for tensor in module.outputs]
    for text in texts:
        caches = {name: np.zeros(shapes[name], np.float32) for name in cache_names(config)}
        for start in range(0, min(len(text), context, BLOCKS * rows), rows):
            given = {"tokens": block_of(text, start, rows), "position": np.array([start])}
            found.append(given | caches)
            made = dict(zip(names, module.run(found[-1]), strict=True))
            caches = {name: made[after] for name, after in cache_names(config).items()}
            for name in watched:
                results[name].append(made[name])
    samples = {name: np.concatenate([one[name] for one in found]) for name in found[0]}
    return samples, {name: np.concatenate(values) for name, values in results.items()}
