"""The option ``--plugin``, which every command has."""

from __future__ import annotations

from collections.abc import Callable
from functools import wraps
from inspect import Parameter, signature
from pathlib import Path
from typing import Annotated, Any, get_type_hints

import typer

from .. import plugins
from .files import Reads

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
