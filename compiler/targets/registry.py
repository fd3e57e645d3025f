"""The targets by name, to which :func:`register_target` adds one; :func:`register_template` adds a
template to a target.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import Any

from ...isa.additions import add, check_free, note
from ...isa.errors import VdlaError
from ..choose.template import Template
from .base import Options, Target
from .cpu import lowering as cpu
from .cpu.target import Cpu
from .cpu.templates.base import CpuTemplate
from .gpu import lowering as gpu
from .gpu.target import Cuda, OpenCl
from .gpu.templates.base import GpuTemplate
from .vdla import target as vdla
from .vdla.target import Accelerator
from .vdla.templates.base import AcceleratorTemplate

#: The accelerator's programs run on the SimPy model, on the RTL, or on a board.
_TARGETS: dict[str, Callable[[Options], Target]] = {
    "sim": Accelerator,
    "rtl": Accelerator,
    "fpga": Accelerator,
    "cpu": Cpu,
    "cuda": Cuda,
    "opencl": OpenCl,
}

#: The templates of each target, by their base class.
_TEMPLATES: dict[type[Template[Any]], list[Any]] = {
    AcceleratorTemplate: vdla.TEMPLATES,
    CpuTemplate: cpu.TEMPLATES,
    GpuTemplate: gpu.TEMPLATES,
}


def target_names() -> list[str]:
    """The names of all targets."""
    return list(_TARGETS)


def register_target(name: str, make: Callable[[Options], Target]) -> None:
    """Give a target a name, by which :func:`vdla.compile` finds it.

    Raises
    ------
    VdlaError
        When there is a target of this name.
    """
    add("target", name, _TARGETS, make)


def register_template(kind: type[Template[Any]]) -> None:
    """Add a template. It comes before those that its target has, and takes the nodes that it
    handles from them. Its base class says for which target it is: ``AcceleratorTemplate``,
    ``CpuTemplate`` or ``GpuTemplate``.

    Raises
    ------
    VdlaError
        For a name that another template of this target has, and for another base class.
    """
    for base, table in _TEMPLATES.items():
        if issubclass(kind, base):
            check_free("template", kind.name, [known.name for known in table])
            table.insert(0, kind)
            note(f"template {kind.name}", partial(table.remove, kind))
            return
    bases = ", ".join(base.__name__ for base in _TEMPLATES)
    raise VdlaError(f"template {kind.__name__}: expected a subclass of one of {bases}")


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
