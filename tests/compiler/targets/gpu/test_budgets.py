"""What NVIDIA's compiler makes of the kernels of whole networks, for sm_90: registers, spills, and
the instructions of products (``make gpu-emulated``). It needs NVRTC and nvdisasm from PyPI, but no
GPU: ``pip install nvidia-cuda-nvrtc nvidia-cuda-nvdisasm``."""

from __future__ import annotations

import math
import re
import subprocess
from collections import Counter
from dataclasses import dataclass
from importlib import metadata
from pathlib import Path

import pytest
import vdla
from vdla.bench.net import Net
from vdla.bench.workloads import NETWORKS
from vdla.compiler.choose.space import Knobs
from vdla.compiler.targets.gpu.templates.tensor_gemm import WGMMA, find_unit
from vdla.isa.errors import VdlaError
from vdla.runtime.gpu.nvrtc import compile_logged
from vdla.runtime.gpu.program import KernelProgram

_SECTION = re.compile(r"\.text\.(\w+):$")
_INSTRUCTION = re.compile(r"/\*[0-9a-f]{4,}\*/\s+(?:@!?U?P\w+\s+)?([A-Z][A-Z0-9_.x]*)")
#: Products in the names of instructions: HMMA.16816 of a warp is 16 x 8 x 16, HGMMA.64x128x16 of a
#: warpgroup is as it says.
_OF_WARP = re.compile(r"[HI]MMA\.168(\d+)")
_OF_GROUP = re.compile(r"[HI]GMMA\.(\d+)x(\d+)x(\d+)")


def disassembler() -> Path:
    try:
        files = metadata.files("nvidia-cuda-nvdisasm") or []
    except metadata.PackageNotFoundError:
        pytest.skip("nvidia-cuda-nvdisasm is not installed")
    [found] = [Path(str(f.locate())) for f in files if f.name == "nvdisasm"]
    return found


def instructions(cubin: bytes, folder: Path) -> dict[str, Counter[str]]:
    """How often each instruction occurs in the text of each kernel."""
    path = folder / "kernels.cubin"
    path.write_bytes(cubin)
    done = subprocess.run([disassembler(), "-c", path], capture_output=True, text=True, check=True)
    found: dict[str, Counter[str]] = {}
    for line in done.stdout.splitlines():
        if section := _SECTION.match(line):
            found[section[1]] = Counter()
        elif found and (instruction := _INSTRUCTION.search(line)):
            found[[*found][-1]][instruction[1]] += 1
    return found


def total(counts: Counter[str], *beginnings: str) -> int:
    return sum(n for name, n in counts.items() if name.startswith(beginnings))


def multiply_adds(counts: Counter[str]) -> int:
    """The products that a warp or a warpgroup adds up when it executes each instruction once."""
    added = 0
    for name, count in counts.items():
        if found := _OF_WARP.match(name):
            added += count * 16 * 8 * int(found[1])
        elif found := _OF_GROUP.match(name):
            added += count * math.prod(map(int, found.groups()))
    return added


@dataclass(frozen=True)
class Compiled:
    """Of each kernel, none of which spills: its instructions, its registers, its layer's choice."""

    instructions: dict[str, Counter[str]]
    registers: list[int]
    knobs: dict[str, Knobs]


def compiled(model: bytes, kind: str, arch: str, folder: Path) -> Compiled:
    precision = "float32" if kind == "int8" else kind
    module = vdla.compile(model, "cuda", emulate=True, precision=precision, arch=arch)
    [step] = module.compiled.steps
    assert isinstance(step, KernelProgram)
    try:
        cubin, log = compile_logged(step.source, (9, 0))
    except VdlaError as error:
        if "found none" in str(error):
            pytest.skip("nvidia-cuda-nvrtc is not installed")
        raise
    spills = re.findall(r"(\d+) bytes spill stores, (\d+) bytes spill loads", log)
    assert len(spills) >= len({call.kernel for call in step.calls})
    assert set(spills) == {("0", "0")}
    registers = [int(n) for n in re.findall(r"Used (\d+) registers", log)]
    layers = module.compiled.layers
    knobs = {kernel["name"]: layer.knobs for layer in layers for kernel in layer.kernels}
    return Compiled(instructions(cubin, folder), registers, knobs)


def products(found: Compiled) -> list[tuple[str, Counter[str]]]:
    """The kernels that multiply matrices."""
    return [item for item in found.instructions.items() if item[0].endswith("acc_shared")]


