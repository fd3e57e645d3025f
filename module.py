"""The Python interface: ``compile`` and ``run`` a model, read its ``report``, ``save``, ``load``.

Here the rooms meet: the compiler makes a program, a simulator runs it, ``report`` explains it.
"""

from __future__ import annotations

import hashlib
import io
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from os.path import exists, isfile
from pathlib import Path
from statistics import median
from typing import TYPE_CHECKING, Any, NoReturn, TypeAlias

import numpy as np

from . import plugins
from .isa.errors import VdlaError
from .isa.memory import MemoryParams, load_platform
from .isa.params import HwParams
from .isa.program import Program
from .report.report import accelerator_report, host_report, join_programs, output_report
from .runtime import bundle
from .runtime.batches import are_batches, count_batches
from .runtime.bundle import CodeFor, Settings
from .runtime.executable import Executable, is_program
from .runtime.native import TensorType, as_input
from .runtime.result import SimResult, join
from .sim.runner import PLACES, Runner

if TYPE_CHECKING:
    import onnx
    from torch.export import ExportedProgram  # pyright: ignore[reportMissingImports]

    from .compiler.frontends.doors.package import Examples
    from .compiler.kept import KeptShapes

Progress = Callable[[int, int], None]
#: Networks of PyTorch and Keras are callable, as functions of JAX are.
Model: TypeAlias = "str | Path | bytes | onnx.ModelProto | ExportedProgram | Callable[..., Any]"


