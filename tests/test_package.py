"""Packaging: what is packed, that a wheel works on its own, that nothing else is installed."""

from __future__ import annotations

import importlib
import subprocess
import sys
import tarfile
import tomllib
import zipfile
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parent.parent
ROOMS = (
    "isa", "runtime", "hw", "sim", "compiler", "report", "cosim", "pages", "api", "bench",
    "explore", "cli", "generation", "soc",
)  # fmt: skip
#: The modules of the package's root; each of them is meant to be there.
ROOT_MODULES = {"__init__", "__main__", "_version", "module", "plugins"}


def project() -> dict:
    """pyproject.toml."""
    return tomllib.loads((ROOT / "pyproject.toml").read_text())


def python_folders() -> set[str]:
    """Every folder of the rooms that holds Python files, as a package name."""
    folders = {path.parent for room in ROOMS for path in (ROOT / room).rglob("*.py")}
    return {"vdla"} | {".".join(("vdla", *f.relative_to(ROOT).parts)) for f in folders}


def test_the_list_of_packages_is_complete() -> None:
    assert set(project()["tool"]["setuptools"]["packages"]) == python_folders()


def test_every_package_says_what_it_is() -> None:
    for package in python_folders():
        init = ROOT.joinpath(*package.split(".")[1:], "__init__.py")
        assert init.is_file(), f"{init} is missing"
        assert init.read_text().startswith('"""'), f"{init} has no docstring"


def test_the_root_holds_only_its_modules() -> None:
    assert {path.stem for path in ROOT.glob("*.py")} == ROOT_MODULES


def test_every_dependency_is_pinned_and_explained() -> None:
    lines = (ROOT / "pyproject.toml").read_text().splitlines()
    metadata = project()["project"]
    extras = metadata["optional-dependencies"]
    assert set(extras) == {
        "rtl", "fpga", "cosim", "tune", "explore", "opencl", "cuda", "torch", "docs", "dev",
        "treernn", "keras", "tensorflow", "jax", "doors", "llm", "soc",
    }  # fmt: skip
    for requirement in [*metadata["dependencies"], *(r for rs in extras.values() for r in rs)]:
        assert "~=" in requirement, f"{requirement} has no compatible pin"
        line = next(line for line in lines if f'"{requirement}"' in line)
        assert requirement.startswith("pytest~=") or "# " in line, f"{requirement}: say why"


def test_the_public_names_exist() -> None:
    vdla = importlib.import_module("vdla")
    for name in vdla.__all__:
        assert getattr(vdla, name) is not None
    with pytest.raises(AttributeError, match="nothing"):
        _ = vdla.nothing


def copy_sources(target: Path) -> Path:
    """What git tracks or would track, so that building leaves nothing behind in the checkout."""
    listing = subprocess.run(
        ["git", "ls-files", "--cached", "--others", "--exclude-standard"],
        cwd=ROOT, capture_output=True, text=True,
    )  # fmt: skip
    if listing.returncode:
        pytest.skip("not a git checkout, so there is no list of the sources")
    for name in listing.stdout.splitlines():
        source, copy = ROOT / name, target / name
        if source.is_file():
            copy.parent.mkdir(parents=True, exist_ok=True)
            copy.write_bytes(source.read_bytes())
    return target


@pytest.fixture(scope="module")
def built(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with the source distribution, and the wheel that was built from it."""
    sources = copy_sources(tmp_path_factory.mktemp("sources"))
    out = tmp_path_factory.mktemp("dist")
    command = [sys.executable, "-m", "build", "--outdir", str(out), str(sources)]
    result = subprocess.run(command, capture_output=True, text=True)
    assert result.returncode == 0, result.stdout[-2000:] + result.stderr[-2000:]
    return out


@pytest.mark.more
@pytest.mark.slow
def test_the_wheel_holds_vdla_and_nothing_else(built: Path) -> None:
    (wheel,) = built.glob("*.whl")
    names = [name for name in zipfile.ZipFile(wheel).namelist() if not name.endswith("/")]
    assert {name.partition("/")[0].partition("-")[0] for name in names} == {"vdla"}
    packed = {name for name in names if name.startswith("vdla/")}
    expected = {"vdla/py.typed"} | {f"vdla/{name}.py" for name in ROOT_MODULES}
    for room in ROOMS:
        files = [path for path in (ROOT / room).rglob("*") if path.is_file()]
        expected |= {f"vdla/{p.relative_to(ROOT)}" for p in files if p.suffix != ".pyc"}
    assert packed == expected


@pytest.mark.more
@pytest.mark.slow
def test_the_source_distribution_builds_and_holds_the_licence(built: Path) -> None:
    (archive,) = built.glob("*.tar.gz")
    with tarfile.open(archive) as opened:
        names = {name.partition("/")[2] for name in opened.getnames()}
    assert {"LICENSE", "README.md", "pyproject.toml", "__init__.py", "isa/params.py"} <= names


@pytest.mark.more
@pytest.mark.slow
def test_the_wheel_works_alone(built: Path, tmp_path: Path) -> None:
    """Installed in a virtual environment of its own, away from the checkout; what it depends on
    comes from this interpreter's packages, all but vdla itself.
    """
    (wheel,) = built.glob("*.whl")
    environment = tmp_path / "venv"
    subprocess.run([sys.executable, "-m", "venv", "--without-pip", str(environment)], check=True)
    python = environment / "bin" / "python"
    install = [sys.executable, "-m", "pip", "--python", str(python), "install", "--quiet"]
    subprocess.run([*install, "--no-deps", "--no-index", str(wheel)], check=True)
    site = next((environment / "lib").glob("python*/site-packages"))
    assert {p.name.partition("-")[0] for p in site.iterdir() if p.name[0] != "_"} == {"vdla"}
    numpy = importlib.import_module("numpy")
    dependencies = Path(numpy.__file__).parent.parent
    (tmp_path / "hw").mkdir()  # a user's own folder of that name must not shadow ours
    code = (
        f"import sys; sys.path.append({str(dependencies)!r}); import vdla.cli; print(vdla.__file__)"
    )
    shown = subprocess.run(
        [str(python), "-c", code], cwd=tmp_path, capture_output=True, text=True, check=True
    )
    assert Path(shown.stdout.strip()).is_relative_to(site)
    command = subprocess.run(
        [str(environment / "bin" / "vdla"), "config", "4x4", "--json", "-"],
        cwd=tmp_path, capture_output=True, text=True, env={"PYTHONPATH": str(dependencies)},
    )  # fmt: skip
    assert command.returncode == 0, command.stderr
    assert '"block_in": 4' in command.stdout