def check_product(kernel: str, counts: Counter[str], kind: str, knobs: Knobs) -> None:
    """Tensor cores do the whole product of a step of the reduction: a warp's or warpgroup's tile,
    ``depth`` deep, is in its instructions at least once. Nothing is in local memory."""
    tile = math.prod(int(knobs[name]) for name in ("warp_rows", "warp_columns", "depth"))
    assert multiply_adds(counts) >= tile, kernel
    is_grouped = find_unit(knobs) == WGMMA
    unit = ("I" if kind == "int8" else "H") + ("GMMA" if is_grouped else "MMA")
    assert total(counts, unit) == total(counts, "IMMA", "IGMMA", "HMMA", "HGMMA"), kernel
    # Warpgroups read factors in shared memory by themselves.
    assert is_grouped or total(counts, "LDSM") >= 2, kernel
    assert total(counts, "LDL", "STL") == 0, kernel


def test_a_kernel_with_half_of_its_products_is_refused() -> None:
    tile = {"warp_rows": 16, "warp_columns": 16, "depth": 32}
    whole = Counter({"HMMA.16816.F32": 4, "LDSM.16.M88.4": 4})
    check_product("whole", whole, "float16", tile)
    with pytest.raises(AssertionError, match="half"):
        check_product("half", whole - Counter({"HMMA.16816.F32": 2}), "float16", tile)
    group = {"unit": "wgmma", "warp_rows": 64, "warp_columns": 64, "depth": 64}
    check_product("whole", Counter({"IGMMA.64x64x32.S8.S8": 2}), "int8", group)
    with pytest.raises(AssertionError, match="half"):
        check_product("half", Counter({"IGMMA.64x64x32.S8.S8": 1}), "int8", group)


@pytest.mark.sweep
@pytest.mark.parametrize("kind", ["int8", "float16", "bfloat16", "tf32"])
def test_large_products_are_of_warpgroups(kind: str, tmp_path: Path) -> None:
    """With the default choices of a GPU of compute capability 9.0."""
    net = Net("large", kind == "int8")
    net.output(net.dense(net.input(1024, 256), 1024))
    found = compiled(net.model().SerializeToString(), kind, "sm_90a", tmp_path)
    [(kernel, counts)] = products(found)
    named = [n for n in counts if n.startswith(("HGMMA", "IGMMA", "UTMALDG", "SYNCS", "STG"))]
    print(f"{kind}: {max(found.registers)} registers, { ({n: counts[n] for n in named}) }")
    check_product(kernel, counts, kind, found.knobs[kernel])
    assert total(counts, "IGMMA" if kind == "int8" else "HGMMA") >= 4
    assert total(counts, "UTMALDG") >= (2 if kind in ("int8", "tf32") else 1)
    assert total(counts, "SYNCS") >= 3
    assert total(counts, "STG.E.128") >= 1


def test_a_step_of_float32_is_products_and_reads_of_16_bytes(tmp_path: Path) -> None:
    """With the default choices, without tensor cores: for each step of the reduction a thread reads
    its parts of both factors, 16 bytes at once, and little else is left in the loop."""
    net = Net("large", False)
    net.output(net.dense(net.input(1024, 256), 1024))
    found = compiled(net.model().SerializeToString(), "float32", "sm_90a", tmp_path)
    [(kernel, counts)] = [item for item in found.instructions.items() if "FFMA" in item[1]]
    knobs = {name: int(value) for name, value in found.knobs[kernel].items()}
    own = knobs["thread_rows"], knobs["thread_columns"]
    print(f"{kernel}: {max(found.registers)} registers, {counts}")
    assert own == (4, 8) and max(found.registers) <= 84  # three blocks of 256 threads
    assert counts["FFMA"] == math.prod(own) * knobs["depth"]
    assert counts["LDS.128"] == sum(own) // 4 * knobs["depth"]
    assert total(counts, "STG.E.128") == math.prod(own) // 4
    assert total(counts, "LDL", "STL", "STS") == total(counts, "LDS.U", "LDS.S", "LDS.64") == 0
    assert total(counts) < 1.7 * counts["FFMA"]  # what stands before and behind the loop included


@pytest.mark.sweep
@pytest.mark.parametrize("arch", ["sm_80", "sm_90a"])
@pytest.mark.parametrize("kind", ["int8", "float16"])
@pytest.mark.parametrize("name", ["resnet18", "mobilenet_v1"])
def test_kernels_for_sm_90(name: str, kind: str, arch: str, tmp_path: Path) -> None:
    model = NETWORKS[name](1, kind == "int8").SerializeToString()
    found = compiled(model, kind, arch, tmp_path)
    kernels = products(found)
    assert len(kernels) > 10
    for kernel, counts in kernels:
        check_product(kernel, counts, kind, found.knobs[kernel])
    wide = [k for k, c in kernels if total(c, "LDGSTS.E.BYPASS.128", "UTMALDG")]
    print(f"{name} {kind} {arch}: {len(kernels)} products, {len(wide)} with copies of 16 bytes "
          f"or boxes, at most {max(found.registers)} registers")  # fmt: skip
    assert len(wide) == len(kernels)
    # No thread brings single elements of a factor.
    assert not any(total(counts, "STS.U", "STS.S") for _, counts in kernels)