def compile(
    model: Model,
    target: str = "sim",
    hw: HwParams | str | Path = "16x16",
    memory: MemoryParams | str | Path = "vta",
    vthreads: int = 2,
    dump_ir: str | Path | None = None,
    port: str | None = None,
    threads: int = 1,
    knobs: str | Path | Mapping[str, Any] | None = None,
    records: str | Path | None = None,
    emulate: bool = False,
    precision: str = "float32",
    progress: Progress | None = None,
    arch: str | None = None,
    profile: bool = False,
    shapes: Mapping[str, Sequence[int]] | None = None,
    dims: Mapping[str, int | tuple[int, int]] | None = None,
    values: Mapping[str, Any] | None = None,
    example_inputs: Examples | None = None,
    states: Mapping[str, str] | None = None,
    initial: Mapping[str, np.ndarray] | None = None,
) -> Module:
    """Compile a trained network.

    Parameters
    ----------
    model : path, bytes, onnx.ModelProto, torch.export.ExportedProgram, or an object with a door
        ONNX, float or quantised (QDQ); a TensorFlow Lite file or its bytes; or a program of
        ``torch.export``, also as a file that ``torch.export.save`` wrote. By other packages
        (docs/doors.md): a ``torch.nn.Module``, a Keras 3 model or ``.keras`` file, a folder of a
        TensorFlow SavedModel, a function of JAX.
    target : str
        ``sim``, ``rtl``, ``cpu``, ``fpga``, ``cuda`` or ``opencl``.
    hw : HwParams, or the name of a preset or TOML file
        The accelerator's configuration.
    memory : MemoryParams, or the name of a preset or TOML file
        The memory behind it; tile sizes are chosen for it.
    vthreads : int
        Virtual threads, 1 or more: tiles in flight, whose loads overlap with computation.
    dump_ir : path, optional
        A directory for the intermediate representation before and after every pass.
    port : str, optional
        The serial device of the board, for ``fpga``.
    threads : int
        Threads of the processor that share the work, for ``cpu``. Results are the same to the bit
        for any number of threads.
    knobs : mapping, or path to a JSON file, optional
        Choices by layer, such as ``{"conv1": {"rows": 7}}``, or the report of an earlier run. The
        compiler makes those that are missing.
    records : path, optional
        A file of measured choices, as :func:`vdla.tune` writes it, which come before the compiler's
        own. By default the file that the environment variable ``VDLA_RECORDS`` names.
    emulate : bool
        With ``cuda``: run the kernels on the processor, for tests.
    precision : str
        With ``cuda``: ``tf32``, ``float16`` or ``bfloat16`` rounds the factors of dense layers and
        convolutions to it, for the tensor cores; sums stay ``float32``.
    progress : callable, optional
        Called with (steps done, steps in all): two steps a node.
    arch : str, optional
        With ``cuda``: ``sm_80``, whose kernels run on all GPUs since, or ``sm_90a``. By default
        that of the GPU at hand, or ``sm_80`` where there is none.
    profile : bool
        With ``cpu``: the code notes the time after each of its loop programs, some ten nanoseconds
        each, for :func:`vdla.bench.profile.profile`.
    shapes, dims : mapping, optional
        Shapes of inputs, and sizes of dimensions, by name, that the model leaves open: a number, or
        the smallest and the largest of those that come. One without a name, such as dimension 1 of
        input ``x``, is ``x.1``.
    values : mapping, optional
        Inputs that are constants, by name.
    example_inputs : tuple or mapping by name, optional
        The arguments of a ``torch.nn.Module`` or a function of JAX, whose shapes and dtypes are the
        compiled module's.
    states : mapping, optional
        Inputs, by name, that the module keeps from run to run, and the outputs that are their next
        values, such as ``{"past.key": "present.key"}``.
    initial : mapping, optional
        Arrays for states, by name, before the first run; the others are zeros.

    Notes
    -----
    An open first dimension of inputs is a batch, if all operators leave its images apart: then the
    module runs any number of them, in turn. For other sizes that its inputs may have, it compiles
    the model again when they come, and keeps what it has compiled.

    Raises
    ------
    VdlaError
        For a damaged or unsupported model and for every argument out of range.
    """
    plugins.load_known()
    check_options(target, port, vthreads=vthreads, threads=threads)
    if profile and target != "cpu":
        raise VdlaError(f"profile: expected target 'cpu' with it, got {target!r}")
    if emulate and target != "cuda":
        raise VdlaError(f"emulate: expected target 'cuda' with it, got {target!r}")
    if precision != "float32" and target != "cuda":
        raise VdlaError(f"precision: expected target 'cuda' with {precision!r}, got {target!r}")
    if arch is not None and target != "cuda":
        raise VdlaError(f"arch: expected target 'cuda' with {arch!r}, got {target!r}")
    from .compiler.build import CompiledModel, build
    from .compiler.frontends.doors.opening import open_door
    from .compiler.frontends.sizes import Sizes
    from .compiler.kept import KeptShapes
    from .compiler.targets.base import Options
    from .compiler.targets.registry import find_target

    model = _read_pipe(model)
    params, memory = load_platform(hw, memory)
    options = Options(params, memory, vthreads, threads, emulate, precision, arch, profile)
    found = find_target(target, options)
    choices = _choices(knobs, records)
    opened: Any = open_door(model, example_inputs)
    sizes = Sizes(shapes=shapes or {}, dims=dims or {}, values=values or {})

    def compile_for(sizes: Sizes) -> CompiledModel:
        return build(
            opened, found, **choices, dump_ir=dump_ir, progress=progress, sizes=sizes,
            states=states or {}, initial=initial or {},
        )  # fmt: skip

    kept = KeptShapes(compile_for, sizes)
    sha256 = _model_sha256(model, opened)
    settings = Settings(target, params, memory, vthreads, sha256, threads=threads)
    return Module(kept.first, settings, port, kept)


