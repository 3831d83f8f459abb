# Two commands do everything: make demo, make test. Both make .venv first if it is not there.
PYTHON ?= python3
VENV := .venv
BIN := $(VENV)/bin
READY := $(VENV)/.installed
PEERS := .venv-peers
LEROBOT := .venv-lerobot
PIP := -m pip install --quiet --disable-pip-version-check

.PHONY: demo test switches sweep matrix dist lint docs notebooks bench peers-tests lerobot gpu-build clean

demo: $(READY)  ## Train the main example: JAX environments and replay, PyTorch learner.
	$(BIN)/python examples/torch_dqn.py $(ARGS)

# Most of the tests' time would be XLA making fast kernels of programs that then run for a
# millisecond. Tests marked "optimised" find the faults of such kernels.
# Threads of PyTorch would wait for those of the other process.
# Bytecode is kept: without it each process compiles all tests, and rewrites their assertions.
QUICK := PYTHONDONTWRITEBYTECODE= OMP_NUM_THREADS=1 XLA_FLAGS="$(XLA_FLAGS) --xla_backend_optimization_level=0 --xla_cpu_use_fusion_emitters=false \
	--xla_cpu_parallel_codegen_split_count=1"
PYTEST := $(BIN)/python -m pytest -n 2 --dist worksteal

test: $(READY)  ## Run the test suite, in two processes.
	$(QUICK) $(PYTEST) -m "not sweep" $(ARGS)

switches: $(READY)  ## Run quick tests under JAX's own switches; docs/know/switches.md says what holds.
	$(QUICK) $(BIN)/python tests/switches.py $(ARGS)

sweep: export FBUF_SWEEP_PART := $(PART)
sweep: $(READY)  ## Run the cases that make test leaves out: more of the same, and long ones.
	$(QUICK) $(PYTEST) -m "sweep and not optimised" $(ARGS)
	$(PYTEST) -m optimised $(ARGS)

matrix: $(READY)  ## Run the core's tests on old and new JAX and Python; writes docs/know/versions.md.
	$(BIN)/python tests/matrix.py $(ARGS)

dist: $(READY)  ## Build what an index would get, and try it where no clone is; it stays in dist/.
	$(BIN)/python tests/release.py $(ARGS)

lint: $(READY)  ## Check style and types.
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/pyright --pythonpath $(BIN)/python
	$(BIN)/pyright --pythonpath $(BIN)/python --project tests/typed

docs: $(READY)  ## Build the site into site/.
	$(BIN)/python docs/pictures.py
	$(BIN)/mkdocs build --strict

notebooks: $(READY)  ## Execute the notebooks and compare their texts; ARGS=--write keeps new outputs.
	$(BIN)/python -m tests.support.notebooks $(ARGS)

bench: $(PEERS)/.installed  ## Measure fbuf beside its peers, and publish all figures.
	for name in compare first_batch agents slices saving host torch_buffers sb3 collect processes sharded \
			evidence.large evidence.flat_in_capacity evidence.calls evidence.draw_parts evidence.bridge evidence.exchange_rounds \
			evidence.fronts_brax evidence.fronts_flashbax evidence.removable evidence.seeds evidence.sb3_learning \
			$(addprefix evidence.torchrl_,dqn td3 td_mpc2) publish; do \
		$(PEERS)/bin/python -m benchmarks.$$name $(ARGS) || exit 1; \
	done

.PHONY: ablations
ablations: $(READY)  ## Measure one way to do a thing beside another.
	for name in evidence.learn_every_k evidence.tree_shapes evidence.forms evidence.row_access; do \
		$(BIN)/python -m benchmarks.$$name $(ARGS) || exit 1; \
	done

peers-tests: $(PEERS)/.installed  ## Run the peers' own tests with fbuf in place of their buffers.
	$(PEERS)/bin/python -m tests.peers $(ARGS)

lerobot: $(LEROBOT)/.installed $(READY)  ## Compare data sets with LeRobot's, OGBench's and TFDS's own, and measure.
	$(LEROBOT)/bin/python -m pytest -q -k "lerobot or ogbench or rlds" tests/adapters/datasets
	for name in evidence.lerobot ; do $(LEROBOT)/bin/python -m benchmarks.$$name $(ARGS) || exit 1; done
	$(BIN)/python -m benchmarks.publish $(ARGS)

gpu-build: $(READY)  ## Report what the GPU build of each function is made of; needs no GPU.
	$(BIN)/python -m benchmarks.evidence.gpu_build $(ARGS)
	$(BIN)/python -m benchmarks.evidence.gpu_build_sharded $(ARGS)
	$(BIN)/python -m benchmarks.evidence.forms_gpu $(ARGS)

clean:  ## Remove the virtual environments and everything built.
	rm -rf $(VENV) $(PEERS) $(LEROBOT) .venv-matrix dist site outputs

# Installed anew only when the pins change.
$(READY): requirements.lock pyproject.toml
	@$(PYTHON) -c 'import sys; sys.exit(sys.version_info < (3, 11))' || \
		{ echo "fbuf needs Python 3.11 or newer: make PYTHON=/path/to/python3.11"; exit 1; }
	test -x $(BIN)/python || $(PYTHON) -m venv $(VENV)
	$(BIN)/python $(PIP) -r requirements.lock
	$(BIN)/python $(PIP) --no-deps --no-build-isolation --editable .
	touch $@

$(PEERS)/.installed: benchmarks/requirements.lock pyproject.toml
	test -x $(PEERS)/bin/python || $(PYTHON) -m venv $(PEERS)
	$(PEERS)/bin/python $(PIP) -r benchmarks/requirements.lock
	$(PEERS)/bin/python $(PIP) --no-deps --no-build-isolation --editable .
	touch $@

# LeRobot asks for much that its data sets do not use, and for an older torch.
$(LEROBOT)/.installed: benchmarks/lerobot.lock pyproject.toml
	test -x $(LEROBOT)/bin/python || $(PYTHON) -m venv $(LEROBOT)
	$(LEROBOT)/bin/python $(PIP) -r benchmarks/lerobot.lock
	$(LEROBOT)/bin/python $(PIP) --no-deps lerobot==0.4.4 torchvision==0.28.0 ogbench==1.2.2
	$(LEROBOT)/bin/python $(PIP) --no-deps --no-build-isolation --editable .
	touch $@
