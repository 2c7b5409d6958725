# Everything else is set up from here on a machine with Rust, a C compiler (C++ for the nets), Python 3 and the usual package registries.
# `make help` lists the targets that have a comment behind `##`.

VENV := .venv
TORCH_VENV := .venv-torch
DOCS_VENV := .venv-docs
DEEPSPEED := $(TORCH_VENV)/deepspeed
PYTHON := $(VENV)/bin/python
NEXTEST := $(shell cargo nextest --version >/dev/null 2>&1 && echo yes)

# What needs libtorch is built and tested on its own.
EVERYDAY := --workspace --exclude afterfit-nets

.PHONY: all help setup docs demo release test test-rust test-command test-docs wheel install-heavy test-python test-python-heavy test-heavy \
	test-checkpoints test-frameworks test-source test-paper test-pages web test-web pictures table test-nets nets bench-nets fuzz lint doc deny \
	bench bench-scale clean
# (Cargo has jobs of its own, and cannot reach make's.)
unexport MAKEFLAGS

all: lint test ## lint and test

help: ## this list
	@awk -F ':.*## ' '/^[a-z-]+:.*## / { printf "%-18s %s\n", $$1, $$2 }' $(firstword $(MAKEFILE_LIST))

demo: ## handwritten digits, every strength, a page
	cargo run --release -- demo

release: ## the command, as a release: target/release/afterfit
	cargo build --release

# The everyday tests, in parts that may run at the same time (make test -j2 -O).
test: test-rust test-command test-docs test-python ## the everyday tests: library, command, Python package, documents

test-rust: ## the library and the command, in Rust
ifeq ($(NEXTEST),yes)
	cargo nextest run $(EVERYDAY)
else
	cargo test $(EVERYDAY) --lib --bins --tests --examples
endif
	cargo test $(EVERYDAY) --doc

test-command: release $(VENV)/ready ## the command, with scikit-learn, numpy and safetensors as judges; hostile files; README
	$(PYTHON) tests/oracle.py target/release/afterfit
	$(PYTHON) tests/checkpoints.py target/release/afterfit
	$(PYTHON) tests/hostile/gallery.py target/release/afterfit
	$(PYTHON) tests/readme.py target/release/afterfit

# Links, spelling, numbers and tests that documents name; what a release needs.
test-docs: $(VENV)/ready ## documents: links, words, numbers; release files
	$(PYTHON) tests/docs.py
	$(PYTHON) tests/words.py
	$(PYTHON) tests/bench_scale.py --check
	$(PYTHON) tests/release.py

# The guides as a site, in site/. (--strict: a broken link or anchor is an error.)
docs: $(DOCS_VENV)/ready ## the guides as a site, in site/
	NO_MKDOCS_2_WARNING=1 $(DOCS_VENV)/bin/mkdocs build --strict

