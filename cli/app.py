"""The Typer application: the list of commands, their option ``--plugin``, and what the user sees of
an error.
"""

from __future__ import annotations

import os
import sys
from collections.abc import Callable
from functools import wraps
from inspect import Parameter, signature
from pathlib import Path
from typing import Annotated, Any, get_type_hints

import typer

from .. import plugins
from .._version import __version__
from ..isa.errors import VdlaError
from . import asic, bench, fpga, soc
from .compare import compare
from .cosim import cosim
from .coverage import coverage
from .doctor import EXTRAS as doctor_extras
from .doctor import doctor
from .explore import explore
from .files import Reads, checked
from .generate import generate
from .programs import asm, check, config, disasm
from .quantize import quantize
from .run import compile_model, run
from .sweep import sweep
from .tune import records_app, refine, tune
from .verify import verify

#: The commands by name, in the order of ``vdla --help``.
COMMANDS = {
    "run": run,
    "compile": compile_model,
    "generate": generate,
    "verify": verify,
    "cosim": cosim,
    "coverage": coverage,
    "quantize": quantize,
    "tune": tune,
    "refine": refine,
    "sweep": sweep,
    "explore": explore,
    "compare": compare,
    "check": check,
    "asm": asm,
    "disasm": disasm,
    "config": config,
    "doctor": doctor,
}
#: Commands that have commands of their own.
GROUPS = {
    "bench": bench.app, "fpga": fpga.app, "asic": asic.app, "soc": soc.app, "records": records_app,
}  # fmt: skip
#: The extra of pyproject.toml that brings each optional module; ``vdla doctor`` looks for some.
EXTRAS = {module: extra for extra, (_, modules) in doctor_extras.items() for module in modules} | {
    "cocotb_tools": "cosim", "optuna": "explore", "distributed": "tune", "xgboost": "tune",
    "jax": "treernn", "optax": "treernn", "pyopencl": "opencl",
}  # fmt: skip


def run_app(args: list[str]) -> int:
    """Run one command line and return its exit code.

    Raises KeyboardInterrupt, or returns 130, after Ctrl-C.
    """
    try:
        code = int(app(args, prog_name="vdla", standalone_mode=False) or 0)
        sys.stdout.flush()  # what cannot be written is found here, not when Python ends
        return code
    except typer.TyperException as error:
        message = error.format_message()
    except VdlaError as error:
        message = str(error)
    except BrokenPipeError:
        _give_up_stdout()  # nobody reads any more
        return 2
    except OSError as error:
        message = _os_message(error)
        _give_up_stdout()
    except typer.Abort:
        raise KeyboardInterrupt from None
    except ImportError as error:
        message = _missing_package(error)
    except Exception as error:
        fault = plugins.find_fault(error)
        if fault is None:
            raise
        message = fault
    print(f"vdla: {' '.join(message.split())}", file=sys.stderr)
    return 2


def _give_up_stdout() -> None:
    """Drop what standard output does not take, which Python would complain about at its end."""
    try:
        sys.stdout.flush()
    except OSError:
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())


def _os_message(error: OSError) -> str:
    where = f"{error.filename}: " if error.filename else ""
    return f"{where}{error.strerror or error}"


def _missing_package(error: ImportError) -> str:
    """Name the extra to install. Any other import that fails is a bug and keeps its traceback."""
    package = (error.name or "").partition(".")[0]
    if package not in EXTRAS:
        raise error
    return (
        f"this needs the package {package!r}; install it with pip install 'vdla[{EXTRAS[package]}]'"
    )


def _root(
    version: Annotated[bool, typer.Option("--version", help="Print the version and exit.")] = False,
    *,
    context: typer.Context,
) -> None:
    if version:
        print(__version__)
        raise typer.Exit
    if context.invoked_subcommand is None:
        raise VdlaError("expected a command; `vdla --help` lists them")


Plugins = Annotated[
    list[Path] | None,
    typer.Option("--plugin", metavar="F", help="Plugin to load first (.py); several times: all."),
    Reads(".py"),
]


def with_plugins(command: Callable[..., Any]) -> Callable[..., Any]:
    """The command with the option, whose plugins are loaded before it begins."""

    @wraps(command)
    def run(plugin: list[Path] | None = None, **values: Any) -> Any:
        plugins.load_known()
        for path in plugin or []:
            plugins.load(path)
        return command(**values)

    hints, own = get_type_hints(command, include_extras=True), signature(command)
    option = Parameter("plugin", Parameter.KEYWORD_ONLY, default=None, annotation=Plugins)
    typed = [p.replace(annotation=hints[name]) for name, p in own.parameters.items()]
    run.__signature__ = own.replace(parameters=[*typed, option])  # type: ignore[attr-defined]
    run.__annotations__ = {**hints, "plugin": Plugins}
    return run


def _application() -> typer.Typer:
    application = typer.Typer(
        help="Compile, simulate and verify networks on the VDLA accelerator.",
        no_args_is_help=False,
        add_completion=False,
        pretty_exceptions_enable=False,
    )
    application.callback(invoke_without_command=True)(_root)
    for name, command in COMMANDS.items():
        application.command(name)(checked(with_plugins(command)))
    for name, group in GROUPS.items():
        for info in group.registered_commands:
            assert info.callback is not None
            info.callback = checked(with_plugins(info.callback))
        application.add_typer(group, name=name)
    return application


app = _application()
