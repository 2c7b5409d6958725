# Everything a fresh machine needs (Rust, a C compiler, Python 3, the usual package registries) is set up from here.

VENV := .venv
PYTHON := $(VENV)/bin/python
NEXTEST := $(shell cargo nextest --version >/dev/null 2>&1 && echo yes)

.PHONY: all demo test test-heavy lint doc deny bench clean

all: lint test

demo:
	cargo run --release -- demo

# The everyday tests: the library, the command, and scikit-learn as a judge.
test: $(VENV)/ready
ifeq ($(NEXTEST),yes)
	cargo nextest run --workspace
else
	cargo test --workspace --lib --bins --tests
endif
	cargo test --workspace --doc
	cargo build --release
	$(PYTHON) tests/oracle.py target/release/afterfit

# What needs a browser.
test-heavy: $(VENV)/ready
	cargo build --release
	tests/browser.sh target/release/afterfit

lint:
	cargo fmt --check
	cargo clippy --workspace --all-targets -- -D warnings
	RUSTDOCFLAGS="-D warnings" cargo doc --workspace --no-deps

doc:
	cargo doc --workspace --no-deps --open

# Licences, sources and duplicate versions of what we depend on; advisories need the network (cargo deny check).
deny:
	cargo deny --version >/dev/null 2>&1 || cargo install --locked cargo-deny
	cargo deny check licenses bans sources

# Rewrites BENCHMARKS.md; compares with peers in the same run.
bench: $(VENV)/ready
	cargo build --release
	$(PYTHON) tests/bench.py target/release/afterfit > BENCHMARKS.md.new
	mv BENCHMARKS.md.new BENCHMARKS.md

$(VENV)/ready: tests/requirements.txt
	python3 -m venv $(VENV)
	$(VENV)/bin/pip install --quiet --disable-pip-version-check -r tests/requirements.txt
	touch $@

clean:
	cargo clean
	rm -rf $(VENV) afterfit-demo
