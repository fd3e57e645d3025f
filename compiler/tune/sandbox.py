"""Trials in a process of their own, so that one that crashes, hangs or fills memory only fails.

The process is started once and kept; it is replaced after a trial that ended it.
"""

from __future__ import annotations

import contextlib
import importlib
import os
import pickle
import resource
import select
import signal
import struct
import subprocess
import sys
import time
from collections.abc import Callable
from typing import IO, Any

from ... import plugins
from ...isa.errors import VdlaError

#: Bytes of a message's length.
_HEAD = struct.Struct("<Q")
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
        self._subject: bytes | None = None

    def call(self, function: Callable[..., Any], subject: bytes, *args: Any) -> Any:
        """``function(subject, *args)``, in the process. The function is one of a module; the
        subject is a pickled object, which is sent again only if it changed.

        Raises
        ------
        TrialFailed
            When the function raises, takes too long or ends the process.
        """
        process = self._ready()
        new = None if subject is self._subject else subject
        name = f"{function.__module__}:{function.__qualname__}"
        try:
            assert process.stdin is not None and process.stdout is not None
            _send(process.stdin, (name, new, args))
            self._subject = subject
            kind, value = _receive(process.stdout, self.timeout_s)
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
        for pipe in (process.stdin, process.stdout):
            if pipe is not None:
                with contextlib.suppress(OSError):
                    pipe.close()

    def __enter__(self) -> Sandbox:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def _ready(self) -> subprocess.Popen[bytes]:
        if self._process is None:
            package = __name__.removesuffix(".compiler.tune.sandbox")
            code = f"from {__name__} import serve; serve({self.memory_bytes}, {package!r})"
            self._process = subprocess.Popen(
                [sys.executable, "-c", code], stdin=subprocess.PIPE, stdout=subprocess.PIPE
            )
            assert self._process.stdout is not None
            try:
                _receive(self._process.stdout, _START_S)
            except (TimeoutError, EOFError):
                self.close()
                raise VdlaError("trials: their process did not start; see its message") from None
        return self._process

    def _ending(self) -> str:
        """Why the process has ended."""
        assert self._process is not None
        code = self._process.wait()
        self.close()
        return f"crashed: {signal.Signals(-code).name}" if code < 0 else f"exited with {code}"


def serve(memory_bytes: int, package: str) -> None:
    """The process of a sandbox: answer calls until the other side closes."""
    # What a trial prints must not come between answers.
    answers = os.fdopen(os.dup(1), "wb")
    os.dup2(2, 1)
    calls = os.fdopen(0, "rb")
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # Ctrl-C is for the process that asks
    resource.setrlimit(resource.RLIMIT_DATA, (memory_bytes, memory_bytes))
    resource.setrlimit(resource.RLIMIT_CORE, (0, 0))
    importlib.import_module(f"{package}.compiler.build")
    plugins.load_known()
    _send(answers, ("ready", None))
    subject: Any = None
    with contextlib.suppress(EOFError, BrokenPipeError):
        while True:
            name, new, args = _receive(calls)
            subject = subject if new is None else pickle.loads(new)
            module, _, function = name.partition(":")
            try:
                found = getattr(importlib.import_module(module), function)(subject, *args)
                _send(answers, ("value", found))
            except MemoryError:
                _send(answers, ("error", f"needs more than {memory_bytes >> 20} MiB"))
            except Exception as error:
                text = " ".join(str(error).split())[:300]
                told = text if isinstance(error, VdlaError) else f"{type(error).__name__}: {text}"
                _send(answers, ("error", told))


def _send(file: IO[bytes], value: Any) -> None:
    data = pickle.dumps(value)
    file.write(_HEAD.pack(len(data)) + data)
    file.flush()


def _receive(file: IO[bytes], timeout_s: float | None = None) -> Any:
    deadline = None if timeout_s is None else time.monotonic() + timeout_s
    (size,) = _HEAD.unpack(_exactly(file, _HEAD.size, deadline))
    return pickle.loads(_exactly(file, size, deadline))


def _exactly(file: IO[bytes], count: int, deadline: float | None) -> bytes:
    """So many bytes; past buffers, so that ``select`` knows whether there are any."""
    parts, handle = [], file.fileno()
    while count:
        if deadline is not None:
            left = max(0.0, deadline - time.monotonic())
            if not select.select([handle], [], [], left)[0]:
                raise TimeoutError
        part = os.read(handle, count)
        if not part:
            raise EOFError
        parts.append(part)
        count -= len(part)
    return b"".join(parts)
