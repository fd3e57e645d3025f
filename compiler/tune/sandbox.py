"""Trials in a process of their own, so that one that crashes, hangs or fills memory only fails.

The process is started once and kept; it is replaced after a trial that ended it.
"""

from __future__ import annotations

import contextlib
import importlib
import pickle
import resource
import signal
import subprocess
import sys
from collections.abc import Callable
from multiprocessing import Pipe
from multiprocessing.connection import Connection
from typing import Any

from ... import plugins
from ...isa.errors import VdlaError

#: Seconds until a new process must be ready.
_START_S = 120.0


class TrialFailed(Exception):
    """A trial gave no result; says why in one line."""


class Sandbox:
    """A process that calls functions of modules, one at a time.

    Parameters
    ----------
    timeout_s : seconds after which a call fails
    memory_bytes : of data that the process may have
    """

    def __init__(self, timeout_s: float = 60.0, memory_bytes: int = 4 << 30):
        self.timeout_s, self.memory_bytes = timeout_s, memory_bytes
        self._process: subprocess.Popen[bytes] | None = None
        self._line: Connection | None = None
        self._subject: bytes | None = None

    def call(self, function: Callable[..., Any], subject: bytes, *args: Any) -> Any:
        """``function(subject, *args)``, in the process. The function is one of a module; the
        subject is a pickled object, which is sent again only if it changed.

        Raises
        ------
        TrialFailed
            When the function raises, takes too long or ends the process.
        """
        line = self._ready()
        new = None if subject is self._subject else subject
        name = f"{function.__module__}:{function.__qualname__}"
        try:
            line.send((name, new, args))
            self._subject = subject
            kind, value = _answer(line, self.timeout_s)
        except TimeoutError:
            self.close()
            raise TrialFailed(f"took longer than {self.timeout_s:g} s") from None
        except (EOFError, OSError):
            raise TrialFailed(self._ending()) from None
        if kind == "error":
            raise TrialFailed(value)
        return value

    def close(self) -> None:
        """End the process."""
        process, self._process, self._subject = self._process, None, None
        if process is None:
            return
        process.kill()
        process.wait()
        assert self._line is not None
        self._line.close()

    def __enter__(self) -> Sandbox:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def _ready(self) -> Connection:
        if self._process is None or self._line is None:
            package = __name__.removesuffix(".compiler.tune.sandbox")
            self._line, its = Pipe()
            code = f"from {__name__} import serve; "
            code += f"serve({its.fileno()}, {self.memory_bytes}, {package!r})"
            self._process = subprocess.Popen(
                [sys.executable, "-c", code], stdin=subprocess.DEVNULL, stdout=2,
                pass_fds=[its.fileno()],
            )  # fmt: skip
            its.close()
            try:
                _answer(self._line, _START_S)
            except (TimeoutError, EOFError, OSError):
                self.close()
                raise VdlaError("trials: their process did not start; see its message") from None
        return self._line

    def _ending(self) -> str:
        """Why the process has ended."""
        assert self._process is not None
        code = self._process.wait()
        self.close()
        return f"crashed: {signal.Signals(-code).name}" if code < 0 else f"exited with {code}"


def _answer(line: Connection, timeout_s: float) -> Any:
    if not line.poll(timeout_s):
        raise TimeoutError
    return line.recv()


def serve(descriptor: int, memory_bytes: int, package: str) -> None:
    """The process of a sandbox: answer calls until the other side closes."""
    line = Connection(descriptor)
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # Ctrl-C is for the process that asks
    resource.setrlimit(resource.RLIMIT_DATA, (memory_bytes, memory_bytes))
    resource.setrlimit(resource.RLIMIT_CORE, (0, 0))
    importlib.import_module(f"{package}.compiler.build")
    plugins.load_known()
    line.send(("ready", None))
    subject: Any = None
    with contextlib.suppress(EOFError, BrokenPipeError, ConnectionResetError):
        while True:
            name, new, args = line.recv()
            subject = subject if new is None else pickle.loads(new)
            module, _, function = name.partition(":")
            try:
                found = getattr(importlib.import_module(module), function)(subject, *args)
                line.send(("value", found))
            except MemoryError:
                line.send(("error", f"needs more than {memory_bytes >> 20} MiB"))
            except Exception as error:
                text = " ".join(str(error).split())[:300]
                told = text if isinstance(error, VdlaError) else f"{type(error).__name__}: {text}"
                line.send(("error", told))
