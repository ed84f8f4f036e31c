# `make quickstart` and `make test` install everything that they need.
PYTHON ?= python3
VENV ?= .venv
BIN = $(VENV)/bin
# Two workers, one thread each: tests are many and small.
ARGUMENTS = -n 2 --dist loadfile --no-loadscope-reorder --durations=10
PYTEST = OMP_NUM_THREADS=1 $(BIN)/python -m pytest $(ARGUMENTS)

.PHONY: help quickstart test test-fast current test-browser test-new test-plugins test-clients attack mutants docs lint golden bench gpu study study-all study-rest study-gpu baselines samplers clean

help:
	@echo "make quickstart   train a small model on English text, evaluate it, sample from it and write an HTML report (4 minutes)"
	@echo "make test         run all tests, including those of the packages in plugins/ (ten minutes)"
	@echo "make test-fast    run the fast tests only (under two minutes)"
	@echo "make current      run all tests in .venv-current, with a newer torch than Composer allows; FAST=1 runs only the fast ones"
	@echo "make test-browser run the tests of web pages in Chromium, which is installed if it is missing"
	@echo "make test-new     test what atat new writes for each kind, in empty environments; KIND=noise selects one kind, BORROW=1 uses the libraries in .venv"
	@echo "make test-plugins test each package of plugins/ in its own environment; NAME=atat-zoo-example selects one, BORROW=1 uses the libraries in .venv"
	@echo "make test-clients call atat serve with clients of OpenAI's API, each in its own environment; NAME=litellm selects one client"
	@echo "make attack       kill processes, pass wrong input and damage files; N=1 takes minutes, N=100 hours; ONLY=kills selects one kind of attack"
	@echo "make mutants      change one expression at a time and check that a test fails; N=200 changes (half an hour) or N=all, drawn with SEED=1; PLUGINS=1 includes plugins/"
	@echo "make docs         build the documentation in build/site/index.html (a minute, offline)"
	@echo "make lint         run ruff, mypy and the checks of the import layers"
	@echo "make golden       compare computed values with the recorded ones or, with OLD=REVISION, with those that another git revision computes here"
	@echo "make bench        measure ratios of time and memory, and compare them with the previous ones on this machine"
	@echo "make gpu          run all checks and measurements that need a GPU, nine minutes at a time; run it again to continue"
	@echo "make study        run the study of set-causal models with three seeds (three hours on two cores; run it again to resume)"
	@echo "make study-all    run every study that supports a claim, with three seeds (hours; atat study NAME --dry-run estimates them)"
	@echo "make study-rest   run all other studies: screens, longer runs, other texts (needs corpora/wikitext-2)"
	@echo "make study-gpu    run the study of models with 30M parameters on a GPU, with nine training runs at once (needs corpora/wikitext-2)"
	@echo "make baselines    train every objective at CPU size and compare them (an hour on two cores)"
	@echo "make samplers     generate text with every named sampler and compare the results (almost an hour)"

# With uv, which this installs if it is missing, or else with pip.
INSTALL = $(PYTHON) .ci/install.py
$(VENV)/installed: pyproject.toml constraints.txt
	$(INSTALL) $(VENV) -e ".[report]"
	@touch $@

