"""`atat new`: packages that pass their own tests as they are written, for every kind; and experiments that explain."""

from __future__ import annotations

import os
import re
import subprocess
import sys
import tomllib

import pytest
from click.testing import CliRunner

from atat_zoo.cli.new_command import new, templates, write_package
from atat_zoo.experiment import load
from atat_zoo.registry import KINDS, TABLES, Zoo, plugins
from atat_zoo.registry import zoo as zoo_module
from atat_zoo.testing import cases, check_imports
from tests import forked, in_process
from tests.cli.terminal import printed, refused
from tests.installing import install_beside
from tests.pages import ROOT

pytestmark = pytest.mark.slow


def python(*words, cwd):
    return subprocess.run([sys.executable, *words], cwd=cwd, capture_output=True, text=True, check=False)


@pytest.fixture(scope="module")
def written(tmp_path_factory):
    """A package of each kind, all of them installed: by kind, its folder."""
    root, found = tmp_path_factory.mktemp("new"), plugins.distributions
    packages = {kind: write_package(kind, f"my-{kind.replace('_', '-')}", root) for kind in KINDS}
    path = [str(root), *(install_beside(package, root) for package in packages.values())]
    with pytest.MonkeyPatch.context() as patch:
        for folder in path:
            patch.syspath_prepend(folder)
        patch.setenv("PYTHONPATH", os.pathsep.join([*path, os.environ.get("PYTHONPATH", "")]))
        patch.delenv(plugins.ALLOWED, raising=False)
        patch.setattr(plugins, "distributions", lambda: found(path=[str(root)]))
        zoo_module._load.cache_clear()
        yield packages
    zoo_module._load.cache_clear()


@pytest.mark.parametrize("kind", KINDS)
def test_a_package_as_it_is_written_keeps_the_contract_of_its_kind(written, kind):
    found = cases(distribution=written[kind].name)
    assert {(case.kind, case.name) for case in found} == {(kind, f"my_{kind}")}
    assert len(found) > 2, "only its description would be tested"
    for case in found:
        if case.promise != "imports":  # in a process of its own: see below
            case.run(examples=5)


def test_the_tests_of_a_package_install_pytest_and_hypothesis_and_not_what_the_zoos_own_need(written):
    files = [*(package / "pyproject.toml" for package in written.values()), *ROOT.glob("plugins/*/pyproject.toml")]
    assert len(files) > len(KINDS)
    for file in files:
        test = tomllib.loads(file.read_text(encoding="utf-8"))["project"]["optional-dependencies"]["test"]
        assert {"hypothesis", "pytest"} <= {re.split("[>=]", each)[0] for each in test}, file
        assert [each for each in test if re.match(r"atat-zoo\[.*\btest\b", each)] == [], file


def test_no_package_needs_torch_to_be_listed_or_is_replaced(written, atat, tmp_path):
    zoo = Zoo.load()
    check_imports(zoo.describe(kind, f"my_{kind}").path for kind in written)
    said = refused(atat, "new", "noise", "my-corpus", "--in", str(tmp_path))
    assert said == "error: the package atat-zoo-my-corpus is already installed; choose another name"
    assert not any(tmp_path.iterdir())


# Objectives that generate with a cache, which the network of the template does not take, and a sampler of each.
WITH_CACHE = {
    "{use='set_causal', subset_share=0.5}": "{use='ancestral', steps=8}",
    "{use='strided_causal', stride=8}": "{use='strided', stride=8}",
    "autoregressive": "{use='semi_autoregressive', block_size=1, block_sampler='ancestral'}",
    "{use='block', block_size=8}": "{use='semi_autoregressive', block_size=8, block_sampler='ancestral'}",
}


@pytest.mark.parametrize("objective", WITH_CACHE)
def test_a_backbone_without_a_cache_is_trained_and_sampled_with_every_objective(written, objective, tmp_path):
    small = ["train.steps=1", "data.length=16", "train.ema_decay=0", "evaluation.sequences=2"]
    words = [f"objective={objective}", f"sampler={WITH_CACHE[objective]}", *small, "--out", str(tmp_path / "run")]
    done = in_process.run(["train", "experiment.toml", *words], written["backbone"])
    assert done.returncode == 0, done.stdout + done.stderr
    assert "sample" in done.stdout


def test_the_experiment_of_a_package_uses_its_part_and_says_what_it_needs(written):
    for kind, package in written.items():
        made = load(str(package / "experiment.toml"))
        needs = () if kind == "judge" else (package.name,)  # a judge is named on the command line
        assert made.requires == needs
        assert list(needs) == made.to_table().get("requires", [])


def test_there_is_a_template_of_each_kind_and_of_nothing_else():
    folders = {path.name for path in templates().iterdir() if path.is_dir()}
    assert folders - {"__pycache__"} == {*KINDS, "package"}
    uses = tomllib.loads((templates() / "uses.toml").read_text(encoding="utf-8"))
    # Besides the kinds without a table, those that another objective or an importance is needed for.
    assert uses.keys() == KINDS.keys() - TABLES.keys() | {"masking", "position_sets", "target"}


