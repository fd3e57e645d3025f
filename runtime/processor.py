"""The features of the processor that this runs on, and whether they are enough for saved code.

LLVM, which knows them, is imported when it is asked, so that small commands start at once.
"""

from __future__ import annotations

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


@cache
def host_features() -> dict[str, bool]:
    """Features by LLVM's names, and whether this processor has them."""
    import llvmlite.binding as llvm

    return dict(llvm.get_host_cpu_features())


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
