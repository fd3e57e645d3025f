"""VDLA: an open deep-learning accelerator, cycle-exact simulators of it, and a compiler for it.

>>> import vdla
>>> module = vdla.compile("digits_int8.onnx", target="sim")  # doctest: +SKIP
>>> outputs = module.run(images)  # doctest: +SKIP
>>> module.report["cycles"]  # doctest: +SKIP

``compile``, ``load``, ``quantize`` and ``tune`` are for models, ``Module`` is a compiled one;
``generate`` writes text with a language model; ``HwParams`` and ``MemoryParams`` describe machines;
``te``, ``topi``, ``lower``, ``print_func`` and ``build_schedule`` are for schedules by hand;
``plugins`` loads files that add operators, targets and more. Every mistake is a ``VdlaError`` of
one line.
"""

from __future__ import annotations

import importlib
from collections.abc import Callable
from typing import TYPE_CHECKING, Any

from ._version import __version__
from .isa.native import Native, use_compiler

if TYPE_CHECKING:
    from . import plugins
    from .api.kernel import Kernel, build_schedule, lower, print_func
    from .api.refining import refine
    from .api.scheduling import FoundSchedule, auto_schedule
    from .api.tuning import tune
    from .compiler import te, topi
    from .compiler.quantize import quantize
    from .generation.loop import generate
    from .isa.errors import VdlaError
    from .isa.memory import MemoryParams
    from .isa.params import HwParams
    from .module import Module, compile, load

__all__ = [
    "FoundSchedule", "HwParams", "Kernel", "MemoryParams", "Module", "VdlaError", "__version__",
    "auto_schedule", "build_schedule", "compile", "generate", "load", "lower", "plugins",
    "print_func", "quantize", "refine", "te", "topi", "tune",
]  # fmt: skip

#: The modules of what is imported on first use.
_LATER = {
    "HwParams": ".isa.params",
    "MemoryParams": ".isa.memory",
    "VdlaError": ".isa.errors",
    "plugins": ".plugins",
    **dict.fromkeys(("Module", "compile", "load"), ".module"),
    **dict.fromkeys(("Kernel", "build_schedule", "lower", "print_func"), ".api.kernel"),
    **dict.fromkeys(("FoundSchedule", "auto_schedule"), ".api.scheduling"),
    "generate": ".generation.loop",
    "quantize": ".compiler.quantize",
    "refine": ".api.refining",
    "tune": ".api.tuning",
    "te": ".compiler.te",
    "topi": ".compiler.topi",
}


def _compiled(function: Native) -> Callable[..., Any]:
    """Machine code of a native function. LLVM is imported for the first one."""
    from .runtime.machine_code import compile_native

    return compile_native(function)


use_compiler(_compiled)


def __dir__() -> list[str]:
    """The public names, also those that are imported on first use."""
    return sorted(__all__)


def __getattr__(name: str) -> Any:
    """Import what is asked for on first use, so that ``import vdla`` stays instant."""
    if name not in _LATER:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    found = importlib.import_module(_LATER[name], __name__)
    return found if name in ("plugins", "te", "topi") else getattr(found, name)
