"""The features of the processor that this runs on, and whether they are enough for saved code.

LLVM, which knows them, is imported when it is asked, so that small commands start at once.
"""

from __future__ import annotations

import ctypes
import sys
from collections.abc import Iterable
from functools import cache

from ..isa.errors import VdlaError

#: Features for operating systems and special programs; compiled loops never use them, so that
#: code runs where they are missing.
SYSTEM_FEATURES = frozenset({
    "cldemote", "clflushopt", "clwb", "clzero", "crc32", "cx16", "cx8", "enqcmd", "fsgsbase",
    "fxsr", "hreset", "invpcid", "kl", "lwp", "movdir64b", "movdiri", "movrs", "mwaitx",
    "pconfig", "pku", "prefetchi", "prfchw", "ptwrite", "rdpid", "rdpru", "rdrnd", "rdseed",
    "rtm", "serialize", "sgx", "sha", "sha512", "shstk", "sm3", "sm4", "tsxldtrk", "uintr",
    "usermsr", "waitpkg", "wbnoinvd", "widekl", "xsave", "xsavec", "xsaveopt", "xsaves",
})  # fmt: skip


#: The call by which Linux lets a process use the tiles of AMX, whose state is large: the number of
#: ``arch_prctl`` on x86-64, ``ARCH_REQ_XCOMP_PERM`` and ``XFEATURE_XTILE_DATA``.
TILE_PERMISSION = (158, 0x1023, 18)


@cache
def ask_for_tiles() -> bool:
    """Ask for permission to use the tiles of AMX in this process; whether it is given."""
    if sys.platform != "linux":
        return False
    return ctypes.CDLL(None).syscall(*map(ctypes.c_long, TILE_PERMISSION)) == 0


@cache
def host_features() -> dict[str, bool]:
    """Features by LLVM's names, and whether this processor has them and this process may use them.

    LLVM asks the instruction CPUID for them; the processor's name would not tell.
    """
    import llvmlite.binding as llvm

    found = dict(llvm.get_host_cpu_features())
    if found.get("amx-tile") and not ask_for_tiles():
        found |= {name: False for name in found if name.startswith("amx-")}
    return found


def llvm_triple() -> str:
    """This machine, as LLVM names it."""
    import llvmlite.binding as llvm

    return llvm.get_process_triple()


def needed_features() -> list[str]:
    """The features that code for this processor may use: all that it has but
    :data:`SYSTEM_FEATURES`."""
    return sorted(n for n, has in host_features().items() if has and n not in SYSTEM_FEATURES)


def check_features(where: object, triple: str, features: Iterable[str]) -> None:
    """Raise VdlaError unless this processor runs code for that triple that needs those features."""
    architecture, host = triple.partition("-")[0], llvm_triple().partition("-")[0]
    if architecture != host:
        raise VdlaError(
            f"{where}: expected code for {host}, got {architecture}; compile it on this machine"
        )
    lacking = [name for name in features if not host_features().get(name)]
    if lacking:
        raise VdlaError(
            f"{where}: expected a processor with {', '.join(lacking)}, this one has not; "
            "compile it on this machine"
        )
