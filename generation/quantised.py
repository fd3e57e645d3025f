"""The step in int8: rotated and evened weights, and ranges from blocks of text."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
import onnx
import onnx.helper

from ..compiler.quantize import quantize
from ..compiler.quantize.four_bits import GROUP
from ..module import compile
from .calibration import MORE, TEXT
from .evened import evened, rotated
from .gguf import LlamaConfig
from .llama import (
    cache_names,
    gated_name,
    product_name,
    small_products,
    step_model,
    stream_names,
)
from .tokens import Tokens

#: Percent of a tensor's values that its scale is made for; the others, the largest, are cut. A
#: scale that holds them, too, is coarser for all.
PERCENTILE = 99.999
#: The text from which scales come is read in blocks of so many tokens, and in caches of at most so
#: many places. Each block is a sample, which holds all caches: larger ones would fill the memory.
_ROWS, _PLACES = 16, 256


@dataclass(frozen=True, eq=False)
class QuantisedStep:
    """A step in int8.

    Attributes
    ----------
    model : as :func:`.llama.step_model` makes it, with products on integers (:func:`vdla.quantize`)
    caches : before the first run, float32 by name, with those of :func:`tokens_ahead`
    rows, context : tokens of a block, and of the caches
    """

    model: onnx.ModelProto
    caches: dict[str, np.ndarray]
    config: LlamaConfig
    rows: int
    context: int

    def with_sizes(self, rows: int, context: int) -> QuantisedStep:
        """The same step of blocks of ``rows`` tokens and caches of ``context`` places: with the
        same weights and scales."""
        weights = defaultdict(lambda: np.zeros((1, 1), np.float32))
        was, new = (
            step_model(self.config, weights, *sizes).graph
            for sizes in ((self.rows, self.context), (rows, context))
        )
        known = {tensor.name: tensor for tensor in was.initializer}
        changed: dict[str, Any] = {t.name: t for t in new.initializer if t != known[t.name]}
        changed |= {value.name: value for value in (*new.input, *new.output)}
        model = onnx.ModelProto()
        model.CopyFrom(self.model)
        for part in (model.graph.initializer, model.graph.input, model.graph.output):
            for own in part:
                if own.name in changed:
                    own.CopyFrom(changed[own.name])
        caches = {name: _with_places(cache, context) for name, cache in self.caches.items()}
        return replace(self, model=model, caches=caches, rows=rows, context=context)


def _with_places(cache: np.ndarray, places: int) -> np.ndarray:
    """A cache of so many places, zeros behind its own."""
    found = np.zeros((*cache.shape[:2], places, cache.shape[3]), cache.dtype)
    found[:, :, : cache.shape[2]] = cache[:, :, :places]
    return found


def tokens_ahead(tokens: Tokens) -> list[int]:
    """The tokens that stand before every text: the one for a text's start, and a space. None where
    the file names no token for a start. The caches begin with their keys and values."""
    if tokens.start is None:
        return []
    return [tokens.start, *(token for token in tokens.encode(" ") if token != tokens.start)]


def block_of(text: Sequence[int], start: int, rows: int) -> np.ndarray:
    """The tokens of a block, int64 [1, rows], filled up behind the end of the text."""
    block = np.zeros((1, rows), np.int64)
    part = text[start : start + rows]
    block[0, : len(part)] = part
    return block


def block_at(
    text: Sequence[int], place: int, first: int, rows: int, context: int
) -> tuple[int, np.ndarray, int]:
    """The block of the token at a place of a text: where in the text it begins, its tokens, and its
    position in caches of which ``first`` places are filled. The last block of a context may begin
    with tokens of the one before it."""
    position = min(place // rows * rows + first, context - rows)
    return position - first, block_of(text, position - first, rows), position


def quantised_step(
    config: LlamaConfig,
    weights: Mapping[str, np.ndarray],
    context: int,
    tokens: Tokens,
    weight_bits: int = 8,
    weight_group: int = GROUP,
) -> QuantisedStep:
    """The step of a decoder in int8, with a residual stream of two bytes. The weights of
    :func:`.llama.small_products` have ``weight_bits``, 8 or 4, the latter with a scale for each
    ``weight_group`` of inputs (:func:`vdla.quantize`). Its scales are measured on blocks of 16
    tokens, in caches of ``context`` places, but at least 32 and at most 256;
    :meth:`QuantisedStep.with_sizes` gives it other sizes.

    The first tokens of a text gather attention, and have values that are hundreds of times those of
    all others. So a text stands behind :func:`tokens_ahead`, whose keys and values are those of the
    float step. Behind one token the first of the text would still have such values. Source:
    attention sinks (Xiao et al. 2023), outliers in a prefix (PrefixQuant, Chen et al. 2024).
    """
    weights = rotated(config, weights)
    places = max(min(context, _PLACES) // _ROWS, 2) * _ROWS
    trial = _Trial(config, weights, _ROWS, places)
    ahead = tokens_ahead(tokens)
    caches = trial.caches(ahead)
    text = TEXT if weight_bits == 8 else TEXT + MORE
    samples, gated = trial.run(tokens.encode(text), caches, len(ahead))
    even = evened(config, weights, gated)
    bits = {product_name(name): weight_bits for name in small_products(config)}
    made = quantize(
        step_model(config, even, _ROWS, places), samples, "percentile", percentile=PERCENTILE,
        measures_error=False, weight_bits=bits, weight_group=weight_group,
        wide=stream_names(config),
    )  # fmt: skip
    return QuantisedStep(made.model, caches, config, _ROWS, places)


class _Trial:
    """The float step, which also tells the products before ``ffn_down``."""

    def __init__(
        self, config: LlamaConfig, weights: Mapping[str, np.ndarray], rows: int, context: int
    ):
        self.rows, self.context = rows, context
        self.gated = [gated_name(layer) for layer in range(config.layers)]
        self.next_names = cache_names(config)
        model = step_model(config, weights, rows, context)
        model.graph.output.extend(map(onnx.helper.make_empty_tensor_value_info, self.gated))
        self.module = compile(model, "cpu")

    def caches(self, text: Sequence[int]) -> dict[str, np.ndarray]:
        """The caches behind a text, zeros elsewhere."""
        found = {
            tensor.name: np.zeros(tensor.shape, np.float32)
            for tensor in self.module.inputs if tensor.name in self.next_names
        }  # fmt: skip
        for place in range(0, len(text), self.rows):
            made = self.step(block_of(text, place, self.rows), place, found)
            new = slice(place, min(place + self.rows, len(text)))
            for name, after in self.next_names.items():
                found[name][:, :, new] = made[after][:, :, new]
        return found

    def run(
        self, text: Sequence[int], caches: dict[str, np.ndarray], first: int
    ) -> tuple[dict[str, np.ndarray], list[np.ndarray]]:
        """The inputs of a text's blocks, and the largest magnitudes of each layer's products, one
        for each channel. The text is cut into pieces that fill the context. A block that is not
        filled is left out: what fills it up is no text, and may have values like no text's."""
        found, gated = [], [np.zeros(1, np.float32) for _ in self.gated]
        room = self.context - first
        for begin in range(0, len(text), room):
            piece, before = text[begin : begin + room], caches
            for place in range(0, len(piece), self.rows):
                start, block, position = block_at(piece, place, first, self.rows, self.context)
                if found and start + self.rows > len(piece):
                    break
                made = self.step(block, position, before)
                found.append({"tokens": block, "position": np.array([position])} | before)
                before = {name: made[after] for name, after in self.next_names.items()}
                tops = (np.abs(made[name]).max((0, 1)) for name in self.gated)
                gated = [np.maximum(*pair) for pair in zip(gated, tops, strict=True)]
        # Each array of a sample is let go when it is in one with the others.
        names = [*found[0]]
        return {name: np.concatenate([one.pop(name) for one in found]) for name in names}, gated

    def step(
        self, block: np.ndarray, position: int, caches: dict[str, np.ndarray]
    ) -> dict[str, np.ndarray]:
        """The outputs by name."""
        given = {"tokens": block, "position": np.array([position])} | caches
        names = (tensor.name for tensor in self.module.outputs)
        return dict(zip(names, self.module.run(given), strict=True))
