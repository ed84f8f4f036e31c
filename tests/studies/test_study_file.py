"""The study file: what it means, and what is refused before anything is trained."""

import re
from itertools import combinations
from pathlib import Path

import pytest

from atat_zoo.experiment.runs.changes import between_models
from atat_zoo.studies import load
from atat_zoo.system.errors import UserError
from tests.studies.making import STUDY

LAYERS = """
seeds = [18, 19]
baseline = "plain"
overrides = ["train.steps=4", "train.batch_size=8", "train.max_grad_norm=2.0"]
[arms]
plain = { experiment = "tiny.toml", overrides = ["train.batch_size=6", "train.max_grad_norm=3.0"] }
fast = { like = "plain", overrides = ["train.max_grad_norm=4.0", "optimizer.learning_rate=1e-2"] }
[sweep]
seed = 1
points = { low = ["optimizer.learning_rate=1e-4"], high = [] }
"""


def test_what_is_said_later_wins(read):
    """The study's overrides come first, then those of the arm that it is like, its own, the point, measured steps."""
    study = read(LAYERS)
    run = study.run("fast", 18, "low")
    assert (run.experiment.train.steps, run.experiment.train.batch_size, run.experiment.train.max_grad_norm) == (
        4,
        6,
        4.0,
    )
    assert run.experiment.parts["optimizer"].learning_rate == 1e-4
    assert (study.name, str(run.path)) == ("study", "runs/study/fast-low-seed18")
    assert (study.against("fast"), study.against("plain")) == (("plain",), ())
    assert study.run("fast", 18, "high", 7).experiment.train.steps == 7
    # Only what has an experiment of its own is swept; the other takes its point.
    assert [run.name for run in study.sweep_runs()] == ["plain-low-seed1", "plain-high-seed1"]
    assert [run.name for run in study.arm_runs("fast", {"plain": "high"})] == ["fast-high-seed18", "fast-high-seed19"]


def test_a_budget_is_an_arm_of_its_own(read):
    changed = LAYERS.replace('experiment = "tiny.toml",', 'experiment = "tiny.toml", bound = "sets", budgets = [2, 8],')
    study = read(changed.replace('like = "plain",', 'like = "plain", seeds = [18], budgets = [8],'))
    assert list(study.arms) == ["plain", "plain-2", "plain-8", "fast", "fast-8"]
    assert study.at_budgets("plain") == ["plain", "plain-2", "plain-8"]
    run = study.run("fast-8", 18, "low")
    assert (run.experiment.train.steps, run.experiment.train.max_grad_norm, run.bound) == (8, 4.0, "sets")
    assert study.against("fast-8") == ("plain-8",)
    alone = read(changed.replace('like = "plain",', 'like = "plain", against = [], budgets = [9],'))
    assert (alone.against("fast"), alone.against("fast-9")) == ((), ())
    assert (study.against("plain-2"), study.seeds["fast-8"]) == ((), (18,))
    for before, after, said in (
        ("fast =", "plain-2 =", "arms.plain-2: 'plain' with 2 steps already has this name; rename the arm"),
        ("[2, 8]", "[2, 2]", "arms.plain.budgets: 2 appears twice"),
        ("[2, 8]", "[2, 4]", "arms.plain.budgets: 4 is already the arm's own number of steps"),
        (
            'like = "plain"',
            'like = "plain", budgets = [9]',
            "arms.fast.budgets: 'fast' is compared with 'plain', which lacks this budget; add 9",
        ),
        (
            'like = "plain"',
            'like = "plain", budgets = [8], match_seconds = "plain"',
            "'fast' sets match_seconds",
        ),
        ("high = []", 'high = ["train.steps=3"]', "sweep.points.high: budgets already set train.steps"),
    ):
        with pytest.raises(UserError, match=re.escape(said)):
            read(changed.replace(before, after))


SWEEP = '[sweep]\nseed = 17\n[sweep.points]\nlow = []\nhigh = ["optimizer.learning_rate=1e-2"]\n'


