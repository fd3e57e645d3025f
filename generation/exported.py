"""Decoders as others export them, in ONNX or as a program of PyTorch: what their inputs are."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np

from ..compiler.frontends.load import load_graph
from ..compiler.frontends.onnx.importer import declared_sizes, input_names, load_model
from ..compiler.frontends.pytorch.importer import is_torch
from ..isa.errors import VdlaError
from .quantised import block_at

if TYPE_CHECKING:
    from ..module import Module

#: Names of inputs, by what they are.
TOKENS = ("input_ids", "tokens")
POSITIONS = ("position_ids", "cache_position", "position")
MASKS = ("attention_mask",)

#: Sizes of a tensor, or names of those that a file leaves open.
Sizes = Sequence[int | str]


def is_exported(path: str | Path) -> bool:
    """Whether a file is ONNX or a program of torch.export, by its suffix."""
    return Path(path).suffix in (".onnx", ".pt2")


@dataclass(frozen=True, eq=False)
class Exported:
    """A decoder of one input of tokens [1, rows], with caches [1, heads, places, width].

    Attributes
    ----------
    given : sizes of the inputs that are no states, by name
    caches : sizes of the caches, by name
    states : inputs and the outputs that they are in the next run; a program has its own
    grows : whether new places come behind those of a cache, of which the last ones are kept; else a
        cache is filled from its first place on
    int8 : whether products are on integers
    """

    path: str | Path
    given: Mapping[str, Sizes]
    caches: Mapping[str, Sizes]
    states: Mapping[str, str]
    grows: bool = False
    int8: bool = False

    def input(self, names: Sequence[str]) -> str:
        """The input of one of these names; "" where there is none."""
        return next((name for name in self.given if name in names), "")

    @cached_property
    def tokens(self) -> str:
        """The input of tokens."""
        found = self.input(TOKENS)
        if not found or len(self.given[found]) != 2:
            got = ", ".join(f"{name} {[*sizes]}" for name, sizes in self.given.items())
            raise VdlaError(f"{self.path}: expected an input input_ids [1, tokens], got {got}")
        return found

    @property
    def rows(self) -> int | None:
        """The tokens of a run, where the file fixes them."""
        size = self.given[self.tokens][1]
        return size if isinstance(size, int) else None

    def dims(self, rows: int, context: int) -> dict[str, int]:
        """The open sizes of a step of so many tokens and places.

        Raises
        ------
        VdlaError
            Where the file fixes another size.
        """
        wanted = [(self.tokens, self.given[self.tokens], 1, rows)]
        if mask := self.input(MASKS):
            total = context + rows if self.grows else context
            wanted.append((mask, self.given[mask], -1, total))
        if place := self.input(POSITIONS):
            wanted.append((place, self.given[place], -1, rows))
        wanted += [(name, sizes, 2, context) for name, sizes in self.caches.items()]
        found: dict[str, int] = {}
        for name, sizes, axis, size in wanted:
            axis %= len(sizes)
            known = sizes[axis]
            if isinstance(known, str):
                known = found.setdefault(known, size)
            if known != size and not (name == place and known == 1):
                raise VdlaError(
                    f"{self.path}: expected {size} in dimension {axis} of input {name!r}, got"
                    f" {known}; --context and --rows say how many"
                )
        return found

    def feed(
        self, module: Module, text: Sequence[int], place: int, rows: int, context: int
    ) -> tuple[int, dict[str, np.ndarray]]:
        """Where in a text the block of the token at a place begins, and the inputs of its run."""
        if self.grows:  # the text ends with a block, and begins with padding
            start = place - -len(text) % rows
            at = np.arange(start, start + rows)
            block = np.array([[text[i] if 0 <= i < len(text) else 0 for i in at.tolist()]])
            seen = np.arange(start - context, start + rows) >= 0
        else:
            start, block, position = block_at(text, place, 0, rows, context)
            at = np.arange(position, position + rows)
            seen = np.arange(context) < position + rows
        inputs = {tensor.name: tensor for tensor in module.inputs}
        made = {self.tokens: block, self.input(MASKS): seen}
        if name := self.input(POSITIONS):
            one = inputs[name].shape[-1] == 1
            made[name] = np.maximum(at[:1] if one else at, 0)
        return start, {
            name: value.reshape(inputs[name].shape).astype(inputs[name].dtype)
            for name, value in made.items() if name
        }  # fmt: skip


def read_exported(path: str | Path) -> Exported:
    """What a file says of its inputs.

    Raises
    ------
    VdlaError
        For a file that cannot be read, one without caches, and an input that is none of a decoder.
    """
    if is_torch(path):
        graph = load_graph(path)
        given = {name: graph[name].shape for name in graph.given}
        caches = {name: value.shape for name, _, value in graph.state_values if value.ndim == 4}
        return _checked(Exported(path, given, caches, {}))
    model, _ = load_model(path)
    sizes = {
        value.name: declared_sizes(value)
        for value in model.graph.input if value.name in input_names(model)
    }  # fmt: skip
    results = [value.name for value in model.graph.output]
    states = {
        name: _next(str(path), name, results)
        for name in sizes if name not in (*TOKENS, *POSITIONS, *MASKS)
    }  # fmt: skip
    kinds = {node.op_type for node in model.graph.node}
    found = Exported(
        path, {n: s for n, s in sizes.items() if n not in states},
        {n: s for n, s in sizes.items() if n in states and len(s) == 4}, states,
        "GroupQueryAttention" not in kinds and any(name in MASKS for name in sizes),
        "QuantizeLinear" in kinds,
    )  # fmt: skip
    return _checked(found)


def _next(path: str, name: str, results: Sequence[str]) -> str:
    """The output that is the next value of an input."""
    is_past = "past_key_values" in name
    after = name.replace("past_key_values", "present") if is_past else f"{name}.next"
    if after not in results:
        got = ", ".join(results)
        raise VdlaError(f"{path}: expected an output {after} for input {name!r}, got {got}")
    return after


def _checked(found: Exported) -> Exported:
    others = [n for n in found.given if n not in (*TOKENS, *POSITIONS, *MASKS)]
    if others:
        raise VdlaError(f"{found.path}: expected inputs of a decoder, got {others[0]!r}")
    if not found.caches:
        raise VdlaError(f"{found.path}: expected caches of keys and values, got none")
    if found.rows not in (None, 1):
        raise VdlaError(
            f"{found.path}: expected runs of one token, or of an open number, got {found.rows}"
        )
    return found
