"""Run as a program: compile every model in a folder, within limits, and print a JSON line for each.

A line says "made", "refused" with the message, or "bug" with the end of the traceback; and which
other files were opened on the way. A file that takes too long ends the program, as a crash does.
"""

from __future__ import annotations

import json
import resource
import signal
import sys
import traceback
from pathlib import Path
from typing import Any

import vdla
from vdla.compiler.build import build
from vdla.compiler.targets.base import Options
from vdla.compiler.targets.registry import find_target
from vdla.isa.errors import VdlaError
from vdla.isa.memory import MEMORY_PRESETS
from vdla.isa.params import HwParams
from vdla.runtime.cache import cache_dir

LIMIT_BYTES = 3 << 30
LIMIT_SECONDS = 60
#: Where the interpreter and packages live, and what tells about the processor.
PLACES = (sys.prefix, sys.base_prefix, "/proc", "/sys", *sys.path)
OURS = tuple(str(Path(place).resolve()) for place in PLACES)


def main(folder: Path) -> None:
    opened: list[str] = []

    def audit(event: str, arguments: tuple[Any, ...]) -> None:
        if event == "open" and isinstance(arguments[0], str | bytes | Path):
            opened.append(str(Path(str(arguments[0])).resolve()))

    resource.setrlimit(resource.RLIMIT_AS, (LIMIT_BYTES, LIMIT_BYTES))
    package = str(Path(vdla.__file__).resolve().parent)
    sys.addaudithook(audit)
    for path in sorted(folder.iterdir()):
        if path.suffix not in (".onnx", ".tflite"):
            continue
        opened.clear()
        signal.alarm(LIMIT_SECONDS)
        outcome = {"file": path.name} | compiled(path)
        signal.alarm(0)
        allowed = (str(folder.resolve()), str(cache_dir().resolve()), package, *OURS)
        outcome["strangers"] = [name for name in opened if not name.startswith(allowed)]
        print(json.dumps(outcome), flush=True)


def compiled(path: Path) -> dict[str, str]:
    try:
        for target in ("cpu", "sim"):
            build(path, find_target(target, Options(HwParams(), MEMORY_PRESETS["vta"])))
    except VdlaError as error:
        return {"outcome": "refused", "message": str(error)}
    except Exception:
        return {"outcome": "bug", "message": traceback.format_exc()[-800:]}
    return {"outcome": "made", "message": ""}


if __name__ == "__main__":
    main(Path(sys.argv[1]))
