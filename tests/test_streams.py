"""What happens around a command: Ctrl-C, standard streams that are closed, pipes instead of files,
locales, tools that are missing.
"""

from __future__ import annotations

import os
import pickle
import shlex
import subprocess
import sys
import time
from pathlib import Path

import pytest
import vdla
from vdla.hw.tool import run_tool
from vdla.isa.errors import VdlaError
from vdla.isa.params import HwParams
from vdla.sim.rtl import kept, toolchain

DIGITS = Path(__file__).parents[1] / "examples" / "models" / "digits_int8.onnx"
VDLA = [sys.executable, "-m", "vdla"]
#: Python without the locale of tests: no UTF-8 unless it is asked for.
OLD_LOCALE = os.environ | {"LC_ALL": "C", "PYTHONUTF8": "0", "PYTHONCOERCECLOCALE": "0"}
IMPORTING = """
import builtins
usual = builtins.__import__
def interrupted(name, *arguments):
    if name == {module!r}:
        raise KeyboardInterrupt
    return usual(name, *arguments)
builtins.__import__ = interrupted
from vdla.cli import main
main()
"""
#: Ctrl-C when some of the core's queues exist and no module holds them yet.
ELABORATING = """
import os, signal
from vdla.hw.core import core
class Queue(core.Queue):
    def __init__(self, *arguments):
        super().__init__(*arguments)
        made.append(id(self))
        if len(made) == 3:
            os.kill(os.getpid(), signal.SIGINT)
made = []
core.Queue = Queue
from vdla.cli import main
main()
"""


@pytest.mark.slow
@pytest.mark.parametrize("module", ["typer", "numpy", "rich.console"])
def test_ctrl_c_while_python_imports(module: str) -> None:
    code = [sys.executable, "-c", IMPORTING.format(module=module), "config"]
    done = subprocess.run(code, capture_output=True, text=True)
    assert (done.returncode, done.stdout, done.stderr) == (130, "", "vdla: interrupted\n")


@pytest.mark.slow
def test_ctrl_c_while_a_design_is_elaborated(tmp_path: Path) -> None:
    """Amaranth does not complain of what was made and is not used any more."""
    command = ["run", str(DIGITS), "--hw", "4x4", "--target", "rtl"]
    code = [sys.executable, "-c", ELABORATING, *command]
    environment = os.environ | {"VDLA_CACHE": str(tmp_path)}
    done = subprocess.run(code, env=environment, capture_output=True, text=True)
    assert (done.returncode, done.stdout, done.stderr) == (130, "", "vdla: interrupted\n")


def test_ctrl_c_ends_the_tool_that_runs(tmp_path: Path) -> None:
    def interrupt(_line: str) -> bool:
        raise KeyboardInterrupt

    begin = time.monotonic()
    with pytest.raises(KeyboardInterrupt):
        run_tool("sh", ["-c", "echo; exec sleep 60"], tmp_path, interrupt)
    assert time.monotonic() - begin < 30


@pytest.mark.slow
@pytest.mark.parametrize("closed", [">&-", "2>&-", ">&- 2>&-"])
@pytest.mark.parametrize("arguments", [["config"], ["run", "no_such"], ["--help"]])
def test_closed_streams(closed: str, arguments: list[str], tmp_path: Path) -> None:
    shell = f"{shlex.join([*VDLA, *arguments])} {closed}"
    done = subprocess.run(["sh", "-c", shell], capture_output=True, text=True, cwd=tmp_path)
    assert done.returncode == (2 if "run" in arguments else 0)
    assert "Traceback" not in done.stderr


@pytest.mark.slow
def test_pages_in_an_old_locale(tmp_path: Path) -> None:
    """Files are UTF-8; what the terminal's locale cannot show is shown as a number."""
    page, report = tmp_path / "page.html", tmp_path / "r.json"
    model = tmp_path / "größe.onnx"
    model.write_bytes(DIGITS.read_bytes())
    command = [*VDLA, "run", str(model), "--html", str(page), "--json", str(report)]
    command += ["--dump-ir", str(tmp_path / "ir")]
    done = subprocess.run(command, env=OLD_LOCALE, capture_output=True)
    assert (done.returncode, done.stderr) == (0, b"")
    assert "…" in page.read_text("utf-8") and report.exists()


@pytest.mark.slow
def test_models_and_machines_from_pipes(tmp_path: Path) -> None:
    """A pipe is read once. The report has the model's hash."""
    fifo, toml = tmp_path / "model", tmp_path / "hw.toml"
    for path in (fifo, toml):
        os.mkfifo(path)
    texts = {fifo: DIGITS.read_bytes(), toml: b"block_in = 4\nblock_out = 4\n"}
    writers = [subprocess.Popen(["tee", path], stdin=subprocess.PIPE, stdout=subprocess.DEVNULL)
               for path in texts]  # fmt: skip
    for writer, text in zip(writers, texts.values(), strict=True):
        assert writer.stdin is not None
        writer.stdin.write(text)
        writer.stdin.close()
    module = vdla.compile(fifo, "sim", toml)
    assert [writer.wait() for writer in writers] == [0, 0]
    assert module.settings.model_sha256 == vdla.compile(DIGITS).settings.model_sha256
    assert module.params.block == 4


def test_a_missing_compiler_is_said_before_work(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setenv("VDLA_CACHE", str(tmp_path))
    monkeypatch.setattr(toolchain.shutil, "which", lambda _: None)
    with pytest.raises(VdlaError, match=r"g\+\+ is not installed"):
        kept.kept_text("core", HwParams(), (), lambda: pytest.fail("made Verilog"))


@pytest.mark.slow
def test_a_module_says_what_takes_it_to_another_process() -> None:
    module = vdla.compile(DIGITS, "cpu")
    with pytest.raises(VdlaError, match=r"call module.save\(folder\), and vdla.load\(folder\)"):
        pickle.dumps(module)
    assert repr(module) == (
        "<vdla.Module on cpu: image float32[1, 1, 8, 8] -> logits float32[1, 10]>"
    )