# Includes packages that add only commands or a task, because the zoo's tests try all installed components of other
# kinds. pyproject.toml lists the tests of these packages.
BESIDE = atat-zoo-glue atat-zoo-human-eval atat-zoo-paper atat-zoo-serve
$(VENV)/installed-test: $(VENV)/installed $(wildcard plugins/*/pyproject.toml)
	$(INSTALL) $(VENV) -e ".[test]" -e plugins/atat-zoo-example $(foreach name,$(BESIDE),-e "plugins/$(name)[test]")
	@touch $@

# Packages whose components the zoo's tests do not try, in an environment that also sees the libraries in .venv. The
# package with the slowest tests is the first.
WITH_COMPONENTS = atat-zoo-checkpoints atat-zoo-transformers atat-zoo-genomics atat-zoo-code atat-zoo-images atat-zoo-audio atat-zoo-learned-curriculum atat-zoo-lm-eval
LIBRARIES = import sysconfig; print(sysconfig.get_path("purelib"))
$(VENV)-plugins/installed: $(VENV)/installed-test
	$(PYTHON) -m venv $(VENV)-plugins
	$(BIN)/python -c '$(LIBRARIES)' > "$$($(VENV)-plugins/bin/python -c '$(LIBRARIES)')/borrowed.pth"
	$(BIN)/python -m pip list --format=freeze --exclude-editable | sed "s/=.*//" > $(VENV)-plugins/borrowed.txt
	UV_EXCLUDE=$(VENV)-plugins/borrowed.txt $(INSTALL) $(VENV)-plugins -e . $(foreach name,$(BESIDE) $(WITH_COMPONENTS),-e "plugins/$(name)[test]")
	@touch $@

$(VENV)/installed-browser: $(VENV)/installed-test
	$(INSTALL) $(VENV) -e ".[browser]"
	command -v chromium || $(BIN)/playwright install chromium
	@touch $@

$(VENV)/installed-docs: $(VENV)/installed
	$(INSTALL) $(VENV) -e ".[docs]"
	@touch $@

$(VENV)/installed-dev: $(VENV)/installed-test
	$(INSTALL) $(VENV) -e ".[dev]"
	@touch $@

$(VENV)/installed-mutants: $(VENV)/installed-test
	$(INSTALL) $(VENV) -e ".[mutants]"
	@touch $@

# uv's --override installs the listed versions despite Composer's pins; pip has no such option.
$(VENV)-current/installed: pyproject.toml constraints-current.txt
	$(PYTHON) -m venv $(VENV)-current
	$(VENV)-current/bin/python -m pip install --quiet --disable-pip-version-check -c constraints-current.txt uv
	$(VENV)-current/bin/uv pip install --quiet --python $(VENV)-current/bin/python --override constraints-current.txt -r constraints-current.txt -e . -e plugins/atat-zoo-example $(foreach name,$(BESIDE),-e plugins/$(name))
	@touch $@

quickstart: $(VENV)/installed
	$(BIN)/atat train quickstart --overwrite
	$(BIN)/atat report runs/quickstart --compute

# The zoo, which has most tests, comes last, so that its summary is the last line.
test: $(VENV)/installed-test $(VENV)-plugins/installed
	OMP_NUM_THREADS=1 $(VENV)-plugins/bin/python -m tests.packages $(WITH_COMPONENTS)
	$(PYTEST)

test-fast: $(VENV)/installed-test
	$(PYTEST) -m "not slow" tests

current: BIN = $(VENV)-current/bin
current: $(VENV)-current/installed
	$(PYTEST) $(if $(FAST),-m "not slow")

test-browser: $(VENV)/installed-browser
	OMP_NUM_THREADS=1 $(BIN)/python -m pytest tests/*/*_in_browser.py plugins/*/tests/*_in_browser.py
test-new: $(VENV)/installed-test
	$(BIN)/python -m tests.empty_environment $(KIND) $(if $(BORROW),--borrow)

test-plugins: $(VENV)/installed-test
	$(BIN)/python -m tests.plugin_environments $(NAME) $(if $(BORROW),--borrow)

test-clients: $(VENV)/installed-test
	OMP_NUM_THREADS=1 PYTHONPATH=. $(BIN)/python plugins/atat-zoo-serve/tests/client_environments.py $(NAME)

# N=100: 300 kills, 200 trainings that are killed 20 times each, 20,000 experiments, 2,000 command lines, 2,000 damaged artefacts, 200 corpora.
attack: $(VENV)-plugins/installed
	OMP_NUM_THREADS=1 $(VENV)-plugins/bin/python -m tests.attack $(ONLY) --scale $(or $(N),1) --seed $(or $(SEED),17)

# Results are kept in build/mutants, so an interrupted run resumes; ONLY=training tests one group of modules.
PLUGINS_PYTHON = $(wildcard $(VENV)-plugins/bin/python)
mutants: $(VENV)/installed-mutants $(if $(PLUGINS),$(VENV)-plugins/installed)
	$(BIN)/python -m tests.mutants $(ONLY) --num-samples $(or $(N),200) --seed $(or $(SEED),1) $(if $(PLUGINS_PYTHON),--plugins-python $(PLUGINS_PYTHON))

docs: $(VENV)/installed-docs
	$(BIN)/python -m sphinx -W --keep-going -q -E -d build/doctrees docs build/site
	@echo "wrote build/site/index.html"

lint: $(VENV)/installed-dev
	$(BIN)/ruff check . && $(BIN)/ruff format --check . && $(BIN)/mypy && $(BIN)/lint-imports

# Each revision computes its own values, because Python imports the package from the folder in which it is started.
golden: $(VENV)/installed-test
ifdef OLD
	@rm -rf build/golden && git worktree prune && git worktree add --quiet --detach build/golden $(OLD)
	cd build/golden && OMP_NUM_THREADS=1 $(abspath $(BIN))/python -m tests.golden.make $(abspath build)/golden-old.json
	OMP_NUM_THREADS=1 $(BIN)/python -m tests.golden.make build/golden-new.json
	@git worktree remove --force build/golden
	$(BIN)/python -m tests.golden.compare build/golden-old.json build/golden-new.json
else
	OMP_NUM_THREADS=1 $(BIN)/python -m pytest tests/golden
endif

bench: $(VENV)/installed-test
	$(BIN)/python -m benchmarks

gpu: $(VENV)/installed-test
	$(BIN)/python -m benchmarks gpu

study: $(VENV)/installed-test
	$(BIN)/atat study sets --jobs 2 --write docs/studies/sets.md

study-all: study
	$(BIN)/atat study confirm --jobs 2 --write docs/studies/confirm.md
	$(BIN)/atat study system --jobs 2 --write docs/studies/system.md
	$(BIN)/atat study steps --jobs 2 --write docs/studies/steps.md
	$(BIN)/atat study ablation --jobs 2 --write docs/studies/ablation.md
	$(BIN)/atat study ablation_no_prior --jobs 2 --write docs/studies/ablation_no_prior.md
	$(BIN)/atat study sensitivity --jobs 2 --write docs/studies/sensitivity.md

study-rest: $(VENV)/installed-dev
	$(BIN)/atat study screen --jobs 2 --write docs/studies/screen.md
	$(BIN)/atat study steps_screen --jobs 2 --write docs/studies/steps_screen.md
	$(BIN)/atat study importance --jobs 2 --write docs/studies/importance.md
	$(BIN)/atat study progressive --jobs 2 --write docs/studies/progressive.md
	$(BIN)/atat study longer --jobs 2 --write docs/studies/longer.md
	$(BIN)/atat study wikitext2 --jobs 2 --write docs/studies/wikitext2.md
	$(BIN)/atat study sets_256 --jobs 2 --write docs/studies/sets_256.md
	$(BIN)/atat study sets_512 --jobs 2 --write docs/studies/sets_512.md
	$(BIN)/python -m benchmarks streams --runs runs/sets_512 --write
	$(BIN)/atat study sets_budgets --jobs 2 --write docs/studies/sets_budgets.md
	$(BIN)/atat study sets_orders --jobs 2 --write docs/studies/sets_orders.md
	$(BIN)/atat study sets_screen --jobs 2 --write docs/studies/sets_screen.md
	$(BIN)/atat study sets_wikitext2 --jobs 2 --write docs/studies/sets_wikitext2.md
	$(BIN)/python -m benchmarks study_figure
	OMP_NUM_THREADS=1 $(BIN)/python -m benchmarks study_samples --write

study-gpu: $(VENV)/installed-dev
	$(BIN)/atat study sets_30m --jobs 9 --write docs/studies/sets_30m.md

baselines: $(VENV)/installed-test
	$(BIN)/python -m benchmarks baselines --all --markdown docs/studies/baselines.md

samplers: $(VENV)/installed-test
	OMP_NUM_THREADS=1 $(BIN)/python -m benchmarks samplers --markdown docs/studies/samplers.md

clean:
	rm -rf $(VENV) $(VENV)-current $(VENV)-plugins build dist docs/reference/components docs/plugins
