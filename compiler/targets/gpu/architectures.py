"""Generations of NVIDIA's GPUs, as far as schedules depend on them."""

from __future__ import annotations

from dataclasses import dataclass

from ....isa.errors import VdlaError


@dataclass(frozen=True)
class Architecture:
    """What the kernels of a generation may use.

    Attributes
    ----------
    name : NVIDIA's name of the least GPU that has it
    shared_bytes : of shared memory for a block at most
    warpgroups : whether there are the instructions of warpgroups (``wgmma``)
    """

    name: str
    shared_bytes: int
    warpgroups: bool


#: All since compute capability 8.0, which have 99 KB at least; and 9.0 with what no other one has.
ARCHITECTURES = (Architecture("sm_80", 99 << 10, False), Architecture("sm_90a", 227 << 10, True))


def find_architecture(name: str) -> Architecture:
    """The architecture of a name.

    Raises
    ------
    VdlaError
        For an unknown name.
    """
    for found in ARCHITECTURES:
        if found.name == name:
            return found
    known = " or ".join(a.name for a in ARCHITECTURES)
    raise VdlaError(f"arch: expected {known} with target cuda, got {name!r}")


def choose_architecture(capability: tuple[int, int] | None) -> Architecture:
    """The architecture of a GPU of this compute capability, or of none in sight."""
    return find_architecture("sm_90a" if capability == (9, 0) else "sm_80")