def writing(each, arm="plain"):
    return "mask_samples = 2", f'mask_samples = 2\n[samplers]\narms = ["{arm}"]\neach = {each}'


@pytest.mark.parametrize(
    ("change", "messages"),
    [
        (('folder = "study"', 'foldr = "study"'), ["foldr is not a key of a study; did you mean 'folder'?"]),
        (
            ("mask_samples = 2", "mask_sample = 2"),
            ["evaluation.mask_sample: is not a parameter of 'evaluation'; did you mean 'mask_samples'?"],
        ),
        (("seeds = [18, 19]", ""), ["arm 'plain' has no seeds", "arm 'fast' has no seeds"]),
        (("[18, 19]", "[18, 18]"), ["seeds: 18 appears twice for arm 'plain'", "'fast'"]),
        (('"tiny.toml"', '"tiny.toml"\nseeds = [3]'), ["seeds: arms 'fast' and 'plain' have no common seed"]),
        (('baseline = "plain"', 'baseline = "plan"'), ["baseline: no arm is named 'plan'; did you mean 'plain'?"]),
        (('like = "plain"', 'like = "plan"'), ["arms.fast.like: no arm is named 'plan'; did you mean 'plain'?"]),
        (('like = "plain"', 'like = "fast"'), ["arms.fast.like: fast is like fast; remove the circular reference"]),
        (('like = "plain"', ""), ["arms.fast: set either experiment or like, but not both"]),
        (('like = "plain"', 'like = "plain"\nagainst = ["fast"]'), ["an arm cannot be compared with itself"]),
        (('like = "plain"', 'like = "plain"\nagainst = ["z"]'), ["arms.fast.against: no arm is named 'z'"]),
        (('"tiny.toml"', '"tiny.toml"\nmatch_seconds = "fast"'), ["set `like` to", "arms.fast.like: '"]),
        (('like = "plain"', 'like = "plain"\nmatch_seconds = "fast"'), ["'fast' sets match_seconds"]),
        (('"tiny.toml"', '"tny.toml"'), ["arms.plain: unknown experiment 'tny.toml'", "arms.fast: unknown experiment"]),
        (("optimizer.", "optimiser."), ["arms.fast: 'optimiser.learning_rate=1e-2' in its overrides: optimiser"]),
        (("optimizer.learning_rate=1e-2", "seed=3"), ["arms.fast.overrides: the key seeds sets the seed"]),
        (("optimizer.learning_rate=1e-2", "data.length=8"), ["arms.fast: data.length is 8, and 16 for 'plain'"]),
        (
            (
                'optimizer.learning_rate=1e-2"]',
                'data.length=8"]\nagainst = []\n[arms.z]\nlike = "fast"\nagainst = ["fast", "plain"]',
            ),
            ["arms.z: data.length is 8, and 16 for 'plain'"],
        ),
        (
            (
                'optimizer.learning_rate=1e-2"]',
                'data.length=8"]\nagainst = []\n[gaps]\narms=["plain", "fast"]\neach=["left_to_right"]\nlengths=[4]',
            ),
            ["arms.fast: data.length is 8, and 16 for 'plain'"],
        ),
        (("optimizer.learning_rate=1e-2", "tokenizer.use=bpe"), ["tokenizer.use is", "tokenizer.vocabulary_size"]),
        (("[arms.fast]", '[arms."a/b"]'), ["arms.a/b: expected a folder name of letters"]),
        (
            ("mask_samples = 2", f"mask_samples = 2\n{SWEEP.replace('17', '18')}"),
            ["sweep.seed: 18 is also a seed of arm 'plain'", ""],
        ),
        (
            ("mask_samples = 2", f"mask_samples = 2\n{SWEEP.replace('low = []', '')}"),
            ["`points` has fewer than two points"],
        ),
        (("seeds = [18", "seeds = 18, ["), ["is not valid TOML"]),
        (writing('["ancestral", "left_to_right"]', "none"), ["samplers.arms: no arm is named 'none'"]),
        (writing('["ancestral"]'), ["samplers: `each` has fewer than two samplers"]),
        (
            writing('["ancestral", "policy"]'),
            ["samplers.each[1]: arm 'plain': sampler: the decoding order 'importance'"],
        ),
        (writing('["ancestral", "remdm_cap"]'), ["samplers.each[1]: 'remdm_cap' has no policy bound"]),
    ],
)
def test_a_mistake_is_a_sentence(read, change, messages):
    before, after = change
    text = STUDY.replace(before, after)
    with pytest.raises(UserError) as caught:
        read(text)
    lines = str(caught.value).splitlines()
    assert all(line.startswith("study.toml: ") for line in lines), lines
    for message in messages:
        assert any(message in line for line in lines), lines
    assert len(lines) == len(messages), lines


