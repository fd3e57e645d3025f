"""What all tests share: golden files and Hypothesis settings."""

from __future__ import annotations

import gc
from collections import Counter
from collections.abc import Callable, Iterator, Mapping
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import settings
from vdla import plugins
from vdla.compiler.targets.common import cache as kept

from .processors import DEFAULT, FEATURES, on_processor, on_this_machine, was_asked
from .suite.summary import write_asking, write_summary

#: Of the generator of each module of tests, by the module's name.
_FIRST_STATES: dict[str, Mapping[str, Any]] = {}

ROOT = Path(__file__).resolve().parent.parent

# The fixture ``vdla_rtl``.
pytest_plugins = ["vdla.cosim.pytest_plugin"]

# Machines differ in speed by more than any deadline could say.
settings.register_profile("vdla", deadline=None, print_blob=True)
settings.load_profile("vdla")


class RootIsNoTestPackage:
    """The repository's root is the package ``vdla``, which pytest would import a second time, under
    the name of the folder, as a package of tests.
    """

    @pytest.hookimpl
    def pytest_collect_directory(self, path: Path, parent: pytest.Collector) -> pytest.Dir | None:
        """A plain folder in place of a package, for the root only."""
        return pytest.Dir.from_parent(parent, path=path) if path == ROOT else None


#: Closed when pytest ends.
_PROCESSOR = ExitStack()


def pytest_configure(config: pytest.Config) -> None:
    """As a plugin, because hooks of this file see only what lies below it. The processor is assumed
    before tests are collected: modules of tests ask for it.
    """
    config.pluginmanager.register(RootIsNoTestPackage())
    _PROCESSOR.enter_context(on_processor(config.getoption("--processor")))


def pytest_terminal_summary(terminalreporter: pytest.TerminalReporter) -> None:
    """For the sentence at the end of ``make test``."""
    write_summary(terminalreporter.stats)


def pytest_unconfigure() -> None:
    """The machine as it is."""
    _PROCESSOR.close()


def pytest_collection_finish() -> None:
    """Python's search for cycles would take a tenth of the time. It comes less often, and leaves
    out the modules and tests, which stay until the end."""
    gc.collect()
    gc.freeze()
    gc.set_threshold(100_000, 20, 50)


def pytest_generate_tests(metafunc: pytest.Metafunc) -> None:
    """A test marked ``each_processor`` runs for each one, or for one that was asked for."""
    if metafunc.definition.get_closest_marker("each_processor") is not None:
        asked = metafunc.config.getoption("--processor")
        names = list(FEATURES) if asked == DEFAULT else [asked]
        metafunc.parametrize("processor_of_test", names, indirect=True)


@pytest.hookimpl(wrapper=True)
def pytest_make_collect_report(collector: pytest.Collector) -> Iterator[None]:
    """A module may ask for the processor when it is imported."""
    was_asked()
    report = yield
    if was_asked():
        write_asking(collector.path)
    return report


@pytest.hookimpl(wrapper=True)
def pytest_runtest_protocol(item: pytest.Item) -> Iterator[None]:
    """Tests that never ask for the processor need no other one (``python -m tests.suite``)."""
    was_asked()
    result = yield
    if was_asked():
        write_asking(item.path)
    return result


@pytest.fixture(autouse=True)
def processor_of_test(request: pytest.FixtureRequest) -> Iterator[None]:
    """The processor that a test believes to run on: that of ``--processor``, another one of
    ``processors.py``, or, for a test marked ``this_machine``, the machine's.
    """
    if request.node.get_closest_marker("this_machine") is not None:
        with on_this_machine():
            yield
    elif (name := getattr(request, "param", None)) is not None:
        with on_processor(name):
            yield
    else:
        yield


@pytest.hookimpl(tryfirst=True)  # before ``-m`` looks at the markers
def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Mark as ``slow`` what follows the first ``n`` cases of a test marked ``fast(n)``, and as
    ``more`` what follows those of one marked ``short(n)``; begin with the files that have slow
    tests, so that no process is left with a long one at the end.
    """
    cases: Counter[str] = Counter()
    for item in items:
        test, _, _ = item.nodeid.partition("[")
        cases[test] += 1
        for few, marker in (("fast", "slow"), ("short", "more")):
            mark = item.get_closest_marker(few)
            if mark is not None and cases[test] > mark.args[0]:
                item.add_marker(marker)
    slow = {item.path for item in items if item.get_closest_marker("slow") is not None}
    items.sort(key=lambda item: item.path not in slow)


def pytest_addoption(parser: pytest.Parser) -> None:
    """``--update-golden`` writes golden files instead of comparing with them."""
    parser.addoption("--update-golden", action="store_true", help="write golden files anew")
    parser.addoption(
        "--processor", choices=list(FEATURES), default=DEFAULT, help="the one that tests run for"
    )


@pytest.fixture(autouse=True)
def numbers_begin_anew(request: pytest.FixtureRequest) -> None:
    """A test draws the same numbers whichever tests ran before it: the generator that its module
    calls ``RNG`` begins anew."""
    rng: np.random.Generator | None = getattr(request.module, "RNG", None)
    if rng is not None:
        name = request.module.__name__
        rng.bit_generator.state = _FIRST_STATES.setdefault(name, rng.bit_generator.state)


@pytest.fixture(autouse=True)
def programs_are_compiled(monkeypatch: pytest.MonkeyPatch) -> None:
    """No test takes a program, or choices for one, that were made before it, or keeps any: tests
    may replace functions of the compiler, or watch them. The names of these files begin alike.
    """
    read, keep = kept.read, kept.keep

    def read_code(place: Path) -> kept.Kept | None:
        return None if place.name.startswith("program_") else read(place)

    def keep_code(place: Path, result: kept.Kept, seconds: float) -> None:
        if not place.name.startswith("program_"):
            keep(place, result, seconds)

    monkeypatch.setattr(kept, "read", read_code)
    monkeypatch.setattr(kept, "keep", keep_code)


@pytest.fixture
def nothing_stays(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """No plugin is loaded before a test, and what it has added is taken back after it."""
    monkeypatch.setattr(plugins, "_loaded", {})
    monkeypatch.setenv(plugins.VARIABLE, "")
    yield
    for plugin in reversed(plugins.loaded()):
        plugin.additions.take_back()


@pytest.fixture
def golden(request: pytest.FixtureRequest) -> Callable[[str, str], None]:
    """``golden(name, text)``: text equals the file ``golden/name`` beside the test."""

    def compare(name: str, text: str) -> None:
        path = request.path.parent / "golden" / name
        if request.config.getoption("--update-golden"):
            path.parent.mkdir(exist_ok=True)
            path.write_text(text)
        assert path.exists(), f"{path} is missing: run pytest with --update-golden"
        assert text == path.read_text(), f"{path} differs: run pytest with --update-golden"

    return compare
