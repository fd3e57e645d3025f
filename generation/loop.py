"""Text from a decoder: the prompt block by block, then token by token."""

from __future__ import annotations

import hashlib
import time
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from functools import cache
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from ..compiler.quantize.four_bits import GROUP, WEIGHT_BITS
from ..compiler.targets.base import Options
from ..compiler.targets.registry import find_target
from ..isa.errors import VdlaError
from ..isa.memory import MemoryParams, load_platform
from ..isa.params import HwParams
from ..module import PLACES, Module, check_options, compile
from . import CONTEXT, ROWS
from .exported import Exported, is_exported, read_exported
from .gguf import read_llama
from .kept import kept_step
from .llama import cache_names, check_context, step_model
from .quantised import QuantisedStep, block_at, quantised_step, tokens_ahead
from .sampling import sampler
from .tokens import Tokens, read_tokens

if TYPE_CHECKING:
    from ..module import Progress

#: The output that says which token is how likely; without that name, it is the first.
LOGITS = "logits"


@dataclass(frozen=True)
class Piece:
    """One token of a text. ``text`` may be empty: a character can take several tokens."""

    token: int
    text: str


@dataclass
class Runs:
    """Runs of a step."""

    count: int = 0
    wall_s: float = 0.0
    cycles: int | None = None


@dataclass
class Measured:
    """Of the last text: its tokens; runs of the step of a block, which read the prompt, and of that
    of one token, their seconds, and the cycles of one run, None where nothing counts cycles."""

    prompt_tokens: int = 0
    tokens: int = 0
    blocks: Runs = field(default_factory=Runs)
    steps: Runs = field(default_factory=Runs)


