# Everything else is set up from here on a machine with Rust, a C compiler (C++ for the nets), Python 3 and the usual package registries.

VENV := .venv
TORCH_VENV := .venv-torch
PYTHON := $(VENV)/bin/python
NEXTEST := $(shell cargo nextest --version >/dev/null 2>&1 && echo yes)

# What needs libtorch is built and tested on its own.
EVERYDAY := --workspace --exclude afterfit-nets

.PHONY: all demo test test-heavy test-nets nets bench-nets fuzz lint doc deny bench clean

all: lint test

demo:
	cargo run --release -- demo

# The everyday tests: the library, the command, and scikit-learn as a judge.
test: $(VENV)/ready
ifeq ($(NEXTEST),yes)
	cargo nextest run $(EVERYDAY)
else
	cargo test $(EVERYDAY) --lib --bins --tests
endif
	cargo test $(EVERYDAY) --doc
	cargo build --release
	$(PYTHON) tests/oracle.py target/release/afterfit
	$(PYTHON) tests/checkpoints.py target/release/afterfit

# What needs a browser or PyTorch, and the paper's figures against their stored numbers.
test-heavy: $(VENV)/ready $(TORCH_VENV)/ready
	cargo build --release
	tests/browser.sh target/release/afterfit
	$(TORCH_VENV)/bin/python tests/checkpoints.py target/release/afterfit --torch
	$(TORCH_VENV)/bin/python tests/weightings.py target/release/afterfit
	cargo run --release -p paper -- all check

# The networks on libtorch, on a CPU: lint, build, PyTorch's numbers, resuming, dials, the command from end to end.
WITH_TORCH := VIRTUAL_ENV=$(CURDIR)/$(TORCH_VENV) PATH="$(CURDIR)/$(TORCH_VENV)/bin:$$PATH" LIBTORCH_USE_PYTORCH=1
test-nets: $(TORCH_VENV)/ready
	$(WITH_TORCH) cargo clippy -p afterfit-nets --all-targets -- -D warnings
	RUSTDOCFLAGS="-D warnings" $(WITH_TORCH) cargo doc -p afterfit-nets --no-deps
	cargo build $(EVERYDAY) --bins
ifeq ($(NEXTEST),yes)
	$(WITH_TORCH) cargo nextest run -p afterfit-nets
else
	$(WITH_TORCH) cargo test -p afterfit-nets
endif
	$(TORCH_VENV)/bin/python tests/nets.py target/debug/afterfit-nets

# `make nets` builds the command for real runs: target/release/afterfit-nets.
nets: $(TORCH_VENV)/ready
	$(WITH_TORCH) cargo build --release -p afterfit-nets -p afterfit-cli

# A training step beside PyTorch's, for machines with a GPU.
bench-nets: nets
	$(TORCH_VENV)/bin/python tests/bench_nets.py target/release/afterfit-nets

# Five minutes of fuzzing for each reader of foreign files. cargo-fuzz wants a nightly compiler or RUSTC_BOOTSTRAP=1.
FUZZ_SECONDS := 300
fuzz:
	cargo fuzz --version >/dev/null 2>&1 || cargo install --locked cargo-fuzz
	for target in safetensors pickle torch_zip npz; do \
		RUSTC_BOOTSTRAP=1 cargo fuzz run $$target -- -max_total_time=$(FUZZ_SECONDS) -max_len=65536 -timeout=20 || exit 1; \
	done

lint:
	cargo fmt --check
	cargo clippy $(EVERYDAY) --all-targets -- -D warnings
	cargo clippy -p afterfit --no-default-features -- -D warnings
	RUSTDOCFLAGS="-D warnings" cargo doc $(EVERYDAY) --no-deps

doc:
	cargo doc $(EVERYDAY) --no-deps --open

# Licences, sources and duplicate versions of what we depend on; advisories need the network (cargo deny check).
deny:
	cargo deny --version >/dev/null 2>&1 || cargo install --locked cargo-deny
	cargo deny check licenses bans sources

# Rewrites BENCHMARKS.md; compares with peers in the same run.
bench: $(VENV)/ready $(TORCH_VENV)/ready
	cargo build --release
	$(PYTHON) tests/bench.py target/release/afterfit > BENCHMARKS.md.new
	$(TORCH_VENV)/bin/python tests/bench_average.py target/release/afterfit >> BENCHMARKS.md.new
	mv BENCHMARKS.md.new BENCHMARKS.md

$(VENV)/ready: tests/requirements.txt
	python3 -m venv $(VENV)
	$(VENV)/bin/pip install --quiet --disable-pip-version-check -r tests/requirements.txt
	touch $@

# PyTorch is several gigabytes: only what cannot do without it waits for this.
$(TORCH_VENV)/ready: tests/requirements-torch.txt
	python3 -m venv $(TORCH_VENV)
	$(TORCH_VENV)/bin/pip install --quiet --disable-pip-version-check -r tests/requirements-torch.txt
	touch $@

clean:
	cargo clean
	rm -rf $(VENV) $(TORCH_VENV) afterfit-demo