@pytest.mark.parametrize("name", ["x", "a-very-long-name-of-30-letters"])
def test_every_package_is_tidy_whatever_the_length_of_its_name(name, tmp_path):
    pytest.importorskip("ruff", reason="pip install 'atat-zoo[dev]'")
    for kind in KINDS:
        (tmp_path / kind).mkdir()
        write_package(kind, name, tmp_path / kind)
    for words in (["check"], ["format", "--check"]):
        done = python("-m", "ruff", *words, "--no-cache", ".", cwd=tmp_path)
        assert done.returncode == 0, done.stdout + done.stderr


def test_nothing_is_left_of_the_template_but_what_it_says(tmp_path):
    package = write_package("mask_drawing", "one-two", tmp_path)
    files = {str(path.relative_to(package)): path for path in package.rglob("*") if path.is_file()}
    module = "atat_zoo_one_two"
    own = {f"{module}/__init__.py", f"{module}/py.typed", "tests/test_one_two.py", ".github/workflows/test.yml"}
    assert files.keys() == own | {"LICENSE", "README.md", "experiment.toml", "pyproject.toml"}
    for name, path in files.items():
        text = path.read_text(encoding="utf-8")
        assert not any(word in text for word in ("placeholder", "Placeholder", "KIND_OF", "MODULE_OF")), name
    assert "class OneTwoDrawing:" in files[f"{module}/__init__.py"].read_text(encoding="utf-8")
    assert "`atat_zoo.modeling.masking.mask_drawing`" in files["README.md"].read_text(encoding="utf-8")
    # A name may hold the word that stands for it.
    package = write_package("noise", "my-placeholder", tmp_path)
    project = tomllib.loads((package / "pyproject.toml").read_text())["project"]
    assert project["name"] == package.name == "atat-zoo-my-placeholder"
    assert project["entry-points"]["atat_zoo"] == {"my_placeholder": "atat_zoo_my_placeholder"}


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (("nois", "mine"), "unknown kind of component 'nois'; did you mean 'noise'?"),
        (("noise", "linear"), "atat-zoo already has a noise named 'linear'; choose another name"),
        (("noise", "x" * 31), "at most 30 characters"),
        (("noise", "mine", "--in", "nowhere"), "--in nowhere: this folder does not exist"),
        (("noise", "taken"), "atat-zoo-taken exists; choose another name"),
        (("experiment", "taken"), "taken.toml exists; choose another name"),
        (("experiment", "a/b"), "name: expected a folder name"),
        (("experiment", "mine", "--corpus", "files"), "corpus.train: is missing"),
    ],
)
def test_a_mistake_is_a_sentence_and_nothing_is_written(words, said, atat, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "atat-zoo-taken").mkdir()
    (tmp_path / "taken.toml").touch()
    assert said in refused(atat, "new", *words)
    assert {path.name for path in tmp_path.rglob("*")} == {"atat-zoo-taken", "taken.toml"}


# `atat new experiment`


def test_an_experiment_explains_every_parameter_and_is_what_it_says(atat, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    flags = ("--objective", "mdlm", "--masking", "importance", "--sampler", "{use = 'klass', steps = 9}")
    said = printed(atat, "new", "experiment", "mine", *flags, "train.steps=7")
    assert (
        "wrote mine.toml with estimator.use=transformer, because this experiment needs an importance estimator" in said
    )
    assert "atat check mine.toml" in said
    made = load("mine.toml")
    overrides = ["name=mine", "masking=importance", "estimator.use=transformer", "sampler={use='klass',steps=9}"]
    assert made == load("base/sotu", [*overrides, "train.steps=7"])
    text = (tmp_path / "mine.toml").read_text(encoding="utf-8")
    zoo = Zoo.load()
    for kind in made.kinds:
        assert KINDS[kind].summary in text
        for name, parameter in zoo.describe(kind, made.parts[kind].name).parameters.items():
            assert any(name in line and line.endswith(f"  # {parameter['help']}") for line in text.splitlines()), name
    assert "mine is valid" in printed(atat, "check", "mine.toml")


def test_an_experiment_is_written_by_asking_or_like_another(atat, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    assert atat("new", "experiment", "mine", "--like", "guidance/war_and_peace")[0] == 0
    assert load("mine.toml") == load("guidance/war_and_peace", ["name=mine"])
    # That objective has no masking, so it is not asked for.
    answers = "asked\nautoregressive\n\nbytes\n\nleft_to_right\n"
    done = CliRunner().invoke(new, ["experiment"], input=answers)
    assert done.exit_code == 0, done.output
    assert "The training loss and the reported bound on the NLL. One of: adaptive, autoregressive" in done.output
    expected = ["name=asked", "objective=autoregressive", "tokenizer=bytes", "sampler=left_to_right"]
    assert load("asked.toml") == load("base/sotu", expected)


def test_its_own_tests_pass_as_they_are_written_and_parts_of_packages_train_together(written):
    done = forked.run(["-q", "-p", "no:cacheprovider"], written["target"], code=forked.PYTEST)
    assert done.returncode == 0, done.stdout + done.stderr
    assert "3 passed" in done.stdout
    words = [f"{kind}=my_{kind}" for kind in ("objective", "optimizer", "schedule")] + ['train.loggers=["my_logger"]']
    words += ["train.steps=3", "evaluation.samples=0", "corpus.first_year=1990", "--out", "run"]
    done = forked.run(["train", "experiment.toml", *words], written["objective"])
    assert done.returncode == 0, done.stdout + done.stderr
    assert "loss" in "".join(path.read_text() for path in (written["objective"] / "run").rglob("my_logger.csv"))