def cross_compile(
    model: Model,
    path: str | Path,
    triple: str,
    hw: HwParams | str | Path = "16x16",
    knobs: str | Path | Mapping[str, Any] | None = None,
    records: str | Path | None = None,
    progress: Progress | None = None,
    shapes: Mapping[str, Sequence[int]] | None = None,
    dims: Mapping[str, int | tuple[int, int]] | None = None,
    values: Mapping[str, Any] | None = None,
    states: Mapping[str, str] | None = None,
) -> None:
    """Write a model for the CPU of another machine: a folder as :meth:`Module.save` writes, with
    an object file that the other machine's linker takes, and ``vdla.h`` for C.

    Parameters
    ----------
    model : path, bytes, onnx.ModelProto, torch.export.ExportedProgram or Keras model
        As for :func:`compile`.
    path : path
        The folder.
    triple : str
        ``aarch64-linux-gnu``, ``arm-linux-gnueabihf``, ``riscv64-linux-gnu`` or
        ``x86_64-linux-gnu``: the code runs on every processor of that architecture that Debian
        supports.
    hw : HwParams, or the name of a preset or TOML file
        Its batch becomes the model's batch where the model leaves that open.
    knobs, records, progress, shapes, dims, values
        As for :func:`compile`.

    Raises
    ------
    VdlaError
        For a damaged or unsupported model, any other triple, and a path where something else than a
        module exists.
    """
    from .compiler.build import build
    from .compiler.frontends.doors.opening import open_door
    from .compiler.frontends.sizes import Sizes
    from .compiler.targets.base import Options
    from .compiler.targets.cpu.processor import cross_processor
    from .compiler.targets.cpu.target import Cpu

    plugins.load_known()
    model = _read_pipe(model)
    processor = cross_processor(triple)
    params, memory = load_platform(hw, "vta")
    target = Cpu(Options(params, memory), processor)
    opened = open_door(model)
    sizes = Sizes(shapes=shapes or {}, dims=dims or {}, values=values or {})
    compiled = build(
        opened, target, **_choices(knobs, records), progress=progress, sizes=sizes,
        states=states or {},
    )  # fmt: skip
    features = tuple(name[1:] for name in processor.features if name[0] == "+")
    code_for = CodeFor(triple, features)
    settings = Settings("cpu", params, memory, 1, _model_sha256(model, opened), code_for)
    bundle.save(path, compiled, settings)


def _choices(
    knobs: str | Path | Mapping[str, Any] | None, records: str | Path | None
) -> dict[str, Any]:
    """Arguments of the compiler: knobs and records, read from files where they are paths."""
    from .compiler.choose.files import load_knobs
    from .compiler.choose.records import Records

    return {
        "knobs": None if knobs is None else load_knobs(knobs),
        "records": Records.find_file(records),
    }


def load(path: str | Path, port: str | None = None, target: str | None = None) -> Module:
    """Load a module that :meth:`Module.save` wrote, ready to run. This does not need the compiler.

    Parameters
    ----------
    path : path
        The folder.
    port : str, optional
        The board's serial device, for target ``fpga``.
    target : str, optional
        Another place for the same programs: ``sim``, ``rtl`` or ``fpga`` for a module of one of
        them. By default the module's own target.

    Raises
    ------
    VdlaError
        Unless the module is whole, unchanged, of this version, and for this processor; and for a
        target that it was not compiled for.
    """
    plugins.load_known()
    executable, settings = bundle.load(path)
    if target is not None and target != settings.target:
        if not {target, settings.target} <= set(PLACES):
            raise VdlaError(
                f"target: expected that of the module, {settings.target!r}, got {target!r}; "
                "compile the model for it"
            )
        settings = replace(settings, target=target)
    _check_port(settings.target, port)
    return Module(executable, settings, port)


def check_options(target: str, port: str | None, **counts: int) -> None:
    """Raise VdlaError for a port without a board, a board without a port, and counts below 1."""
    _check_port(target, port)
    for name, count in counts.items():
        if type(count) is not int or count < 1:
            raise VdlaError(f"{name}: expected an integer of at least 1, got {count!r}")


def _check_port(target: str, port: str | None) -> None:
    if (target == "fpga") != (port is not None):
        raise VdlaError(
            f"port: expected the serial port of a board with target 'fpga' and only there, got "
            f"{port!r} with target {target!r}"
        )


