"""Text to tokens and back, by PyPI's tokenizers."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

from ..isa.errors import VdlaError

if TYPE_CHECKING:
    from tokenizers import Tokenizer

#: Where digits are tokens of their own, by ``tokenizer.ggml.pre``; the rest splits as GPT-2 does.
DIGITS_APART = {"gpt-2": False, "default": False, "smollm": True}
#: Words that end a text, of which a tokenizer.json does not say so.
ENDS = ("</s>", "<eos>", "<|endoftext|>", "<|end_of_text|>", "<|im_end|>", "<|eot_id|>")
#: The token type of control words in GGUF files.
CONTROL = 3


class Tokens:
    """A tokenizer, and tokens of its own.

    Attributes
    ----------
    last : those that end a text
    start : the one for the start of a text, if the file names one
    """

    def __init__(
        self,
        tokenizer: Tokenizer,
        last: frozenset[int],
        start: int | None,
        has_start: bool,
        is_whole: bool = False,
    ):
        self._tokenizer, self.last, self.start, self._has_start = tokenizer, last, start, has_start
        self._is_whole = is_whole  # the tokenizer itself puts a start before a text

    @property
    def count(self) -> int:
        """How many tokens there are."""
        return self._tokenizer.get_vocab_size()

    def encode(self, text: str) -> list[int]:
        """The tokens of a text, behind that of its start where the model was trained with it."""
        first = [self.start] if self.start is not None and self._has_start else []
        return first + self._tokenizer.encode(text, add_special_tokens=self._is_whole).ids

    def decoder(self) -> Decoder:
        """What turns tokens into text, one after the other."""
        return Decoder(self._tokenizer)


class Decoder:
    """The text of tokens as they come."""

    def __init__(self, tokenizer: Tokenizer):
        from tokenizers.decoders import DecodeStream

        self._tokenizer, self._stream = tokenizer, DecodeStream(skip_special_tokens=True)

    def add(self, token: int) -> str:
        """The text that a token ends: nothing within a character of several."""
        return self._stream.step(self._tokenizer, token) or ""


def read_tokens(fields: Mapping[str, Any] | None, path: str | Path | None = None) -> Tokens:
    """The tokenizer of a GGUF file's fields, or that of a ``tokenizer.json``. Without fields, the
    latter says what stands before a text.

    Raises
    ------
    VdlaError
        For a tokenizer of another kind, or one that the package cannot read.
    """
    import tokenizers

    named, fields = fields is not None, fields or {}
    ends = (fields.get(f"tokenizer.ggml.{name}_token_id") for name in ("eos", "eot"))
    last = frozenset(int(token) for token in ends if token is not None)
    start = fields.get("tokenizer.ggml.bos_token_id")
    start = None if start is None else int(start)
    has_start = bool(fields.get("tokenizer.ggml.add_bos_token"))
    try:
        if path is not None:
            found = tokenizers.Tokenizer.from_file(str(path))
        else:
            found = _byte_level(fields)
    except VdlaError:
        raise
    except Exception as error:  # the package has no class of its own
        where = "tokenizer" if path is None else path
        raise VdlaError(f"{where}: expected a tokenizer: {error}") from None
    if not named:
        words = [found.token_to_id(word) for word in ENDS]
        last = frozenset(token for token in words if token is not None)
    return Tokens(found, last, start, has_start, is_whole=not named)


def _byte_level(fields: Mapping[str, Any]) -> Tokenizer:
    """Byte-level BPE from a vocabulary and merges."""
    from tokenizers import AddedToken, Tokenizer, decoders, models, pre_tokenizers

    kind, pre = (fields.get(f"tokenizer.ggml.{n}") for n in ("model", "pre"))
    if kind != "gpt2" or (pre or "gpt-2") not in DIGITS_APART:
        known = ", ".join(DIGITS_APART)
        raise VdlaError(
            f"tokenizer: expected 'gpt2' of kind {known}, got {kind!r} of {pre!r}; --tokenizer"
            " names a tokenizer.json"
        )
    words = fields["tokenizer.ggml.tokens"]
    merges = [tuple(pair.split(" ")) for pair in fields["tokenizer.ggml.merges"]]
    made = Tokenizer(models.BPE({word: i for i, word in enumerate(words)}, merges))
    whole = pre_tokenizers.ByteLevel(add_prefix_space=False)
    if DIGITS_APART[pre or "gpt-2"]:
        digits = pre_tokenizers.Digits(individual_digits=True)
        whole = pre_tokenizers.Sequence([digits, whole])
    made.pre_tokenizer, made.decoder = whole, decoders.ByteLevel()
    types = fields.get("tokenizer.ggml.token_type", ())
    control = [word for word, kind in zip(words, types, strict=False) if kind == CONTROL]
    made.add_special_tokens([AddedToken(word, special=True, normalized=False) for word in control])
    return made
