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


@pytest.mark.sweep
@pytest.mark.parametrize("kind", ["int8", "float16"])
@pytest.mark.parametrize("name", ["resnet18", "mobilenet_v1"])
def test_kernels_for_sm_90(name: str, kind: str, tmp_path: Path) -> None:
    model = NETWORKS[name](1, kind == "int8").SerializeToString()
    precision = "float32" if kind == "int8" else kind
    module = vdla.compile(model, "cuda", emulate=True, precision=precision)
    [step] = module.compiled.steps
    assert isinstance(step, KernelProgram)
    try:
        cubin, log = compile_logged(step.source, (9, 0))
    except VdlaError as error:
        pytest.skip(str(error))
    spills = re.findall(r"(\d+) bytes spill stores, (\d+) bytes spill loads", log)
    assert len(spills) >= len({call.kernel for call in step.calls})
    assert set(spills) == {("0", "0")}
    found = instructions(cubin, tmp_path)
    products = {k: c for k, c in found.items() if k.endswith("acc_shared")}
    assert len(products) > 10
    for kernel, counts in products.items():
        assert total(counts, "IMMA" if kind == "int8" else "HMMA") >= 2, kernel
        assert total(counts, "LDSM") >= 2, kernel
        assert total(counts, "LDL", "STL") == 0, kernel
    # The first convolution has three channels, whose copies are of single elements.
    wide = [k for k, c in products.items() if total(c, "LDGSTS.E.BYPASS.128")]
    registers = [int(n) for n in re.findall(r"Used (\d+) registers", log)]
    print(f"{name} {kind}: {len(products)} products, {len(wide)} with copies of 16 bytes, at most "
          f"{max(registers)} registers")  # fmt: skip
    if kind == "int8":  # float tensors are rounded on their way, which asynchronous copies cannot
        assert len(wide) >= len(products) - 2
