"""``vdla generate``."""

from __future__ import annotations

from dataclasses import asdict
from pathlib import Path
from typing import Annotated, Any

import typer
from rich.console import Console

from ..generation import CONTEXT, ROWS
from . import options
from .files import Reads
from .output import count, decimals, emit, percent, progress_bar, show_table

#: Tokens that nobody waits for, or has memory for.
MOST_TOKENS = 1 << 20
#: Where all tokens are as likely.
MOST_TEMPERATURE = 1e6
#: What the report of a run says of the step.
REPORTED = (
    *("programs", "coverage", "utilisation", "roofline_fraction", "bound_by", "layers", "dram"),
    *("clock_mhz", "time_ms", "clock_of", "host_s"),
)
#: The parts of a step: operators of their layers.
PARTS = {
    "products of weights": ("QConv2d", "QConvAdd", "QConvTable", "QDense"),
    "attention": (
        *("QRotate", "Concat", "QGroupMatMul", "QTable", "QTableSoftmax", "TransposeGroups"),
    ),
    "normalisation": ("RowDigits", "QNormalise"),
}
OTHER = "the rest"


def generate(
    model: Annotated[
        Path,
        typer.Argument(help="A GGUF file of the llama architecture, or a decoder (.onnx, .pt2)."),
        Reads(),
    ],
    prompt: Annotated[str, typer.Option(metavar="TEXT", help="The text to go on with.")],
    tokens: Annotated[
        int, typer.Option(min=1, max=MOST_TOKENS, help="The most tokens that are written.")
    ] = 64,
    target: Annotated[str, typer.Option(help="sim, rtl or cpu.")] = "sim",
    context: Annotated[
        int,
        typer.Option(
            min=1, max=MOST_TOKENS, help="Tokens of prompt and text that there is room for."
        ),
    ] = CONTEXT,
    rows: Annotated[
        int,
        typer.Option(
            min=1, max=MOST_TOKENS, help="Tokens of a block, by which the prompt is read."
        ),
    ] = ROWS,
    temperature: Annotated[
        float,
        typer.Option(min=0, max=MOST_TEMPERATURE, help="0: the likeliest token; more: by chance."),
    ] = 0.0,
    top_k: Annotated[
        int,
        typer.Option(
            min=0, max=MOST_TOKENS, help="Draw from so many of the likeliest; 0: from all."
        ),
    ] = 0,
    seed: options.Seed = 0,
    int8: Annotated[
        bool | None,
        typer.Option("--int8/--float", help="Products on integers; on cpu without it in float."),
    ] = None,
    tokenizer: Annotated[
        Path | None, typer.Option(help="A tokenizer.json; a GGUF file has its own."), Reads()
    ] = None,
    weight_bits: Annotated[int, typer.Option(help="8, or 4 for the weights of layers.")] = 8,
    hw: options.Hw = "16x16",
    memory: options.Memory = "vta",
    json_file: options.JsonFile = None,
) -> None:
    """Write text behind a prompt with a language model, token by token."""
    from ..generation.loop import LanguageModel
    from ..generation.sampling import sampler

    sampler(temperature, top_k, seed)  # refuses numbers before the work begins
    with progress_bar(f"compiling {model.name}") as progress:
        found = LanguageModel.load(
            model, target, context, rows, int8, tokenizer, prompt, hw, memory, progress, weight_bits
        )
    written = []
    try:
        for piece in found.write(prompt, tokens, temperature, top_k, seed):
            written.append(piece)
            if json_file != "-":
                print(piece.text, end="", flush=True)
    finally:
        if written and json_file != "-":
            print()
    measured = found.measured
    body: dict[str, Any] = {"model": model.name, "target": target, "int8": found.int8}
    body |= {"weight_bits": weight_bits, "context": context, "rows": rows, "prompt": prompt}
    body |= {"prompt_tokens": measured.prompt_tokens, "tokens": [p.token for p in written]}
    body |= {"text": "".join(p.text for p in written)}
    body |= {"blocks": asdict(measured.blocks), "steps": asdict(measured.steps)}
    of_run = (found.module if measured.steps.count else found.blocks).report
    body |= {key: of_run[key] for key in REPORTED if key in of_run}
    emit("generate", body, json_file, _show, found.module.params, found.module.memory, seed)


def _show(console: Console, report: dict[str, Any]) -> None:
    values = "int8" if report["int8"] else "float32"
    kinds = ((f"blocks of {report['rows']}", "blocks"), ("a token", "steps"))
    rows = [
        (name, count(runs["count"]), decimals(runs["wall_s"] / runs["count"], 4),
         "-" if runs["cycles"] is None else count(runs["cycles"]))
        for name, runs in ((name, report[kind]) for name, kind in kinds) if runs["count"]
    ]  # fmt: skip
    tokens = f"{count(report['prompt_tokens'])} tokens read, {count(len(report['tokens']))} written"
    title = f"{report['target']}, {values}: {tokens}"
    show_table(console, title, ("a run computes", "runs", "seconds a run", "cycles a run"), rows)
    last = report["steps" if report["steps"]["count"] else "blocks"]
    if last["cycles"] is not None:
        _show_cycles(console, report, last["cycles"])


def _show_cycles(console: Console, report: dict[str, Any], cycles: int) -> None:
    """Where the cycles of a token go, what bounds them, and what the host does beside."""
    from ..report.report import host_text

    spent = dict.fromkeys((*PARTS, OTHER), 0)
    for layer in (layer for layer in report["layers"] if layer["cycles"]):
        spent[next((part for part in PARTS if layer["op"] in PARTS[part]), OTHER)] += layer[
            "cycles"
        ]
    rows = [(part, count(n), percent(n / cycles)) for part, n in spent.items() if n]
    time = (
        f", {report['time_ms']:.3f} ms at {report['clock_mhz']:g} MHz"
        if "time_ms" in report
        else ""
    )
    of = "a token" if report["steps"]["count"] else "a block"
    show_table(console, f"{count(cycles)} cycles {of}{time}", ("part", "cycles", "share"), rows)
    roofline = percent(report["roofline_fraction"])
    console.print(f"{roofline} of the roofline, bound by {report['bound_by']}")
    console.print(host_text(report))