class Module:
    """A compiled model and the place where it runs."""

    def __init__(
        self,
        compiled: Executable,
        settings: Settings,
        port: str | None = None,
        kept: KeptShapes | None = None,
    ) -> None:
        #: For the shapes of the last run.
        self.compiled = compiled
        self._kept = kept
        self.settings = settings
        self.port = port
        self._runner = Runner(settings.target, settings.params, settings.memory, port)
        self._report: dict[str, Any] | None = None
        # Of the last run: batches, seconds, and seconds of the host's steps of a batch.
        self._measured: tuple[int, float, float] | None = None
        self._timing: SimResult | None = None
        self._set: dict[str, np.ndarray] = {}
        self._outputs: list[np.ndarray] = []

    def __reduce__(self) -> NoReturn:
        raise VdlaError(
            "module: expected a folder for another process, got pickle or copy, which cannot take"
            " machine code along; call module.save(folder), and vdla.load(folder) there"
        )

    def __repr__(self) -> str:
        def told(types: tuple[TensorType, ...]) -> str:
            return ", ".join(f"{t.name} {t.dtype}{list(t.shape)}" for t in types)

        return f"<vdla.Module on {self.target}: {told(self.inputs)} -> {told(self.outputs)}>"

    @property
    def target(self) -> str:
        """Where it runs: ``sim``, ``rtl``, ``cpu``, ``fpga``, ``cuda`` or ``opencl``."""
        return self.settings.target

    @property
    def params(self) -> HwParams:
        """The accelerator's configuration."""
        return self.settings.params

    @property
    def vthreads(self) -> int:
        """Virtual threads."""
        return self.settings.vthreads

    @property
    def memory(self) -> MemoryParams:
        """The memory behind it."""
        return self.settings.memory

    @property
    def program(self) -> Program:
        """The accelerator's program.

        Raises
        ------
        VdlaError
            On a target without one.
        """
        if self.compiled.program is None:
            raise VdlaError(f"program: target {self.target!r} has none; compile for sim or rtl")
        return self.compiled.program

    @property
    def report(self) -> dict[str, Any]:
        """The last run: cycles, utilisation, layers, stalls, DRAM traffic, outputs.

        It is made when it is first asked for, because hashing the outputs can take longer than a
        run on the host.

        Raises
        ------
        VdlaError
            Before the first run.
        """
        if self._measured is None:
            raise VdlaError("report: nothing was run yet; call run(...) first")
        if self._report is None:
            self._report = self._make_report(*self._measured)
        return self._report

    @property
    def trace(self) -> dict[str, Any]:
        """The first batch of the last run as Chrome trace events (``sim/trace.py``).

        Raises
        ------
        VdlaError
            Where there is no measurement: before the first run, and on the host.
        """
        from .sim.trace import trace

        self.check_traceable()
        if self._timing is None:
            raise VdlaError("trace: nothing was run yet; call run(...) first")
        return trace(join_programs(self.compiled.programs), self._timing)

    @property
    def timing(self) -> SimResult | None:
        """When each instruction of the first batch of the last run ran, all programs as one; None
        where nothing ran on the accelerator.
        """
        return self._timing

    def check_traceable(self) -> None:
        """Raise VdlaError where runs have no cycles that a trace could show."""
        if self.target in ("cpu", "cuda", "opencl"):
            raise VdlaError(f"trace: target {self.target!r} has no cycles; use sim or rtl")
        if not self.compiled.programs:
            raise VdlaError("trace: no operator of this model runs on the accelerator")

    def set_input(self, name: str, value: np.ndarray) -> None:
        """Set the value of one input for the next ``run()`` without arguments."""
        names = [tensor.name for tensor in self.compiled.inputs]
        if name not in names:
            raise VdlaError(f"set_input: expected one of {', '.join(names)}, got {name!r}")
        self._set[name] = np.asarray(value)

    def get_output(self, index: int) -> np.ndarray:
        """One output of the last run, by position."""
        if not 0 <= index < len(self._outputs):
            raise VdlaError(f"get_output: expected 0..{len(self._outputs) - 1}, got {index!r}")
        return self._outputs[index]

    @property
    def inputs(self) -> tuple[TensorType, ...]:
        """Name, shape and dtype of every input, in the order of :meth:`run`."""
        return self.compiled.inputs

    @property
    def outputs(self) -> tuple[TensorType, ...]:
        """Name, shape and dtype of every output, in the order of the results."""
        return self.compiled.outputs

    def run(
        self,
        *arrays: np.ndarray | Mapping[str, np.ndarray],
        progress: Progress | None = None,
        keep_timing: bool = False,
        **named: np.ndarray,
    ) -> list[np.ndarray]:
        """Run the network on any number of images.

        Parameters
        ----------
        arrays, named
            One array per input, in order, by keyword, or as one mapping by name; of its dtype (or
            another float type for float32) and shape, except that the first dimension may be any
            multiple of the model's batch; the network then runs once per batch. An input without
            images is the same in each. What the model leaves open may have other sizes, too
            (:func:`compile`). Without arrays, those of ``set_input``.
        progress : callable, optional
            Called with (batches done, batches in all).
        keep_timing : bool
            Take the cycles of the run before: then ``sim`` simulates only values, and ``rtl``
            raises an error unless the cycles are those.

        Returns
        -------
        list of np.ndarray
            One array per output.

        Raises
        ------
        VdlaError
            For arrays that do not fit, or when the core stops with an error.

        Notes
        -----
        A model with states (:meth:`reset`) runs the batches as a sequence: each begins with the
        states that the one before it left, and the first with those of the run before.

        Cycles do not depend on data. So ``sim`` simulates both timing and values for the first
        batch, and only values for the others. ``rtl`` runs every batch through the hardware and
        raises an error unless all take the same number of cycles.
        """
        started, before = time.perf_counter(), self.compiled
        batches = self.batches(self._given(arrays, named))
        results, spent = [], list[float]()
        timing = self._timing if keep_timing and self.compiled is before else None
        for index, batch in enumerate(batches):
            host_s: list[float] = []
            outputs, measured = self._run_batch(batch, timing, host_s)
            spent.append(sum(host_s))
            if timing is None:
                timing = measured
            results.append(outputs)
            if progress is not None:
                progress(index + 1, len(batches))
        self._outputs = [
            parts[0]
            if len(parts) == 1 or tensor.axis is None
            else np.concatenate(parts, tensor.axis)
            for tensor, parts in zip(self.outputs, zip(*results, strict=True), strict=True)
        ]
        self._timing, self._report = timing, None
        self._measured = len(batches), time.perf_counter() - started, median(spent)
        return list(self._outputs)

    def reset(self) -> None:
        """Set all states of the model, such as variables of TensorFlow Lite, to their initial
        values; the next run is like the first.
        """
        self.compiled.reset()

    def save(self, path: str | Path) -> None:
        """Write a folder that :func:`load` and C programs read (``runtime/bundle.py``).

        Raises
        ------
        VdlaError
            When something else than a saved module exists at ``path``, or when native code cannot
            be linked.
        """
        bundle.save(path, self.compiled, self.settings)

    def _given(
        self, arrays: tuple[np.ndarray | Mapping[str, np.ndarray], ...], named: dict[str, Any]
    ) -> list[np.ndarray]:
        """One array per input, in order, of those that were given in one of the ways."""
        types = self.inputs
        by_name: Mapping[str, Any] = named
        if len(arrays) == 1 and isinstance(arrays[0], Mapping):
            by_name, arrays = {**arrays[0], **named}, ()
        if arrays:
            if named or len(arrays) != len(types):
                names = ", ".join(tensor.name for tensor in types)
                more = f" and {', '.join(named)} by name" if named else ""
                raise VdlaError(
                    f"run: expected {len(types)} arrays ({names}), got {len(arrays)}{more}"
                )
            return [as_input(array, t.dtype) for array, t in zip(arrays, types, strict=True)]
        unknown = [name for name in by_name if name not in {tensor.name for tensor in types}]
        if unknown:
            names = ", ".join(tensor.name for tensor in types)
            raise VdlaError(f"run: expected inputs named {names}, got {unknown[0]!r}")
        by_name = by_name or self._set
        missing = [tensor.name for tensor in types if tensor.name not in by_name]
        if missing:
            raise VdlaError(f"run: expected a value for {missing[0]!r}; give it or call set_input")
        return [as_input(by_name[tensor.name], tensor.dtype) for tensor in types]

    def batches(self, arrays: Sequence[np.ndarray]) -> list[list[np.ndarray]]:
        """The inputs, cut into batches of the model's size. Where they have other sizes than those
        of batches, and the model leaves these open, it is compiled for them first.

        Raises
        ------
        VdlaError
            For arrays that do not fit, and as :func:`compile`.
        """
        shapes = [array.shape for array in arrays]
        if self._kept is not None and not are_batches(self.inputs, shapes):
            self.compiled = self._kept.compiled_for(shapes) or self.compiled
        if all(a.shape == t.shape and a.dtype == t.dtype for a, t in zip(arrays, self.inputs)):  # noqa: B905
            return [list(arrays)]
        count = count_batches(self.inputs, self.outputs, arrays)
        parts = [
            [array] * count if tensor.axis is None else np.split(array, count, tensor.axis)
            for array, tensor in zip(arrays, self.inputs, strict=True)
        ]
        return [list(batch) for batch in zip(*parts, strict=True)]

    def _run_batch(
        self, batch: list[np.ndarray], known: SimResult | None, host_s: list[float]
    ) -> tuple[list[np.ndarray], SimResult | None]:
        """Outputs of one batch, and its timing where it was measured; to ``host_s`` the seconds of
        the host's steps are added.
        """
        if self.target == "sim" and known is not None:
            from .sim.model.values import run as run_values

            return self.compiled.run(batch, run_values, host_s), None
        timings: list[SimResult] = []
        outputs = self.compiled.run(
            batch, lambda p, dram: timings.append(self._runner.run(p, dram)), host_s
        )
        if not timings:  # no operator of this model runs on the accelerator
            return outputs, None
        timing = join(timings)
        moves = self.target == "fpga"  # a real memory also refreshes
        if known is not None and timing.cycles != known.cycles and not moves:
            raise VdlaError(
                f"rtl: expected {known.cycles} cycles as for the first batch, got {timing.cycles}; "
                "timing must not depend on data"
            )
        return outputs, timing

    def _make_report(self, batches: int, wall_s: float, host_s: float) -> dict[str, Any]:
        layers, timing = self.compiled.layers, self._timing
        if timing is None:
            body = host_report(layers)
        else:
            program = join_programs(self.compiled.programs)
            body = accelerator_report(layers, program, self.memory, timing)
        names = [tensor.name for tensor in self.compiled.outputs]
        outputs = output_report(dict(zip(names, self._outputs, strict=True)))
        return {
            "model_sha256": self.settings.model_sha256,
            "target": self.target,
            "vthreads": self.settings.vthreads,
            "threads": self.settings.threads,
            "plugins": plugins.report(),
            "batches": batches,
            "programs": sum(map(is_program, self.compiled.steps)),
            **body,
            "host_s": host_s,
            "plan": self.compiled.plan,
            "memory_plan": self.compiled.memory_plans,
            "wall_s": wall_s,
            "outputs": outputs,
        }


def _read_pipe(model: Model) -> Model:
    """What can be read once only, as bytes; anything else as it is."""
    if isinstance(model, str | Path) and exists(model) and Path(model).is_fifo():
        return Path(model).read_bytes()
    return model


def _model_sha256(model: Model, opened: Any) -> str:
    """The digest of a file where the model is one, else of what its door made of it."""
    if isinstance(model, str | Path) and isfile(model):
        with open(model, "rb") as file:  # which may be larger than what else is in memory
            return hashlib.file_digest(file, "sha256").hexdigest()
    data = opened if isinstance(opened, bytes) else _serialised(opened)
    return hashlib.sha256(data).hexdigest()


def _serialised(model: Any) -> bytes:
    from .compiler.frontends.pytorch.importer import is_torch

    if not is_torch(model):
        return model.SerializeToString()
    import torch  # pyright: ignore[reportMissingImports]

    buffer = io.BytesIO()
    torch.export.save(model, buffer)
    return buffer.getvalue()
