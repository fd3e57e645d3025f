"""The targets by name; :func:`register_target` adds one."""

from __future__ import annotations

from collections.abc import Callable

from ...isa.errors import VdlaError
from .base import Options, Target
from .cpu.target import Cpu
from .gpu.target import Cuda, OpenCl
from .vdla.target import Accelerator

#: The accelerator's programs run on the SimPy model, on the RTL, or on a board.
_TARGETS: dict[str, Callable[[Options], Target]] = {
    "sim": Accelerator,
    "rtl": Accelerator,
    "fpga": Accelerator,
    "cpu": Cpu,
    "cuda": Cuda,
    "opencl": OpenCl,
}


def target_names() -> list[str]:
    """The names of all targets."""
    return list(_TARGETS)


def register_target(name: str, make: Callable[[Options], Target]) -> None:
    """Give a target a name, by which :func:`vdla.compile` finds it."""
    _TARGETS[name] = make


def find_target(name: str, options: Options) -> Target:
    """A target with these options.

    Raises
    ------
    VdlaError
        For an unknown name, or an option that the target does not have.
    """
    if name not in _TARGETS:
        raise VdlaError(f"target: expected one of {', '.join(_TARGETS)}, got {name!r}")
    return _TARGETS[name](options)
