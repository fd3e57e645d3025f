"""What doors ask of other packages: that they are there, and what their errors say."""

from __future__ import annotations

import importlib
import logging
import warnings
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from importlib.util import find_spec
from types import ModuleType
from typing import Any, TypeAlias

from ....isa.errors import VdlaError

#: Arguments of a model, by position or by name: tensors, of which shapes and dtypes count.
Examples: TypeAlias = "Sequence[Any] | Mapping[str, Any]"


#: The extra of pyproject.toml that brings each package.
EXTRAS = {
    "torch": "torch", "keras": "keras", "tensorflow": "tensorflow", "tf2onnx": "tensorflow",
    "jax2onnx": "jax", "jax": "jax",
}  # fmt: skip


def need(package: str) -> ModuleType:
    """An optional package, imported.

    Raises
    ------
    VdlaError
        Where it, or a package that it needs, is not installed; the message says how to install it.
    """
    try:
        return importlib.import_module(package)
    except ImportError as error:
        raise _missing((error.name or package).partition(".")[0]) from None


def need_found(package: str) -> None:
    """As :func:`need`, for a package that another process will import."""
    if find_spec(package) is None:
        raise _missing(package)


def _missing(package: str) -> VdlaError:
    what = f"'vdla[{EXTRAS[package]}]'" if package in EXTRAS else package
    return VdlaError(f"this needs the package {package!r}; install it with pip install {what}")


def comes_from(model: object, package: str) -> bool:
    """Whether a model is an instance of a class of a package, which need not be installed."""
    return any(kind.__module__.partition(".")[0] == package for kind in type(model).__mro__)


@contextmanager
def quiet() -> Iterator[None]:
    """Without warnings and logs of a converter: what it has to say is in its error, too."""
    disabled = logging.root.manager.disable
    logging.disable(logging.ERROR)
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            yield
    finally:
        logging.disable(disabled)


def describe(error: BaseException) -> str:
    """The first line of an exception that has something to say, without its class's name."""
    lines = [line.strip() for line in str(error).splitlines() if line.strip()]
    return lines[0] if lines else type(error).__name__


def check_examples(examples: object, what: str) -> None:
    """Raise VdlaError unless the arguments of a model are a tuple, a list or a mapping by name."""
    if not isinstance(examples, tuple | list | Mapping):
        raise VdlaError(
            f"example_inputs: expected a tuple of arguments, or a mapping by name, with {what}, got"
            f" {type(examples).__name__ if examples is not None else None}"
        )
