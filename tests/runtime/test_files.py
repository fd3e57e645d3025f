"""Files that are written whole or not at all."""

from __future__ import annotations

import resource
import subprocess
import sys
from pathlib import Path

import pytest
from vdla.cli import run_app
from vdla.runtime.files import check_writable, whole_file

VDLA = [sys.executable, "-m", "vdla"]


def test_a_file_is_replaced_when_all_of_it_is_there(tmp_path: Path) -> None:
    path = tmp_path / "x.txt"
    path.write_text("before")
    with whole_file(path) as place:
        place.write_text("after")
        assert path.read_text() == "before" and place.suffix == ".txt"
    assert path.read_text() == "after"
    assert [*tmp_path.iterdir()] == [path]


@pytest.mark.parametrize("before", [None, "before"])
def test_an_error_leaves_what_was_there(before: str | None, tmp_path: Path) -> None:
    path = tmp_path / "x.txt"
    if before is not None:
        path.write_text(before)
    with pytest.raises(RuntimeError), whole_file(path) as place:
        place.write_text("half")
        raise RuntimeError
    assert (path.read_text() if path.exists() else None) == before
    assert [*tmp_path.iterdir()] == ([path] if before else [])


def test_a_link_stays_a_link(tmp_path: Path) -> None:
    (tmp_path / "real").write_text("before")
    link = tmp_path / "link"
    link.symlink_to("real")
    with whole_file(link) as place:
        place.write_text("after")
    assert link.is_symlink() and (tmp_path / "real").read_text() == "after"


def test_errors_name_the_file_that_was_asked_for(tmp_path: Path) -> None:
    path = tmp_path / "absent" / "x"
    with pytest.raises(FileNotFoundError) as found:
        check_writable(path)
    assert found.value.filename == str(path)
    check_writable(tmp_path / "x")
    assert [*tmp_path.iterdir()] == []


@pytest.mark.slow
def test_a_full_disk_in_one_line(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert run_app(["config", "--json", "/dev/full"]) == 2
    assert capsys.readouterr().err == "vdla: /dev/full: No space left on device\n"
    with Path("/dev/full").open("w") as full:
        done = subprocess.run([*VDLA, "config"], stdout=full, stderr=subprocess.PIPE, text=True)
    assert done.returncode == 2
    assert done.stderr == "vdla: No space left on device\n"


@pytest.mark.slow
def test_a_file_that_grows_too_large_is_not_there(tmp_path: Path) -> None:
    """As on a disk that becomes full while the file is written."""
    path = tmp_path / "x.json"
    path.write_text("before")
    done = subprocess.run(
        [*VDLA, "config", "--json", str(path)], capture_output=True, text=True,
        preexec_fn=lambda: resource.setrlimit(resource.RLIMIT_FSIZE, (100, 100)),
    )  # fmt: skip
    assert (done.returncode, done.stdout) == (2, "")
    assert done.stderr == f"vdla: {path}: File too large\n"
    assert path.read_text() == "before" and [*tmp_path.iterdir()] == [path]