def test_no_two_runs_have_one_folder(read):
    text = STUDY + SWEEP.replace("high", "x-low") + '[arms.plain-x]\nlike = "plain"\n'
    with pytest.raises(UserError, match="two runs would use the folder study/plain-x-low-seed18; rename an arm"):
        read(text)


def test_a_study_and_an_experiment_that_ship_go_by_their_names(read):
    assert load(Path("screen")).name == "screen"
    assert load(Path("screen.toml")).file.is_absolute()
    study = read('name = "mine"\nseeds = [1]\nbaseline = "a"\n[arms.a]\nexperiment = "mdlm"\n')
    assert study.folder == Path("runs/mine")
    assert study.run("a", 1).experiment.name == "mdlm"


@pytest.mark.parametrize("split", ["validation", "test"])
def test_a_run_is_evaluated_on_the_split_that_is_asked_for(split):
    assert load(Path("screen")).spec(split).split == split


@pytest.mark.parametrize(
    "file", sorted((Path(__file__).parents[2] / "experiments/studies").glob("*.toml")), ids=lambda file: file.stem
)
def test_no_two_arms_that_ship_train_the_same_model(file):
    study = load(file)
    tables = {arm: study.run(arm, 0).experiment.to_table() for arm in study.arms if arm not in study.matched}
    for one, other in combinations(tables, 2):
        if set(study.seeds[one]) & set(study.seeds[other]):
            assert between_models(tables[one], tables[other]), (one, other)


def test_a_study_that_is_not_there(atat, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    for words, sentence in (
        ("scren", "; did you mean 'screen'?\n"),
        ("../atat", "does not exist"),  # a study is one of ours by its name, not by a way to it
        (str(tmp_path), "cannot be read: Is a directory"),
    ):
        code, _, err = atat("study", words)
        assert (code, sentence in err) == (2, True)


@pytest.mark.parametrize(
    ("tasks", "problem"),
    [
        ("'infiling'", "evaluation.tasks[0].use: unknown task 'infiling'; did you mean 'infilling'?"),
        ("'infilling', 'infilling'", "evaluation: tasks has 'infilling' twice"),
        (
            "{use = 'infilling', gap = 15}",
            "evaluation.tasks[0]: arm 'plain': a gap of 15 tokens does not leave a token",
        ),
    ],
)
def test_a_task_that_no_run_can_be_measured_by_is_refused(read, tasks, problem):
    with pytest.raises(UserError) as said:
        read(STUDY.replace("mask_samples = 2", f"tasks = [{tasks}]"))
    assert problem in str(said.value)


def test_files_that_a_task_lacks_are_named_before_a_training(read, atat):
    study = read(STUDY.replace("mask_samples = 2", "tasks = [{use = 'zero_shot', corpora = ['ptb']}]"))
    for words in (["--dry-run"], []):
        code, _, err = atat("study", "study.toml", *words)
        assert (code, "task zero_shot (corpora = ['ptb']): PTB: file not found: corpora/ptb" in err) == (2, True)
    assert not study.folder.exists()