@dataclass(eq=False)
class LanguageModel:
    """A decoder that is ready to write.

    Attributes
    ----------
    module : the step of one token (:func:`.llama.step_model`), whose caches are states
    blocks : the step of a block, with the same weights and caches
    rows, context : tokens of a block, and of the caches
    int8 : whether the step is quantised
    first : the position of a text's first token, behind :func:`.quantised.tokens_ahead`
    exported : what the inputs are, where others made the step
    measured : what the last text took
    """

    module: Module
    blocks: Module
    tokens: Tokens
    rows: int
    context: int
    int8: bool
    first: int = 0
    exported: Exported | None = None
    measured: Measured = field(default_factory=Measured)

    @staticmethod
    def load(
        path: str | Path,
        target: str = "sim",
        context: int = CONTEXT,
        rows: int = ROWS,
        int8: bool | None = None,
        tokenizer: str | Path | None = None,
        prompt: str | None = None,
        hw: HwParams | str | Path = "16x16",
        memory: MemoryParams | str | Path = "vta",
        progress: Progress | None = None,
        weight_bits: int = 8,
    ) -> LanguageModel:
        """Read a model and compile its steps; parameters as of :func:`generate`. What was compiled
        is kept in the cache folder. A ``prompt`` that does not fit is refused first."""
        check_options(target, None)
        params, memory = load_platform(hw, memory)
        find_target(target, Options(params, memory))
        if is_exported(path):
            if int8 is not None or weight_bits != 8:
                raise VdlaError(
                    f"{path}: expected no --int8, --float or --weight-bits with an exported model,"
                    " which is in int8 if vdla quantize wrote it"
                )
            return _exported(
                path, target, context, rows, tokenizer, prompt, params, memory, progress
            )
        found = read_llama(path)
        tokens = read_tokens(found.fields, tokenizer)
        if tokens.count > found.config.words:
            raise VdlaError(
                f"tokenizer: expected at most the model's {found.config.words} tokens, got"
                f" {tokens.count}"
            )
        check_context(rows, context)
        int8 = target != "cpu" if int8 is None else int8
        if weight_bits not in (WEIGHT_BITS if int8 else (8,)):
            wanted = "4 or 8" if int8 else "8 where products are in float32"
            raise VdlaError(f"weight bits: expected {wanted}, got {weight_bits!r}")
        group = max(GROUP, params.block)
        first = len(tokens_ahead(tokens)) if int8 else 0
        if rows > context - first:
            raise VdlaError(
                f"context: expected room for a block of {rows} tokens behind the {first} that stand"
                f" before a text in int8, got {context}; choose a larger --context or fewer --rows"
            )
        if prompt is not None:
            _encoded(tokens, prompt, first, context)

        @cache
        def quantised() -> QuantisedStep:
            return quantised_step(found.config, found.weights, context, tokens, weight_bits, group)

        def made(count: int) -> Module:
            """The step of so many tokens."""

            def make() -> Module:
                states, caches = cache_names(found.config), {}
                if int8:
                    of_count = quantised().with_sizes(count, context)
                    step, caches = of_count.model, of_count.caches
                else:
                    step = step_model(found.config, found.weights, count, context)
                return compile(
                    step, target, params, memory, progress=progress, states=states, initial=caches
                )

            made_of = (
                _digest(path), _digest(tokenizer), "sim" if target in PLACES else target, rows,
                context, int8, weight_bits, group, params.hash, memory.to_dict(), count,
            )  # fmt: skip
            return kept_step(made_of, target, make)

        module = made(1)
        blocks = module if rows == 1 else made(rows)
        return LanguageModel(module, blocks, tokens, rows, context, int8, first)

    def write(
        self,
        prompt: str,
        tokens: int = 64,
        temperature: float = 0.0,
        top_k: int = 0,
        seed: int = 0,
    ) -> Iterator[Piece]:
        """The text behind a prompt, as it is made. Parameters and errors as of :func:`generate`."""
        sample = sampler(temperature, top_k, seed)
        text = _encoded(self.tokens, prompt, self.first, self.context)
        return self._write(text, tokens, sample)

    def perplexity(self, text: str) -> float:
        """How many tokens, on average, the model wavers between at each token of a text: e to the
        mean of minus the logarithm of the next token's share. The text is cut into pieces that fill
        the context, each read from its start.

        Raises
        ------
        VdlaError
            For a text of less than two tokens.
        """
        tokens, room, losses = self.tokens.encode(text), self.context - self.first, []
        if len(tokens) < 2:
            raise VdlaError(f"text: expected at least two tokens, got {len(tokens)}")
        for begin in range(0, len(tokens), room):
            piece = tokens[begin : begin + room]
            self.blocks.reset()
            done = 0
            for place in range(0, len(piece), self.rows):
                start, logits = self.read(piece, place)
                end = min(start + self.rows, len(piece))
                known = piece[done + 1 : end + 1]
                rows = logits[done - start :][: len(known)].astype(np.float64)
                done, tops = end, rows.max(-1)
                sums = np.log(np.exp(rows - tops[:, None]).sum(-1))
                losses += [*(tops + sums - rows[np.arange(len(known)), known])]
        return float(np.exp(np.mean(losses)))

    def _write(self, text: list[int], tokens: int, sample: Any) -> Iterator[Piece]:
        self.measured = Measured(prompt_tokens=len(text))
        decoder = self.tokens.decoder()
        for token in text:
            decoder.add(token)
        logits = self.read_all(text)
        for number in range(tokens):
            if number:
                _check_room(len(text), self.context - self.first)
                logits = self.step(text)
            token = sample(logits)
            if token in self.tokens.last:
                return
            text.append(token)
            self.measured.tokens += 1
            yield Piece(token, decoder.add(token))

    def read_all(self, text: Sequence[int]) -> np.ndarray:
        """Read a text block by block, with empty caches before it; return the logits behind it,
        float32 [words]. What comes next can be computed token by token (:meth:`step`)."""
        self.blocks.reset()
        start, logits = 0, np.empty((0, 0), np.float32)
        for place in range(0, len(text), self.rows):
            start, logits = self.read(text, place)
        self.module.compiled.take_states(self.blocks.compiled)
        return logits[len(text) - 1 - start]

    def read(self, text: Sequence[int], place: int) -> tuple[int, np.ndarray]:
        """Compute the block of the token at a place of a text; the blocks before it are in the
        caches. Returns where in the text it begins, and its logits, float32 [rows, words]."""
        return self._run(self.blocks, self.measured.blocks, text, place, self.rows)

    def step(self, text: Sequence[int]) -> np.ndarray:
        """Compute the last token of a text, whose others are in the caches; return the logits
        behind it, float32 [words]."""
        _, [logits] = self._run(self.module, self.measured.steps, text, len(text) - 1, 1)
        return logits

    def _run(
        self, module: Module, runs: Runs, text: Sequence[int], place: int, rows: int
    ) -> tuple[int, np.ndarray]:
        begin = time.perf_counter()
        if self.exported is None:
            start, block, position = block_at(text, place, self.first, rows, self.context)
            given = {"tokens": block, "position": np.array([position])}
        else:
            start, given = self.exported.feed(module, text, place, rows, self.context)
        results = module.run(given, keep_timing=True)
        names = [tensor.name for tensor in module.outputs]
        logits = results[names.index(LOGITS) if LOGITS in names else 0]
        timing = module.timing
        runs.count += 1
        runs.wall_s += time.perf_counter() - begin
        runs.cycles = None if timing is None else timing.cycles
        return start, logits[0]


