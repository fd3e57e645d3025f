"""The features of a processor that a process may use."""

from __future__ import annotations

import os
import re
from pathlib import Path

import llvmlite.binding as llvm
import pytest
from vdla.isa.errors import VdlaError
from vdla.runtime import processor

ROOT = Path(__file__).parents[2]
CPU_INFO = Path("/proc/cpuinfo")


@pytest.mark.parametrize("given", [True, False])
def test_tiles_need_permission(given: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    """Features come from the processor; those of AMX count only where the system permits it."""
    known = {"avx2": True, "amx-tile": True, "amx-int8": True, "amx-fp16": False}
    monkeypatch.setattr(llvm, "get_host_cpu_features", lambda: dict(known))
    monkeypatch.setattr(processor, "ask_for_tiles", lambda: given)
    found = processor._ask.__wrapped__().features
    assert found == (known if given else known | {"amx-tile": False, "amx-int8": False})


def test_a_processor_without_tiles_is_not_asked(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(llvm, "get_host_cpu_features", lambda: {"avx2": True, "amx-tile": False})
    monkeypatch.setattr(processor, "ask_for_tiles", lambda: pytest.fail("asked"))
    assert processor._ask.__wrapped__().features == {"avx2": True, "amx-tile": False}


@pytest.mark.this_machine
@pytest.mark.skipif(not CPU_INFO.exists(), reason="not Linux")
def test_linux_permits_what_the_processor_has() -> None:
    has = "amx_tile" in CPU_INFO.read_text()
    assert processor.ask_for_tiles() == has == processor.host().features.get("amx-tile", False)
    assert processor.host().cores == len(os.sched_getaffinity(0))


def test_tests_run_on_no_machine_in_particular() -> None:
    """Until they ask for it."""
    with processor.assume(processor.Host("riscv64-unknown-linux-gnu", "generic", {}, cores=3)):
        assert (processor.host().cores, processor.needed_features()) == (3, [])
        with pytest.raises(VdlaError, match="expected code for riscv64, got x86_64"):
            processor.check_features("here", "x86_64-unknown-linux-gnu", [])
    assert processor.host().cpu != processor._ask().cpu


#: What asks a machine for its processor, and is called in one file only.
QUESTIONS = re.compile(
    r"get_host_cpu|get_process_triple|get_default_triple|from_default_triple|cpu_count"
    r"|sched_getaffinity|platform\.(processor|machine)|/proc/cpuinfo|/sys/devices/system/cpu"
)


def test_one_file_asks_the_machine() -> None:
    rooms = [ROOT / room for room in ("bench", "cli", "compiler", "cosim", "explore", "hw", "isa",
                                      "pages", "runtime", "sim")]  # fmt: skip
    files = [*ROOT.glob("*.py"), *(path for room in rooms for path in room.rglob("*.py"))]
    asking = [path for path in files if QUESTIONS.search(path.read_text())]
    assert [path.relative_to(ROOT).as_posix() for path in asking] == ["runtime/processor.py"]


def test_sizes_of_caches(tmp_path: Path) -> None:
    """As Linux lists them; nothing where it lists none, or in words that nobody knows."""
    assert processor.cache_sizes(tmp_path) == {}
    caches = [("1", "Data", "48K"), ("1", "Instruction", "32K"), ("2", "Unified", "2048K"),
              ("3", "Unified", "32768K")]  # fmt: skip
    for index, texts in enumerate(caches):
        folder = tmp_path / f"index{index}"
        folder.mkdir()
        for name, text in zip(("level", "type", "size"), texts, strict=True):
            (folder / name).write_text(f"{text}\n")
    (tmp_path / "index4").mkdir()
    assert processor.cache_sizes(tmp_path) == {"l1_bytes": 48 << 10, "l2_bytes": 2 << 20}
    (tmp_path / "index0" / "ways_of_associativity").write_text("12\n")
    (tmp_path / "index2" / "size").write_text("much\n")
    assert processor.cache_sizes(tmp_path) == {"l1_bytes": 48 << 10, "l1_way_bytes": 4 << 10}
