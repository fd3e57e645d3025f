"""Every option of every command with values that it must refuse: exit code 2, one line on standard
error, nothing else.
"""

from __future__ import annotations

import os
from contextlib import suppress
from pathlib import Path

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from vdla.cli import run_app

from .bad_options import (
    WORK,
    WORKING,
    bad_values,
    command_lines,
    commands,
    files,
    options,
    with_value,
)

#: Bad command lines that there are at least.
LEAST = 400


class WorkBegan(Exception):
    """A command has taken all its options and begins with its work."""


def begin(*_arguments: object, **_options: object) -> None:
    """In the place of a command's work."""
    raise WorkBegan


@pytest.fixture
def made(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> dict[str, str]:
    """Files for command lines, in the folder where the commands run; they do not come to work."""
    made = files(tmp_path)
    monkeypatch.chdir(tmp_path)
    for function in WORK:
        monkeypatch.setattr(function, begin)
    return made


def complaint(line: tuple[str, ...], made: dict[str, str], capsys) -> str | None:
    """What is wrong with the answer to a bad command line; None if nothing is."""
    capsys.readouterr()
    before = sorted(Path.cwd().rglob("*"))
    arguments = [text.format_map(made) if "{" in text else text for text in line]
    try:
        code = run_app(arguments)
    except Exception as error:  # a traceback for the user
        return f"{line}: {type(error).__name__}: {error}"
    out, err = capsys.readouterr()
    if code != 2 or out or err.count("\n") != 1 or not err.startswith("vdla: "):
        return f"{line}: code {code}, output {out[:200]!r}, error {err[:300]!r}"
    # A line names the file that is wrong, unless it asks for another option first.
    if made["garbage"] in arguments and "garbage" not in err and "expected --" not in err:
        return f"{line}: does not name the file, {err[:300]!r}"
    if sorted(Path.cwd().rglob("*")) != before:
        return f"{line}: left {set(Path.cwd().rglob('*')) - {*before}}"
    return None


@pytest.mark.slow
def test_every_command_and_option_is_in_the_table() -> None:
    """A new command needs a line of WORKING, a new text option one of BAD_TEXTS, a path a mark."""
    assert set(WORKING) == set(commands())
    assert all(bad_values(option) for option in options())
    assert len(set(command_lines())) >= LEAST


@pytest.mark.sweep
@pytest.mark.parametrize("command", WORKING)
def test_bad_options_get_one_line(command: str, made: dict[str, str], capsys) -> None:
    words = command.split()
    lines = [line for line in command_lines() if list(line[: len(words)]) == words]
    wrong = [found for line in lines if (found := complaint(line, made, capsys))]
    assert not wrong, f"{len(wrong)} of {len(lines)}:\n" + "\n".join(wrong)


@pytest.mark.more
def test_good_options_come_to_work(made: dict[str, str], capsys) -> None:
    """The command lines that bad values are put into are good ones: what else would a refusal of
    them say?
    """
    for words, working in WORKING.items():
        line = [*words.split(), *(text.format_map(made) for text in working)]
        with suppress(WorkBegan):
            assert run_app(line) == 0, (line, capsys.readouterr())


NAMED = ("{garbage}", "{folder}", "{missing}", "{empty}", "{list}", "{model}", "{other}")
NAMED += ("{float_model}", "{samples}", "{program}", "{source}", "{coverage}", "{report}", "{new}")
NAMED += ("{new}.onnx", "{new}.png")
TEXTS = st.one_of(
    st.text(max_size=20),
    st.integers().map(str),
    st.floats().map(str),
    st.sampled_from(["-", "--", "=", "1e400", "C2", "gemm", "0", "16x16", "rtl", "/", "/proc"]),
    st.sampled_from(NAMED[:7]),
)


@pytest.mark.sweep
@settings(
    max_examples=int(os.environ.get("VDLA_FUZZ", "5000")),
    suppress_health_check=[HealthCheck.function_scoped_fixture],
)
@given(option=st.sampled_from(list(options())), value=TEXTS)
def test_any_text_is_taken_or_refused_in_one_line(option, value, made, capsys) -> None:
    """Whatever stands in an option: the work begins, or one line says what is wrong."""
    words = with_value(option, value)
    arguments = [text.format_map(made) if text in NAMED else text for text in words]
    capsys.readouterr()
    before = {*Path.cwd().rglob("*")}
    try:
        code = run_app(arguments)
    except WorkBegan:
        return
    out, err = capsys.readouterr()
    if code == 2:
        assert not out and err.count("\n") == 1 and err.startswith("vdla: "), (arguments, out, err)
        assert {*Path.cwd().rglob("*")} == before
    elif code == 1:  # a design that does not fit its device is no bad option
        assert err.count("\n") == 1 and "capacity is missed" in err, (arguments, out, err)
    else:
        assert code == 0 and not err, (arguments, code, err)
