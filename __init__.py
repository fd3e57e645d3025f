"""VDLA: an open deep-learning accelerator, cycle-exact simulators of it, and a compiler for it.

>>> import vdla
>>> module = vdla.compile("digits_int8.onnx", target="sim")  # doctest: +SKIP
>>> outputs = module.run(images)  # doctest: +SKIP
>>> module.report["cycles"]  # doctest: +SKIP
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from ._version import __version__
from .isa.errors import VdlaError
from .isa.memory import MemoryParams
from .isa.params import HwParams

if TYPE_CHECKING:
    from .compiler.quantize import quantize
    from .module import Module, compile, load

__all__ = [
    "HwParams",
    "MemoryParams",
    "Module",
    "VdlaError",
    "__version__",
    "compile",
    "load",
    "quantize",
]


def __getattr__(name: str) -> Any:
    """Import the compiler on first use, so that ``import vdla`` stays instant."""
    if name in ("Module", "compile", "load"):
        from . import module

        return getattr(module, name)
    if name == "quantize":
        from .compiler.quantize import quantize

        return quantize
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
