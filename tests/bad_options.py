"""Bad command lines: every option of every command, derived from the Typer application, with values
that it must refuse.

A command of :data:`WORKING` is a command line that would work. One bad value at a time takes the
place of a good one, so that nothing else can be the reason for a refusal.
"""

from __future__ import annotations

import json
from collections.abc import Iterator
from dataclasses import dataclass
from inspect import signature
from pathlib import Path
from shutil import copy
from typing import Any

import numpy as np
from typer.main import get_command
from vdla.cli import run_app
from vdla.cli.app import app
from vdla.cli.files import Fills, Mark, Merges, Reads, Writes, marks
from vdla.compiler.choose.records import Key, Record, append
from vdla.isa.params import HwParams
from vdla.sim.coverage.coverage import Coverage

from .generation.tiny import random_weights, write_llama

DIGITS = Path(__file__).parents[1] / "examples" / "models" / "digits_int8.onnx"
FLOAT = DIGITS.with_name("digits_float.onnx")
LIBERTY = Path(__file__).parent / "hw" / "asic" / "small.lib"
SAMPLES = DIGITS.with_name("digits_test.npz")
#: Where the work of commands begins. What is wrong with options must have been said before.
WORK = (
    "vdla.module.Module.run", "vdla.runtime.bundle.save", "vdla.sim.verify.campaign.verify",
    "vdla.cli.cosim._design", "vdla.bench.table2._row", "vdla.bench.networks._row",
    "vdla.bench.cpu._row", "vdla.bench.speed._row", "vdla.bench.gpu._all_prepared",
    "vdla.bench.gpu._product_row", "vdla.bench.ablation._fusion_row",
    "vdla.bench.tables.make_table", "vdla.bench.tuning._replayed", "vdla.api.tuning._Tuning.run",
    "vdla.compiler.tune.together.Together.run",
    # The module that imports a function comes before the one that has it.
    "vdla.hw.fpga.sample.synthesise", "vdla.hw.fpga.synthesis.synthesise",
    "vdla.hw.asic.estimate.core_text", "vdla.hw.boards.pynq_z1.export",
    "vdla.compiler.quantize.flow.calibrate",
    "vdla.bench.sweep._measured", "vdla.explore.exploration.measure_points",
    "vdla.explore.replay.replay_rows", "vdla.soc.model.build_image",
)  # fmt: skip
#: What each command needs to work at all, by its words. A new command needs a line here.
WORKING: dict[str, tuple[str, ...]] = {
    "run": ("{model}",),
    "compile": ("{model}", "--output", "{new}"),
    "generate": ("{llama}", "--prompt", "the"),
    "verify": (),
    "cosim": ("{model}",),
    "coverage": ("{coverage}",),
    "quantize": ("{float_model}", "--samples", "{samples}", "--output", "{new}.onnx"),
    "tune": ("{model}",),
    "refine": ("{model}",),
    "records show": ("{records}",),
    "records best": ("{records}",),
    "records merge": ("{records}", "--output", "{new}.jsonl"),
    "sweep": ("{model}",),
    "explore": ("{spec}.toml",),
    "compare": ("{report}", "{report}"),
    "check": ("{program}",),
    "asm": ("{source}",),
    "disasm": ("{program}",),
    "config": (),
    "doctor": (),
    "bench table2": (),
    "bench networks": (),
    "bench roofline": ("--png", "{new}.png"),
    "bench cpu": (),
    "bench tokens": ("{llama}",),
    "bench speed": (),
    "bench tuning": (),
    "bench gpu": (),
    "bench gpu-products": (),
    "bench gpu-ablation": (),
    "bench explore": (),
    "bench quantised": (),
    "bench definition": (),
    "fpga estimate": ("--board", "ulx3s-85f"),
    "fpga build": ("--board", "ulx3s-85f"),
    "fpga table": ("--board", "ulx3s-85f"),
    "fpga sample": (),
    "fpga export": ("--output", "{new}"),
    "asic estimate": ("--liberty", "{liberty}"),
    "soc run": ("{model}",),
    "soc build": ("{model}", "--board", "ulx3s-85f"),
}
#: Values that text options must refuse, by their names. ``name`` is no target, no preset, no file.
#: A new text option needs a line here.
BAD_TEXTS: dict[str, tuple[str, ...]] = {
    "--target": ("name", "", "SIM", "sim,rtl"),
    "--against": ("name", "", "openvino"),
    "--port": ("/dev/null",),  # without --target fpga
    "--hw": ("name", "", "{missing}", "{folder}", "{garbage}", "{unknown_knob}", "{illegal}"),
    "--memory": ("name", "", "{missing}", "{folder}", "{garbage}", "{unknown_knob}"),
    "--shape": ("name", "", "=1", "image=1xq", "image=-1x2"),
    "--dim": ("name", "", "=1", "N=", "N=a", "N=0", "N=3..2", "N=1..2..3"),
    "--value": ("name", "", "=1", "image=", "image=a", "image={missing}.npy"),
    "--state": ("name", "", "=1", "image=name", "name=name"),
    "--prompt": ("", "the " * 300),
    "--triple": ("name", "", "vax-dec-ultrix"),
    "--method": ("name", "", "MINMAX"),
    "--layers": ("name", "C2,name", "c2"),
    "--layer": ("name", "", "c8", "C8,C9"),
    "--kinds": ("name", "int8,name", "INT8"),
    "--batches": ("name", "", "0", "1,x", "1.5", "-1", "99999"),
    "--sizes": ("name", "", "0", "1,x", "1.5", "-1", "99999"),
    "--contexts": ("name", "", "0", "1,x", "1.5", "-1", "99999"),
    "--weight-bits": ("name", "", "0", "8,x", "1.5", "-1", "9", "3"),
    "--precision": ("name", "", "float64"),
    "--arch": ("name", "", "sm_70"),
    "--peers": ("name", "torch,name"),
    "--models": ("name", "resnet18,name"),
    "--ops": ("name", "C2,name"),
    "--board": ("name", ""),
    "--pauses": ("name", "", "light"),  # light without --axi-ram
    "--on": ("name", ""),
    "--replace": ("name", "gemm", "gemm={missing}", "name={garbage}", "=", ""),
    "--record": ("name", "gemm", "gemm={folder}", "name={new}", "gemm={missing}/x", "="),
    "model": ("name", "", "{missing}", "{folder}", "{garbage}", "{empty}", "{list}", "C99"),
    "--tuner": ("name", "", "XGB"),
    "--scheduler": ("name", "", "tcp://", "127.0.0.1", "tcp://host:port"),
    "--template": ("name", ""),
    "--make": ("name", "C8,name"),
    "--machines": ("name", "8x8,name"),
    "--memories": ("name", "vta,name"),
    "--explorers": ("name", "xgb,name"),
    "--methods": ("name", "tpe,name"),
    "models": ("name", "", "{missing}", "{folder}", "{garbage}", "{empty}", "{list}", "C99"),
    "--set": ("name", "", "acc_depth", "acc_depth=", "acc_depth=x", "wings=1", "acc_depth=1,,2"),
    "--json": ("{folder}", "{missing}/x.json", "{garbage}/x.json", "/proc/x.json"),
    "hw": ("name", "", "{missing}", "{folder}", "{garbage}", "{unknown_knob}", "{illegal}"),
}
#: Files that look wrong and are not: no records, no instructions.
FITTING = {
    ("--records", "{empty}"), ("source", "{empty}"), ("files", "{empty}"), ("--knobs", "{object}"),
}  # fmt: skip
#: Files that an option must refuse besides those that all must.
BAD_FILES = {"--liberty": ("{flopless}", "{cut}", "{spec}.toml"), "--macros": ("{wrong_key}",)}
NO_NUMBERS = ("", "x", "1e", "0x10", "one", "1,5", "nan", "inf", "--1")
NO_INTEGERS = (*NO_NUMBERS, "1.5", "1e3")


