"""The features of a processor that a process may use."""

from __future__ import annotations

from pathlib import Path

import llvmlite.binding as llvm
import pytest
from vdla.runtime import processor

CPU_INFO = Path("/proc/cpuinfo")


@pytest.mark.parametrize("given", [True, False])
def test_tiles_need_permission(given: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    """Features come from the processor; those of AMX count only where the system permits it."""
    known = {"avx2": True, "amx-tile": True, "amx-int8": True, "amx-fp16": False}
    monkeypatch.setattr(llvm, "get_host_cpu_features", lambda: dict(known))
    monkeypatch.setattr(processor, "ask_for_tiles", lambda: given)
    found = processor.host_features.__wrapped__()
    assert found == (known if given else known | {"amx-tile": False, "amx-int8": False})


def test_a_processor_without_tiles_is_not_asked(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(llvm, "get_host_cpu_features", lambda: {"avx2": True, "amx-tile": False})
    monkeypatch.setattr(processor, "ask_for_tiles", lambda: pytest.fail("asked"))
    assert processor.host_features.__wrapped__() == {"avx2": True, "amx-tile": False}


@pytest.mark.skipif(not CPU_INFO.exists(), reason="not Linux")
def test_linux_permits_what_the_processor_has() -> None:
    has = "amx_tile" in CPU_INFO.read_text()
    assert processor.ask_for_tiles() == has == processor.host_features().get("amx-tile", False)