def _exported(
    path: str | Path,
    target: str,
    context: int,
    rows: int,
    tokenizer: str | Path | None,
    prompt: str | None,
    params: HwParams,
    memory: MemoryParams,
    progress: Progress | None,
) -> LanguageModel:
    """A decoder in ONNX or of torch.export. One that takes one token a run reads a prompt so."""
    found = read_exported(path)
    if tokenizer is None:
        raise VdlaError(f"{path}: expected a tokenizer.json (--tokenizer), which it has not")
    tokens, rows = read_tokens(None, tokenizer), found.rows or rows
    check_context(rows, context)
    if prompt is not None:
        _encoded(tokens, prompt, 0, context)

    def made(count: int) -> Module:
        dims = found.dims(count, context)
        made_of = (
            _digest(path), "sim" if target in PLACES else target, context, params.hash,
            memory.to_dict(), count,
        )  # fmt: skip
        return kept_step(made_of, target, lambda: compile(
            path, target, params, memory, progress=progress, states=found.states, dims=dims
        ))  # fmt: skip

    module = made(1)
    blocks = module if rows == 1 else made(rows)
    shapes = {tensor.name: tensor.shape for tensor in module.outputs}
    logits = shapes.get(LOGITS, module.outputs[0].shape)
    if len(logits) != 3 or logits[-1] < tokens.count:
        raise VdlaError(
            f"{path}: expected logits [1, tokens, words] of at least the tokenizer's"
            f" {tokens.count} words, got {[*logits]}"
        )
    return LanguageModel(module, blocks, tokens, rows, context, found.int8, exported=found)


def _encoded(tokens: Tokens, prompt: str, first: int, context: int) -> list[int]:
    """The tokens of a prompt. Where the caches begin with a text's start (``first`` is not 0), the
    prompt's own is left out. Raises VdlaError for no token, or more than there is room for."""
    text = tokens.encode(prompt)
    text = text[1:] if first and text[:1] == [tokens.start] else text
    if not text:
        raise VdlaError("prompt: expected at least one token, got an empty text")
    _check_room(len(text), context - first)
    return text


def _check_room(length: int, room: int) -> None:
    if length > room:
        raise VdlaError(
            f"context: expected a text of at most {room} tokens, got {length}; --context makes"
            " room for more"
        )


def _digest(path: str | Path | None) -> str:
    """What tells the bytes of a file."""
    if path is None:
        return ""
    with open(path, "rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()


def generate(
    model: str | Path,
    prompt: str,
    tokens: int = 64,
    target: str = "sim",
    context: int = CONTEXT,
    rows: int = ROWS,
    temperature: float = 0.0,
    top_k: int = 0,
    seed: int = 0,
    tokenizer: str | Path | None = None,
    int8: bool | None = None,
    hw: HwParams | str | Path = "16x16",
    memory: MemoryParams | str | Path = "vta",
    weight_bits: int = 8,
) -> Iterator[Piece]:
    """Write text behind a prompt.

    Parameters
    ----------
    model : path
        A GGUF file of the llama architecture, its tensors F32, F16, Q8_0, Q4_0 or Q4_1; or a
        decoder in ONNX (``.onnx``) or of torch.export (``.pt2``), float or quantised, as it is.
    tokens : int
        The most that are written; a token that ends a text ends it before.
    target : str
        ``sim``, ``rtl`` or ``cpu``.
    context : int
        Tokens of prompt and text that there is room for: whole blocks.
    rows : int
        Tokens of a block, by which the prompt is read.
    temperature, top_k, seed
        How tokens are drawn; at temperature 0 the likeliest is taken.
    tokenizer : path, optional
        A ``tokenizer.json``, instead of a GGUF file's own tokenizer.
    int8 : bool, optional
        Whether products of a GGUF file are on integers; by default on all targets but ``cpu``.
    hw, memory
        The accelerator's configuration and the memory behind it.
    weight_bits : int
        8, or 4 for the weights of layers, which a configuration with ``packed_weights`` reads as
        such.

    Returns
    -------
    iterator of Piece
        Each token and its text.

    Raises
    ------
    VdlaError
        For a file, text or number that does not fit; while it writes, where the context is full.
    """
    found = LanguageModel.load(
        model, target, context, rows, int8, tokenizer, prompt, hw, memory,
        weight_bits=weight_bits,
    )  # fmt: skip
    return found.write(prompt, tokens, temperature, top_k, seed)