@dataclass(frozen=True)
class Option:
    """An option or argument of a command."""

    command: str
    name: str
    parameter: Any
    mark: Mark | None

    @property
    def is_argument(self) -> bool:
        """Whether it has no dashes."""
        return not self.name.startswith("-")


def commands() -> dict[str, Any]:
    """All commands of the application, by their words."""
    found = {}

    def visit(command: Any, words: tuple[str, ...]) -> None:
        if hasattr(command, "commands"):
            for name, inner in command.commands.items():
                visit(inner, (*words, name))
        else:
            found[" ".join(words)] = command

    visit(get_command(app), ())
    return found


def options() -> Iterator[Option]:
    """Every option and argument of every command."""
    for words, command in commands().items():
        marked = marks(command.callback)
        assert set(marked) <= set(signature(command.callback).parameters)
        for parameter in command.params:
            if parameter.name == "help":
                continue
            name = parameter.opts[0]
            yield Option(words, name, parameter, marked.get(parameter.name))


def files(folder: Path) -> dict[str, str]:
    """Makes the files that command lines name, and returns their paths by name."""
    made = {name: folder / name for name in ("garbage", "folder", "missing", "new")}
    made["garbage"].write_bytes(b"\xff\xfe garbage \x00\x01")
    made["folder"].mkdir()
    texts = {
        "unknown_knob.toml": "wings = 2\n", "illegal.toml": "block_in = 5\n",
        "source.asm": "load memory=inp base=0 dram_addr=0x0 x_size=4\n",
        "list.json": "[1, 2]\n", "object.json": "{}\n", "empty": "",
    }  # fmt: skip
    for name, text in texts.items():
        made[name.partition(".")[0]] = folder / name
        (folder / name).write_text(text)
    np.savez(folder / "other.npz", other=np.zeros(3), another=np.zeros(3))
    made |= {
        "other": folder / "other.npz",
        "model": copy(DIGITS, folder),  # copies: some command may well write to them
        "float_model": copy(FLOAT, folder),
        "samples": copy(SAMPLES, folder),
    }
    made["llama"] = write_llama(folder / "llama.gguf", random_weights())
    made["program"] = folder / "program.vdla"
    command = ["asm", str(made["source"]), "-o", str(made["program"]), "--json"]
    assert run_app([*command, str(folder / "asm.json")]) == 0
    made["records"] = folder / "records.jsonl"
    append(made["records"], [Record(Key("accel", "0 {}", "conv", "{}"), {"tile": 1}, 5.0)])
    made["coverage"], made["report"] = folder / "coverage.json", folder / "report.json"
    made["spec"] = folder / "spec"
    (folder / "spec.toml").write_text(
        f'objectives = ["cycles"]\nknobs.acc_depth = [512, 1024]\n[networks]\n"{DIGITS}" = 1\n'
    )
    liberty = LIBERTY.read_text()
    made["liberty"] = copy(LIBERTY, folder)
    macro = "words = 8, bits = 8, ports = 1"
    others = {
        "flopless.lib": liberty.replace("clocked_on", "unclocked"), "cut.lib": liberty[:-40],
        "wrong_key.toml": f'name = "a"\norigin = "b"\nvoltage = 1\nmacro = [{{{macro}}}]\n',
    }  # fmt: skip
    for name, text in others.items():
        made[name.partition(".")[0]] = folder / name
        (folder / name).write_text(text)
    Coverage(HwParams()).save(made["coverage"])
    layers = [{"name": "one", "cycles": 1}]
    report = {"command": "run", "model_sha256": "0", "model": "m", "layers": layers}
    made["report"].write_text(json.dumps(report))
    return {name: str(path) for name, path in made.items()}


