"""What NVIDIA's compiler makes of the kernels of whole networks, for sm_90: registers, spills, and
the instructions of products (``make gpu-emulated``). It needs NVRTC and nvdisasm from PyPI, but no
GPU: ``pip install nvidia-cuda-nvrtc nvidia-cuda-nvdisasm``."""

from __future__ import annotations

import re
import subprocess
from collections import Counter
from importlib import metadata
from pathlib import Path

import pytest
import vdla
from vdla.bench.net import Net
from vdla.bench.workloads import NETWORKS
from vdla.isa.errors import VdlaError
from vdla.runtime.gpu.nvrtc import compile_logged
from vdla.runtime.gpu.program import KernelProgram

_SECTION = re.compile(r"\.text\.(\w+):$")
_INSTRUCTION = re.compile(r"/\*[0-9a-f]{4,}\*/\s+(?:@!?U?P\w+\s+)?([A-Z][A-Z0-9_.]*)")


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


def compiled(
    model: bytes, kind: str, arch: str, folder: Path
) -> tuple[dict[str, Counter[str]], list[int]]:
    """The instructions of each kernel, none of which spills, and the registers of each."""
    precision = "float32" if kind == "int8" else kind
    module = vdla.compile(model, "cuda", emulate=True, precision=precision, arch=arch)
    [step] = module.compiled.steps
    assert isinstance(step, KernelProgram)
    try:
        cubin, log = compile_logged(step.source, (9, 0))
    except VdlaError as error:
        pytest.skip(str(error))
    spills = re.findall(r"(\d+) bytes spill stores, (\d+) bytes spill loads", log)
    assert len(spills) >= len({call.kernel for call in step.calls})
    assert set(spills) == {("0", "0")}
    return instructions(cubin, folder), [int(n) for n in re.findall(r"Used (\d+) registers", log)]


@pytest.mark.sweep
@pytest.mark.parametrize("kind", ["int8", "float16", "bfloat16", "tf32"])
def test_large_products_are_of_warpgroups(kind: str, tmp_path: Path) -> None:
    """With the default choices of a GPU of compute capability 9.0."""
    net = Net("large", kind == "int8")
    net.output(net.dense(net.input(1024, 256), 1024))
    found, registers = compiled(net.model().SerializeToString(), kind, "sm_90a", tmp_path)
    [counts] = [c for kernel, c in found.items() if kernel.endswith("acc_shared")]
    named = [n for n in counts if n.startswith(("HGMMA", "IGMMA", "UTMALDG", "SYNCS", "STG"))]
    print(f"{kind}: {max(registers)} registers, { ({n: counts[n] for n in named}) }")
    assert total(counts, "IGMMA" if kind == "int8" else "HGMMA") >= 4
    assert total(counts, "UTMALDG") >= (2 if kind in ("int8", "tf32") else 1)
    assert total(counts, "SYNCS") >= 3 and total(counts, "LDL", "STL") == 0
    assert total(counts, "STG.E.128") >= 1


@pytest.mark.sweep
@pytest.mark.parametrize("arch", ["sm_80", "sm_90a"])
@pytest.mark.parametrize("kind", ["int8", "float16"])
@pytest.mark.parametrize("name", ["resnet18", "mobilenet_v1"])
def test_kernels_for_sm_90(name: str, kind: str, arch: str, tmp_path: Path) -> None:
    model = NETWORKS[name](1, kind == "int8").SerializeToString()
    found, registers = compiled(model, kind, arch, tmp_path)
    products = {k: c for k, c in found.items() if k.endswith("acc_shared")}
    assert len(products) > 10
    for kernel, counts in products.items():
        units = ("IMMA", "IGMMA") if kind == "int8" else ("HMMA", "HGMMA")
        # One of a warpgroup is as much as many of a warp.
        assert total(counts, *units) >= (1 if total(counts, "IGMMA", "HGMMA") else 2), kernel
        assert total(counts, "LDSM", "UTMALDG", "IGMMA", "HGMMA") >= 2, kernel
        assert total(counts, "LDL", "STL") == 0, kernel
    # The first convolution has three channels, whose copies are of single elements.
    wide = [k for k, c in products.items() if total(c, "LDGSTS.E.BYPASS.128", "UTMALDG")]
    print(f"{name} {kind} {arch}: {len(products)} products, {len(wide)} with copies of 16 bytes "
          f"or boxes, at most {max(registers)} registers")  # fmt: skip
    # Weights of float16, at least, come so.
    assert len(wide) >= len(products) - 2
