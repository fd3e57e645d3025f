"""The devices that run kernels, by name; each is loaded only where it is used."""

from __future__ import annotations

from .program import KernelProgram, Session


def open_session(program: KernelProgram) -> Session:
    """A session of the program's device.

    Raises
    ------
    VdlaError
        Where the device, its driver or its compiler is missing.
    """
    match program.device:
        case "emulated":
            from .emulated import EmulatedSession

            return EmulatedSession(program)
        case "opencl":
            from .opencl import OpenClSession

            return OpenClSession(program)
    from .cuda import CudaSession

    return CudaSession(program)