def bad_values(option: Option) -> tuple[str, ...]:
    """Values that an option must refuse, with names of files in braces."""
    kind = option.parameter.type_descriptor.annotation
    match option.mark:
        case Reads():
            none = ("{missing}", "{missing}/x", "{garbage}/x", "/proc/self/mem", "{folder}", "")
            others = (value for value in ("{garbage}", "{empty}", "{list}", "{object}", "{other}"))
            others = (*others, *BAD_FILES.get(option.name, ()))
            return (*none, *(v for v in others if (option.name, v) not in FITTING))
        case Writes(suffix=suffix):
            values = (f"{{missing}}/x{suffix}", "{folder}", f"{{garbage}}/x{suffix}")
            return (*values, f"/proc/x{suffix}", *(("{new}.wrong", "{new}") if suffix else ()))
        case Merges():
            return ("{folder}", "{missing}/x", "{garbage}/x", "/proc/x", "{garbage}")
        case Fills():
            return ("{garbage}", "{garbage}/x", "/proc/x")
    if kind is bool:
        return ("=yes",)
    if kind is int or kind is float:
        bounds = [getattr(option.parameter.type_descriptor.parameter_info, b) for b in _BOUNDS]
        outside = [str(b + step) for b, step in zip(bounds, (-1, 1), strict=True) if b is not None]
        return (*(NO_INTEGERS if kind is int else NO_NUMBERS), *outside, str(10**30), "-1")
    assert kind is not Path, f"{option}: a path needs a mark of cli/files.py"
    assert option.name in BAD_TEXTS, f"{option}: name texts that it must refuse in BAD_TEXTS"
    return BAD_TEXTS[option.name]


_BOUNDS = ("min", "max")


def command_lines() -> Iterator[tuple[str, ...]]:
    """Bad command lines, with names of files in braces."""
    for words, command in commands().items():
        yield from _misshapen(words, command)
    for option in options():
        for value in bad_values(option):
            yield with_value(option, value)


def _misshapen(words: str, command: Any) -> Iterator[tuple[str, ...]]:
    """Unknown and missing options and arguments."""
    working = (*words.split(), *WORKING[words])
    yield (*working, "--name")
    yield (*working, "-")
    yield (*working, "-Z", "1")
    if not any(parameter.nargs == -1 for parameter in command.params):
        yield (*working, *["one", "two", "three"])
    if any(parameter.required for parameter in command.params):
        yield tuple(words.split())
    for parameter in command.params:
        if parameter.opts[0].startswith("--") and not getattr(parameter, "is_flag", False):
            yield (*working, parameter.opts[0])


def with_value(option: Option, value: str) -> tuple[str, ...]:
    """The working command line of a command, with a value of an option or of its first argument."""
    words, working = option.command.split(), list(WORKING[option.command])
    if value == "=yes":
        return (*words, *working, f"{option.name}=yes")
    for name in option.parameter.opts:
        if name in working:
            at = working.index(name)
            return (*words, *working[: at + 1], value, *working[at + 2 :])
    if not option.is_argument:
        return (*words, *working, option.name, value)
    has_argument = bool(working) and not working[0].startswith("-")
    return (*words, value, *(working[1:] if has_argument else working))