# The Python package: its wheel (as optimized as other tests; a release's takes minutes), types, style, and what needs numpy and
# scikit-learn.
PACKAGE := crates/afterfit-py
# Modules whose friends are heavy.
HEAVY := torch|lightning|transformers|jax|widget|ray
MYPY := --config-file pyproject.toml --cache-dir $(CURDIR)/target/mypy
INSTALL_WHEEL = bin/pip install --quiet --disable-pip-version-check --force-reinstall --no-deps target/wheels/*.whl
PROFILE := dev
wheel: $(VENV)/ready ## the Python package's wheel, in target/wheels
	rm -rf target/wheels
	$(VENV)/bin/maturin build --quiet --manifest-path $(PACKAGE)/Cargo.toml --profile $(PROFILE) --compatibility linux --out target/wheels

test-python: wheel ## the Python package alone
	$(VENV)/$(INSTALL_WHEEL)
	cd $(PACKAGE) && $(CURDIR)/$(VENV)/bin/ruff check --no-cache . && $(CURDIR)/$(VENV)/bin/ruff format --no-cache --check .
	cd $(PACKAGE) && $(CURDIR)/$(PYTHON) -m mypy python/afterfit --exclude '/($(HEAVY))' $(MYPY)
	cd $(PACKAGE) && $(CURDIR)/$(PYTHON) -m mypy.stubtest afterfit._afterfit --allowlist tests/stubtest.txt
	SCIPY_ARRAY_API=1 $(PYTHON) -m pytest -q -p no:cacheprovider $(PACKAGE)/tests
	$(VENV)/bin/ruff check --no-cache --config $(PACKAGE)/pyproject.toml studies examples docs tests/docs.py tests/words.py tests/readme.py tests/release.py
	$(VENV)/bin/ruff format --no-cache --check --config $(PACKAGE)/pyproject.toml studies examples docs tests/docs.py tests/words.py tests/readme.py tests/release.py
	$(PYTHON) studies/draw.py --check
	$(PYTHON) tests/readme.py --python
	$(PYTHON) tests/release.py --wheel

install-heavy: wheel $(TORCH_VENV)/ready ## the wheel, in .venv-torch
	$(TORCH_VENV)/$(INSTALL_WHEEL)

# What of it needs PyTorch, Lightning, Transformers, JAX and Ray.
test-python-heavy: install-heavy $(DEEPSPEED)/ready ## what of it needs PyTorch, Lightning, Transformers, JAX and Ray
	cd $(PACKAGE)/python && $(CURDIR)/$(TORCH_VENV)/bin/python -m mypy $(patsubst %,-m afterfit.%,$(subst |, ,$(HEAVY))) $(subst pyproject,../pyproject,$(MYPY))-heavy
	$(TORCH_VENV)/bin/python -m pytest -q -p no:cacheprovider $(PACKAGE)/tests/heavy
	PYTHONPATH=$(CURDIR)/$(DEEPSPEED) $(TORCH_VENV)/bin/python -m pytest -q -p no:cacheprovider $(PACKAGE)/tests/heavy/test_deepspeed.py
	$(TORCH_VENV)/bin/python -m pytest -q -p no:cacheprovider studies/tests
	$(TORCH_VENV)/bin/python tests/readme.py --torch

# What needs a browser or PyTorch, and the paper's figures against their stored numbers; in parts, as above.
test-heavy: test-frameworks test-python-heavy test-checkpoints docs test-paper test-pages test-source ## what needs a browser or PyTorch; the paper's figures; the site

# Azure's emulator of its object store.
AZURITE := tests/azurite/node_modules/.package-lock.json
test-checkpoints: release $(TORCH_VENV)/ready $(AZURITE) ## average, with PyTorch and object stores as judges
	$(TORCH_VENV)/bin/python tests/checkpoints.py target/release/afterfit --torch
	$(TORCH_VENV)/bin/python tests/weightings.py target/release/afterfit
	$(TORCH_VENV)/bin/python tests/distributed.py target/release/afterfit
	$(TORCH_VENV)/bin/python tests/stores.py target/release/afterfit

test-frameworks: release $(TORCH_VENV)/ready ## average, with the frameworks that made the checkpoints as judges
	$(TORCH_VENV)/bin/python tests/frameworks.py target/release/afterfit

test-source: wheel ## the wheel from the source distribution alone
	$(PYTHON) tests/release.py --source

# (As optimized as other tests: built already.)
test-paper: ## the paper's figures against their stored numbers
	cargo build $(EVERYDAY) --bins
	target/debug/paper all check

test-pages: release $(VENV)/ready install-heavy test-web test-paper ## every page in a real Chromium
	PYTHON=$(CURDIR)/$(PYTHON) tests/browser.sh target/release/afterfit report serve
	JUPYTER=$(CURDIR)/$(TORCH_VENV)/bin/jupyter MARIMO=$(CURDIR)/$(TORCH_VENV)/bin/marimo tests/browser.sh target/release/afterfit jupyter marimo
	PAPER=$(CURDIR)/paper/out tests/browser.sh target/release/afterfit paper

# The page (web/): `make web` builds what the command carries, which is committed, so that nobody else needs Node.
WEB := web/node_modules/.package-lock.json
web: $(WEB) ## build the page's program, which is committed (Node 20)
	cd web && node build.js

# Its types, style and unit tests, and that what is committed is what its sources give.
test-web: $(WEB) ## the page's types, style and unit tests
	cd web && npm run --silent check
	cd web && node build.js ../target/page
	for file in page.js page.css policy.txt; do cmp target/page/$$file crates/afterfit-cli/src/page/$$file || { echo "make web builds it anew" >&2; exit 1; }; done

# The pictures of docs/, from the demo's page in a real Chromium (look at them).
pictures: $(WEB) $(VENV)/ready ## the pictures of docs/, from a real Chromium
	cargo run --release -- demo --folder target/demo
	cd web && node pictures.js ../target/demo/report.html ../target/frames
	$(PYTHON) tests/pictures.py target/frames docs

# (Not `npm ci`: it refuses locks without addresses, which name no registry.)
$(WEB) $(AZURITE): %/node_modules/.package-lock.json: %/package-lock.json
	npm --prefix $* install --no-save --silent
	touch $@

# Rewrites the table of what `average` does with the checkpoints of real frameworks.
table: release $(TORCH_VENV)/ready ## rewrite docs/frameworks.md
	$(TORCH_VENV)/bin/python tests/frameworks.py target/release/afterfit --table docs/frameworks.md

# The networks on libtorch, on a CPU: lint, build, PyTorch's numbers, resuming, dials, the command from end to end.
WITH_TORCH := VIRTUAL_ENV=$(CURDIR)/$(TORCH_VENV) PATH="$(CURDIR)/$(TORCH_VENV)/bin:$$PATH" LIBTORCH_USE_PYTORCH=1
test-nets: $(TORCH_VENV)/ready ## the networks on libtorch, on a CPU
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
nets: $(TORCH_VENV)/ready ## build target/release/afterfit-nets
	$(WITH_TORCH) cargo build --release -p afterfit-nets -p afterfit-cli

# A training step beside PyTorch's, for machines with a GPU.
bench-nets: nets ## a training step beside PyTorch's, on a GPU
	$(TORCH_VENV)/bin/python tests/bench_nets.py target/release/afterfit-nets

# Five minutes of fuzzing for each reader of foreign files. cargo-fuzz requires a nightly compiler or RUSTC_BOOTSTRAP=1.
FUZZ_SECONDS := 300
fuzz: ## five minutes for each reader of foreign files
	cargo fuzz --version >/dev/null 2>&1 || cargo install --locked cargo-fuzz
	RUSTC_BOOTSTRAP=1 cargo fuzz build --sanitizer none
	python3 fuzz/run.py $(FUZZ_SECONDS)

lint: ## rustfmt, clippy, rustdoc: warnings are errors
	cargo fmt --check
	cargo clippy $(EVERYDAY) --all-targets -- -D warnings
	cargo clippy -p afterfit --no-default-features -- -D warnings
	for only in tables checkpoints stores; do cargo clippy -p afterfit --no-default-features --features $$only -- -D warnings || exit; done
	RUSTDOCFLAGS="-D warnings" cargo doc $(EVERYDAY) --no-deps

doc: ## the library's documentation, opened
	cargo doc $(EVERYDAY) --no-deps --open

# Licenses, sources and duplicate versions of what we depend on; advisories need the network (cargo deny check).
deny: ## licenses and sources of the dependencies
	cargo deny --version >/dev/null 2>&1 || cargo install --locked cargo-deny
	cargo deny check licenses bans sources

# Rewrites BENCHMARKS.md; compares with peers in the same run.
bench: release $(VENV)/ready $(TORCH_VENV)/ready $(WEB) ## rewrite BENCHMARKS.md
	$(PYTHON) tests/bench.py target/release/afterfit > BENCHMARKS.md.new
	cd web && node frames.js ../target/release/afterfit >> ../BENCHMARKS.md.new
	$(TORCH_VENV)/bin/python tests/bench_average.py target/release/afterfit >> BENCHMARKS.md.new
	mv BENCHMARKS.md.new BENCHMARKS.md

# What object stores cost, and what follows for sizes beyond one machine: the numbers of docs/stores.md and docs/scale.md.
bench-scale: release $(VENV)/ready $(TORCH_VENV)/ready ## the numbers of docs/stores.md and docs/scale.md
	$(MAKE) wheel PROFILE=release
	$(TORCH_VENV)/$(INSTALL_WHEEL)
	$(TORCH_VENV)/bin/python tests/bench_stores.py target/release/afterfit
	$(TORCH_VENV)/bin/python tests/bench_scale.py target/release/afterfit

# All that is downloaded but crates: beside what compiles, it costs no time.
setup: $(VENV)/ready $(TORCH_VENV)/ready $(DOCS_VENV)/ready $(WEB) ## the Python environments and Node packages of the tests

$(VENV)/ready: tests/requirements.txt
	python3 -m venv $(VENV)
	$(VENV)/bin/pip install --quiet --disable-pip-version-check -r tests/requirements.txt
	touch $@

$(DOCS_VENV)/ready: tests/requirements-docs.txt
	python3 -m venv $(DOCS_VENV)
	$(DOCS_VENV)/bin/pip install --quiet --disable-pip-version-check -r tests/requirements-docs.txt
	touch $@

# PyTorch is several gigabytes: only what cannot do without it waits for this.
$(TORCH_VENV)/ready: tests/requirements-torch.txt
	python3 -m venv $(TORCH_VENV)
	$(TORCH_VENV)/bin/pip install --quiet --disable-pip-version-check -r tests/requirements-torch.txt
	touch $@

# In a folder of its own, which only its test sees: other frameworks behave otherwise where it is installed. (It has no wheel; from
# its sources nothing is compiled.)
$(DEEPSPEED)/ready: tests/requirements-deepspeed.txt $(TORCH_VENV)/ready
	DS_BUILD_OPS=0 $(TORCH_VENV)/bin/pip install --quiet --disable-pip-version-check --no-deps --upgrade --target $(DEEPSPEED) -r tests/requirements-deepspeed.txt
	touch $@

clean: ## remove everything that was built
	cargo clean
	rm -rf $(VENV) $(TORCH_VENV) $(DOCS_VENV) web/node_modules afterfit-demo site
