"""Co-verify blocks of one's own with a real network: a tensor core in SystemVerilog, the same with
a bug, one whose ports do not fit, and faults in the memory; then the tensor core by itself, on what
was recorded at its ports. Each step is a command that can be typed as well.
"""

import subprocess
import sys
import tempfile
from pathlib import Path

HERE = Path(__file__).parent
MODEL = HERE.parent / "models" / "digits_int8.onnx"
#: Whether an iteration overwrites its accumulator: the instruction and the micro-op say so. With
#: the bug, the instruction alone does.
RIGHT, WRONG = "s[1].init && uop__data[32]", "s[1].init"


NETWORK = (str(MODEL), "--hw", "4x4")


def cosim(*words: str) -> None:
    """Show a command, and what it says."""
    print(f"\n> vdla cosim {' '.join(Path(word).name for word in words)}")
    command = [sys.executable, "-m", "vdla", "cosim", *words]
    done = subprocess.run(command, text=True, capture_output=True)
    print(done.stdout + done.stderr, end="")
    print(f"exit code {done.returncode}")


def main() -> None:
    mine = HERE / "my_gemm.sv"
    cosim(*NETWORK, "--replace", f"gemm={mine}")
    with tempfile.TemporaryDirectory() as folder:
        wrong = Path(folder) / "wrong_gemm.sv"
        text = mine.read_text().replace("module my_gemm", "module wrong_gemm")
        assert text.count(RIGHT) == 1
        wrong.write_text(text.replace(RIGHT, WRONG))
        cosim(*NETWORK, "--replace", f"gemm={wrong}")
        narrow = Path(folder) / "narrow_gemm.sv"
        text = text.replace("module wrong_gemm", "module narrow_gemm")
        narrow.write_text(text.replace("input [31:0] inp__data", "input [15:0] inp__data"))
        cosim(*NETWORK, "--replace", f"gemm={narrow}")
        cosim(*NETWORK, "--bench", str(HERE / "faults.py"))
        recording = str(Path(folder) / "gemm.rec")
        cosim(*NETWORK, "--record", f"gemm={recording}")
        cosim("--replay", recording, "--replace", f"gemm={mine}")
        cosim("--replay", recording, "--replace", f"gemm={mine}", "--untimed")
        cosim("--replay", recording, "--replace", f"gemm={wrong}")


if __name__ == "__main__":
    main()
