"""LLVM IR to machine code: for this processor, in memory; for any, as an object file."""

from __future__ import annotations

import ctypes
from collections.abc import Callable
from dataclasses import dataclass, field, replace
from functools import cache

import llvmlite.binding as llvm
from llvmlite import ir

from ....isa.errors import VdlaError
from ....runtime import processor as machine
from .core import Core, core_speeds


@dataclass(frozen=True)
class Processor:
    """The processor that code is generated for, in LLVM's terms.

    Attributes
    ----------
    triple : such as ``aarch64-unknown-linux-gnu``
    cpu : the model whose timing decides between equivalent instructions
    features : of its instruction set, each with ``+`` or ``-`` in front
    abi : the calling convention, where the triple does not tell it
    threads : number of threads that share parallel loops
    core : what one of its cores can do
    """

    triple: str
    cpu: str
    features: tuple[str, ...] = ()
    abi: str = ""
    threads: int = 1
    core: Core = field(default_factory=Core)

    @property
    def vector_lanes(self) -> int:
        """float32 values in one of its vector registers."""
        return 16 if self.has("avx512f") else 8 if self.has("avx2") else 4

    @property
    def registers(self) -> int:
        """The number of its vector registers."""
        many = self.has("avx512f") or self.triple.partition("-")[0] == "aarch64"
        return 32 if many else 16

    @property
    def sums(self) -> int:
        """Vector registers that may hold results. The others hold weights, and an element of the
        image where no instruction reads it from memory to all lanes.
        """
        return self.registers - 4

    @property
    def key(self) -> str:
        """The processor as text, by which records of choices are found."""
        return f"{self.cpu} {self.vector_lanes} lanes, {self.threads} threads"

    def has(self, feature: str) -> bool:
        """Whether its instruction set has a feature."""
        return f"+{feature}" in self.features

    @property
    def fuses_multiply_add(self) -> bool:
        """Whether it has an instruction for a product and a sum of float64 that rounds once."""
        return self.has("fma") or self.triple.partition("-")[0] == "aarch64"

    def target_machine(self) -> llvm.TargetMachine:
        """A new LLVM target machine: each engine owns its own."""
        _initialize()
        return llvm.Target.from_triple(self.triple).create_target_machine(
            cpu=self.cpu, features=",".join(self.features), opt=3, reloc="pic", abiname=self.abi
        )


#: By GNU's triples: for each architecture, the least capable processor that runs Debian. LLVM's
#: triples also have a vendor.
CROSS_PROCESSORS = {
    "aarch64-linux-gnu": Processor("aarch64-unknown-linux-gnu", "generic", ("+neon",)),
    "arm-linux-gnueabihf": Processor(
        "armv7-unknown-linux-gnueabihf", "generic", ("+vfp3d16", "+thumb2")
    ),
    "riscv64-linux-gnu": Processor(
        "riscv64-unknown-linux-gnu", "generic-rv64", ("+m", "+a", "+f", "+d", "+c"), "lp64d"
    ),
    "x86_64-linux-gnu": Processor("x86_64-unknown-linux-gnu", "x86-64"),
}


@cache
def _initialize() -> None:
    llvm.initialize_all_targets()
    llvm.initialize_all_asmprinters()


def host_processor() -> Processor:
    """The processor of this machine, with all its features; its core is measured once and kept."""
    return _describe(machine.host())


@cache
def _describe(known: machine.Host) -> Processor:
    features = sorted(known.features.items())
    signed = tuple(f"{'+' if present else '-'}{name}" for name, present in features)
    found = Processor(known.triple, known.cpu, signed)
    speeds = known.speeds
    if speeds is None and not found.fuses_multiply_add:
        speeds = {}  # the measured loops would call functions of the C library
    if speeds is None:
        dots = found.has("avx512vnni")
        speeds = core_speeds(known.key, found.target_machine, found.vector_lanes, dots)
    return replace(found, core=Core(**known.cache_bytes, **speeds))  # type: ignore[arg-type]


def cross_processor(triple: str) -> Processor:
    """The processor of a GNU triple.

    Raises
    ------
    VdlaError
        For a triple that is not in :data:`CROSS_PROCESSORS`.
    """
    if triple not in CROSS_PROCESSORS:
        raise VdlaError(f"triple: expected one of {', '.join(CROSS_PROCESSORS)}, got {triple!r}")
    return CROSS_PROCESSORS[triple]


def parse(module: ir.Module, processor: Processor) -> llvm.ModuleRef:
    """The module, parsed by LLVM. Tests replace this function to emulate what the machine lacks."""
    return llvm.parse_assembly(str(module))


def optimise(module: ir.Module, processor: Processor) -> llvm.ModuleRef:
    """The module after LLVM's O3 pipeline for a processor."""
    machine = processor.target_machine()
    module.triple = machine.triple
    module.data_layout = str(machine.target_data)
    parsed = parse(module, processor)
    parsed.verify()
    options = llvm.create_pipeline_tuning_options(speed_level=3)
    options.loop_vectorization = options.slp_vectorization = options.loop_unrolling = True
    builder = llvm.create_pass_builder(machine, options)
    builder.getModulePassManager().run(parsed, builder)
    return parsed


def emit_object(module: llvm.ModuleRef, processor: Processor) -> bytes:
    """An object file (ELF), position-independent."""
    return processor.target_machine().emit_object(module)


@dataclass(frozen=True, eq=False)
class LoadedCode:
    """``entry`` is the code's function, which takes pointers; ``engine`` keeps the code alive."""

    engine: llvm.ExecutionEngine
    entry: Callable[..., None]


@dataclass(frozen=True, eq=False)
class MachineCode(LoadedCode):
    """An optimised module, loaded."""

    llvm_ir: str

    @property
    def assembly(self) -> str:
        """The machine code as text."""
        return host_processor().target_machine().emit_assembly(llvm.parse_assembly(self.llvm_ir))


def load(module: llvm.ModuleRef, entry: str, arguments: int) -> MachineCode:
    """Load a module as code for this processor. ``entry`` takes as many pointers as ``arguments``
    says. The loaded code owns the module.
    """
    llvm_ir = str(module)
    engine = llvm.create_mcjit_compiler(module, host_processor().target_machine())
    return MachineCode(engine, _entry(engine, entry, arguments), llvm_ir)


def load_object(object_file: bytes, entry: str, arguments: int) -> LoadedCode:
    """As :func:`load`, for an object file of :func:`emit_object`."""
    machine = host_processor().target_machine()
    engine = llvm.create_mcjit_compiler(llvm.parse_assembly(""), machine)
    engine.add_object_file(llvm.ObjectFileRef.from_data(object_file))
    return LoadedCode(engine, _entry(engine, entry, arguments))


def _entry(engine: llvm.ExecutionEngine, name: str, arguments: int) -> Callable[..., None]:
    engine.finalize_object()
    prototype = ctypes.CFUNCTYPE(None, *[ctypes.c_void_p] * arguments)
    return prototype(engine.get_function_address(name))
