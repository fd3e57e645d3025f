"""The machine that this runs on: asked here, and nowhere else.

Everything that depends on the host's processor takes it from :func:`host`. Tests set it by
:func:`assume`, so that their results depend on no machine. LLVM, which knows the processor, is
imported when it is asked, so that small commands start at once.
"""

from __future__ import annotations

import ctypes
import os
import sys
from collections.abc import Iterable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field
from functools import cache
from pathlib import Path
from typing import Any

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

#: Where Linux describes the caches of the first core.
CACHES = Path("/sys/devices/system/cpu/cpu0/cache")


@dataclass(frozen=True, eq=False)
class Host:
    """A machine.

    Attributes
    ----------
    triple : such as ``x86_64-unknown-linux-gnu``
    cpu : LLVM's name of the model, by whose timing LLVM orders instructions, and by which records
        of choices are found; a hypervisor may have made it up
    features : names of LLVM's, each with whether the processor has it and this process may use it
    cores : the number that this process may use
    cache_bytes : ``l1_bytes``, ``l1_way_bytes`` and ``l2_bytes`` of a core, for data; unknown ones
        are missing
    speeds : of a core, as other fields of ``compiler.targets.cpu.core.Core``; None if they are to
        be measured
    """

    triple: str
    cpu: str
    features: Mapping[str, bool]
    cores: int = 1
    cache_bytes: Mapping[str, int] = field(default_factory=dict)
    speeds: Mapping[str, float] | None = None

    @property
    def key(self) -> str:
        """All that machine code for it depends on."""
        return f"{self.triple} {self.cpu} {sorted(self.features.items())}"

    def target_machine(self, opt: int) -> Any:
        """A new LLVM target machine for code that runs here."""
        import llvmlite.binding as llvm

        llvm.initialize_native_target()
        llvm.initialize_native_asmprinter()
        signed = ",".join(f"{'+' if has else '-'}{name}" for name, has in self.features.items())
        target = llvm.Target.from_triple(self.triple)
        return target.create_target_machine(cpu=self.cpu, features=signed, opt=opt)


_assumed: Host | None = None


def host() -> Host:
    """The machine that this runs on."""
    return _assumed or _ask()


@contextmanager
def assume(found: Host) -> Iterator[None]:
    """Let :func:`host` return another machine inside the block."""
    global _assumed
    before, _assumed = _assumed, found
    try:
        yield
    finally:
        _assumed = before


@cache
def _ask() -> Host:
    """The instruction CPUID and the operating system are asked once."""
    import llvmlite.binding as llvm

    features = dict(llvm.get_host_cpu_features())
    if features.get("amx-tile") and not ask_for_tiles():
        features |= {name: False for name in features if name.startswith("amx-")}
    triple, cpu = llvm.get_process_triple(), llvm.get_host_cpu_name()
    return Host(triple, cpu, features, usable_cores(), cache_sizes())


@cache
def ask_for_tiles() -> bool:
    """Ask for permission to use the tiles of AMX in this process; whether it is given."""
    if sys.platform != "linux":
        return False
    return ctypes.CDLL(None).syscall(*map(ctypes.c_long, TILE_PERMISSION)) == 0


def usable_cores() -> int:
    """Cores that this process may run on."""
    if hasattr(os, "sched_getaffinity"):
        return len(os.sched_getaffinity(0))
    return os.cpu_count() or 1


def cache_sizes(folder: Path = CACHES) -> dict[str, int]:
    """The sizes of the caches for data as Linux lists them: ``l1_bytes``, ``l1_way_bytes``,
    ``l2_bytes``."""
    found = {}
    for index in sorted(folder.glob("index*")):
        try:
            level, kind, size = (
                (index / name).read_text("utf-8").strip() for name in ("level", "type", "size")
            )
        except OSError:
            continue
        if (
            kind in ("Data", "Unified")
            and level in "12"
            and size[-1:] == "K"
            and size[:-1].isdigit()
        ):
            found[f"l{level}_bytes"] = int(size[:-1]) << 10
            ways = index / "ways_of_associativity"
            if level == "1" and ways.exists():
                found["l1_way_bytes"] = found["l1_bytes"] // max(1, int(ways.read_text("utf-8")))
    return found


# ---- saved code ----------------------------------------------------------------------------------


def needed_features() -> list[str]:
    """The features that code for this processor may use: all that it has but
    :data:`SYSTEM_FEATURES`."""
    return sorted(n for n, has in host().features.items() if has and n not in SYSTEM_FEATURES)


def check_features(where: object, triple: str, features: Iterable[str]) -> None:
    """Raise VdlaError unless this processor runs code for that triple that needs those features."""
    architecture, here = triple.partition("-")[0], host().triple.partition("-")[0]
    if architecture != here:
        raise VdlaError(
            f"{where}: expected code for {here}, got {architecture}; compile it on this machine"
        )
    lacking = [name for name in features if not host().features.get(name)]
    if lacking:
        raise VdlaError(
            f"{where}: expected a processor with {', '.join(lacking)}, this one has not; "
            "compile it on this machine"
        )
