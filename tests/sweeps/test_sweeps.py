"""The runner of the long checks, on a repository whose Makefile has targets that only pretend."""

from __future__ import annotations

import json
import subprocess
from pathlib import Path

import pytest

from .__main__ import FOLDER, SWEEPS, main, read_tree

ROOT = Path(__file__).resolve().parents[2]
#: Every target adds its name to a list outside of the repository; ``gates`` fails while a file says
#: so, and ``board`` changes the tree.
MAKEFILE = """\
FUZZ ?= 2000
{all}:
\t@echo $@ >> ../ran
\t@echo output of $@, $(FUZZ)
gates:
\t@echo $@ >> ../ran
\t@test ! -e ../broken
board:
\t@echo $@ >> ../ran
\t@echo more >> tracked
"""


def git(root: Path, *arguments: str) -> None:
    identity = ["-c", "user.name=nobody", "-c", "user.email=nobody@localhost"]
    subprocess.run(["git", *identity, *arguments], cwd=root, check=True, capture_output=True)


@pytest.fixture
def root(tmp_path: Path) -> Path:
    """A repository with one commit."""
    root = tmp_path / "repository"
    root.mkdir()
    plain = [name for name in SWEEPS if name not in ("gates", "board")]
    (root / "Makefile").write_text(MAKEFILE.format(all=" ".join(plain)))
    (root / ".gitignore").write_text(".vdla/\n")
    (root / "tracked").write_text("once\n")
    git(root, "init")
    git(root, "add", ".")
    git(root, "commit", "-m", "first")
    return root


def ran(root: Path) -> list[str]:
    """The targets that ran since this was asked last."""
    path = root.parent / "ran"
    names = path.read_text().split() if path.exists() else []
    path.unlink(missing_ok=True)
    return names


def test_every_sweep_is_a_target_of_the_makefile() -> None:
    makefile = (ROOT / "Makefile").read_text()
    for name in SWEEPS:
        assert f"\n{name}: " in makefile, name


def test_what_passed_is_not_run_again(
    root: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("FUZZ", "1")
    monkeypatch.setenv("MAKEFLAGS", " -- FUZZ=2")
    monkeypatch.setenv("MAKELEVEL", "1")
    assert main(["operators", "fuzz"], root) == 0
    assert ran(root) == ["fuzz", "operators"], "in the order of the table"
    commit = read_tree(root).commit
    folder = root / FOLDER / commit
    assert (folder / "fuzz.txt").read_text() == "output of fuzz, 2000\n"
    state = json.loads((folder / "state.json").read_text())
    assert {name: fields["result"] for name, fields in state.items()} == {
        "fuzz": "passed", "operators": "passed",
    }  # fmt: skip
    shown = capsys.readouterr().out
    (line,) = (line for line in shown.splitlines() if "fuzz" in line and "│" in line)
    assert "passed" in line and commit[:10] in line and " 0.0 " in line
    assert sum("never run" in line for line in shown.splitlines()) == len(SWEEPS) - 2

    assert main(["fuzz", "schedules"], root) == 0
    assert ran(root) == ["schedules"]
    assert main(["fuzz", "--again"], root) == 0
    assert ran(root) == ["fuzz"]


def test_another_commit_is_checked_anew(root: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["fuzz"], root) == 0
    before = read_tree(root).commit
    git(root, "commit", "--allow-empty", "-m", "second")
    assert main(["operators"], root) == 0
    assert before[:10] in capsys.readouterr().out, "the table says on which commit fuzz passed"
    assert main(["fuzz"], root) == 0
    assert ran(root) == ["fuzz", "operators", "fuzz"]


def test_a_failure_is_run_again_and_holds_up_nothing(
    root: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    (root.parent / "broken").touch()
    assert main(["gates", "figures"], root) == 1
    assert "failed" in capsys.readouterr().out
    assert ran(root) == ["gates", "figures"]
    (root.parent / "broken").unlink()
    assert main(["gates", "figures"], root) == 0
    assert ran(root) == ["gates"]


def test_a_dirty_tree_is_never_remembered(root: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (root / "untracked").touch()
    for _ in range(2):
        assert main(["fuzz"], root) == 0
        assert "and changes" in capsys.readouterr().out
    assert ran(root) == ["fuzz", "fuzz"]
    (root / "untracked").unlink()
    assert main(["fuzz"], root) == 0
    assert ran(root) == ["fuzz"]


def test_a_tree_that_changes_meanwhile(root: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["board"], root) == 1
    assert "board: changed in" in capsys.readouterr().out
    git(root, "checkout", "tracked")
    assert main(["board"], root) == 1
    assert ran(root) == ["board", "board"]


def test_an_interruption(root: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """What ended before is kept, what was cut off is not."""
    from . import __main__ as sweeps

    original = sweeps.read_tree

    def interrupt(root: Path):
        if (root.parent / "ran").exists() and "mutants" in (root.parent / "ran").read_text():
            raise KeyboardInterrupt
        return original(root)

    monkeypatch.setattr(sweeps, "read_tree", interrupt)
    assert main(["verify", "mutants", "fuzz"], root) == 1
    assert ran(root) == ["verify", "mutants"]
    monkeypatch.setattr(sweeps, "read_tree", original)
    assert main(["verify", "mutants", "fuzz"], root) == 0
    assert ran(root) == ["mutants", "fuzz"]


def test_an_unknown_name(root: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["fuzzz"], root) == 2
    assert "NAME: expected one of more, programs, lattice, verify" in capsys.readouterr().err
    assert ran(root) == []
