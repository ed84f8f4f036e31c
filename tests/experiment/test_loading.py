"""Files and overrides to one validated experiment."""

import os
import re
from pathlib import Path

import attrs
import pytest

from atat_zoo import UserError, Zoo
from atat_zoo.experiment import from_table, load, names, recipe, recipes
from atat_zoo.registry import TABLES, component
from atat_zoo.registry.registry_file import entry_of, read, shipped
from atat_zoo.system.errors import clip


@pytest.fixture
def write(tmp_path):
    def write(name, text):
        path = tmp_path / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text, encoding="utf-8")
        return str(path)

    return write


def refused(*args, **kwargs):
    """Return what `load` says of a mistake, as lines."""
    with pytest.raises(UserError) as caught:
        load(*args, **kwargs)
    return str(caught.value).splitlines()


# What is merged


def test_a_part_is_a_name_or_a_table_with_or_without_use_and_all_else_is_default(write):
    text = 'masking = "importance"\n[estimator]\nuse = "transformer"\nlayers = 1\n[backbone]\npreset = "nano"'
    parts = load(write("a.toml", text)).parts
    assert (parts["masking"].name, parts["estimator"].layers, parts["backbone"].preset) == ("importance", 1, "nano")
    assert load(write("a.toml", 'masking = "time_only"')).to_table()["masking"] == {"use": "uniform"}  # an alias
    made = load(write("plain.toml", ""))
    assert (made.name, made.seed) == ("plain", 17)
    assert made.parts == {kind: Zoo.load().spec(kind, name) for kind, name in TABLES.items()}


def test_extends_is_relative_to_the_file_that_says_it_and_the_later_wins(write, monkeypatch, tmp_path):
    write("base/deep/one.toml", "seed = 1\n[train]\nsteps = 11\nbatch_size = 22\nkeep_checkpoints = 7")
    write("base/two.toml", 'extends = "deep/one.toml"\n[train]\nsteps = 33')
    write("mine/other.toml", "seed = 2\n[train]\nbatch_size = 5\nmax_grad_norm = 0.1")
    path = write("mine/exp.toml", 'extends = ["../base/two.toml", "other.toml"]\n[train]\nmax_grad_norm = 0.5')
    monkeypatch.chdir(tmp_path)
    made = load(path)
    assert (made.seed, made.train.steps, made.train.batch_size, made.train.max_grad_norm) == (2, 33, 5, 0.5)
    assert made.train.keep_checkpoints == 7
    assert load("mine/exp.toml") == made


def test_a_link_extends_what_is_beside_it(write, tmp_path):
    write("there/real.toml", "extends = 'base.toml'\n[train]\nmax_grad_norm = 0.5")
    write("there/base.toml", "seed = 1")
    write("here/base.toml", "seed = 2")
    os.symlink("../there/real.toml", tmp_path / "here" / "link.toml")
    for bases, seed in ((["here/link.toml", "there/real.toml"], 1), (["there/real.toml", "here/link.toml"], 2)):
        assert load(write("a.toml", f"extends = {bases}")).seed == seed


def test_importance_that_all_tokens_share_is_not_read(write):
    (line,) = refused(write("a.toml", 'masking = "importance"\nestimator = "uniform"\n[curriculum]\nuse = "none"'))
    assert "'importance' uses the importance of tokens, but estimator 'uniform' gives every token the same" in line


def test_a_file_is_read_once_however_many_ways_lead_to_it(write, tmp_path, monkeypatch):
    read = []
    whole = Path.read_text
    monkeypatch.setattr(Path, "read_text", lambda self, **given: read.append(self) or whole(self, **given))
    write("0.toml", "seed = 9\n[train]\nsteps = 5")
    for number in range(1, 16):
        write(
            f"{number}.toml",
            f"extends = ['{number - 1}.toml', '{number - 1}.toml']\n[train]\nmax_grad_norm = 0.{number}",
        )
    made = load(write("top.toml", "extends = ['15.toml', '14.toml', '15.toml']"))
    assert (made.seed, made.train.steps, made.train.max_grad_norm) == (9, 5, 0.15)
    here = sorted(path.name for path in read if path.parent == tmp_path)
    assert here == sorted([*(f"{number}.toml" for number in range(16)), "top.toml"])


def test_a_name_is_not_inherited(write):
    write("base.toml", 'name = "base-name"')
    assert load(write("child.toml", 'extends = "base.toml"')).name == "child"
    assert load(write("named.toml", 'extends = "base.toml"\nname = "mine"')).name == "mine"
    assert load(write("experiments/owt/atat.toml", "")).name == "owt-atat"


def test_tables_merge_and_a_changed_use_drops_what_the_old_part_was_given(write):
    write(
        "base.toml",
        'estimator = "frequency"\n[masking]\nuse = "importance"\ntemperature = 0.7\n'
        '[curriculum]\nuse = "three_stage"\nsharpness = 3',
    )
    same = load(write("same.toml", 'extends = "base.toml"\n[curriculum]\nwarmup_steps = 5'))
    assert (same.parts["curriculum"].sharpness, same.parts["curriculum"].warmup_steps) == (3.0, 5)
    # `power` has a temperature too: it must not be the one that importance was given.
    other = load(write("other.toml", 'extends = "base.toml"\nmasking = "power"\ncurriculum = "none"'))
    assert other.parts["masking"] == Zoo.load().spec("masking", "power")
    assert other.parts["curriculum"].name == "none"
    for text in ("", '[masking]\nuse = "importance"', 'masking = "importance"'):
        assert load(write("again.toml", f'extends = "base.toml"\n{text}')).parts["masking"].temperature == 0.7


def test_parts_inside_parts_and_the_default_part_merge_alike(write):
    write("base.toml", '[backbone]\npreset = "nano"\n[estimator]\nuse = "hybrid"\nmix = 0.6\nlearned = "uniform"')
    child = load(write("child.toml", 'extends = "base.toml"\n[backbone]\nuse = "dit"\n[estimator]\nmix = 0.5')).parts
    assert (child["estimator"].mix, child["estimator"].learned.name, child["backbone"].preset) == (
        0.5,
        "uniform",
        "nano",
    )
    write("base.toml", '[estimator]\nuse = "hybrid"\nmix = 0.6\n[estimator.learned]\nlayers = 1\nwidth = 8')
    child = load(write("child.toml", 'extends = "base.toml"\n[estimator.learned]\nheads = 2'))
    learned = child.parts["estimator"].learned
    assert (learned.name, learned.layers, learned.width, learned.heads) == ("transformer", 1, 8, 2)
    child = load(write("child.toml", 'extends = "base.toml"\n[estimator.learned]\nuse = "uniform"'))
    assert (child.parts["estimator"].mix, child.parts["estimator"].learned.name) == (0.6, "uniform")


# Overrides


def test_overrides_are_toml_or_a_bare_word(write):
    path = write("a.toml", 'name = "a"\nestimator = "frequency"\n[masking]\nuse = "importance"\ntemperature = 0.7')
    words = [
        "train.steps=5",
        "masking.temperature = 0.2",
        "data.special_tokens=document",
        "train.compile=true",
        'name="b"',
    ]
    made = load(path, [*words, "optimizer.betas=[0.5, 0.6]", "data.root=a folder # with a = sign"])
    assert (made.train.steps, made.parts["masking"].temperature, made.data.special_tokens) == (5, 0.2, "document")
    assert (made.train.compile, made.name, made.parts["optimizer"].betas) == (True, "b", (0.5, 0.6))
    assert made.data.root == "a folder # with a = sign"
    assert load(path, ["corpus.use = files", "corpus.train=[\n'a',\n]"]).parts["corpus"].train == ("a",)
    assert load(path, ["train.steps=5", "train.steps=6", "train={steps=8, max_grad_norm=2}"]).train.steps == 8


def test_overrides_change_a_part_in_any_order(write):
    path = write("a.toml", 'estimator = "frequency"\n[masking]\nuse = "importance"\ntemperature = 0.7')
    expected = Zoo.load().spec("masking", {"use": "power", "temperature": 0.2})
    for overrides in (
        ["masking.use=power", "masking.temperature=0.2"],
        ["masking.temperature=0.2", "masking.use=power"],
        ["masking=power", "masking.temperature=0.2"],
        ["masking.temperature=0.2", "masking=power"],
    ):
        assert load(path, overrides).parts["masking"] == expected
    # What the file gave the old part is dropped.
    assert load(path, ["masking=power"]).parts["masking"] == Zoo.load().spec("masking", "power")


@pytest.mark.parametrize(
    ("override", "words"),
    [
        ("train.steps", "expected key=value, as in train.steps=200"),
        ("masking=importence", "masking.use: unknown masking 'importence'"),
        ("extends=other.toml", "extends: only works in an experiment file"),
        ("trian.steps=3", "trian: unknown key in an experiment; did you mean 'train'?"),
        ("train.steps=7 # no, 9", "the value is followed by a comment or another key; remove what follows the value"),
        ("train.steps=7\nseed = 3", "the value is followed by a comment or another key"),
        ("data.root=\udcff", "data.root: expected a UTF-8 string without NUL characters, got '\\udcff' (str)"),
        # Without end.
        (f"{'a.' * 2000}b=1", "is not a valid key: it is nested more than 64 levels deep"),
        (f"seed=0x{'f' * 5000}", "seed: expected an int from 0 to 2**63 - 1, got '0xfffff"),
        (f"name={'ü' * 128}", "name: expected a folder name of at most 255 bytes without '/', got 'üü"),
    ],
)
def test_overrides_take_the_same_validation(write, override, words):
    (line,) = refused(write("a.toml", ""), [override])
    assert line.startswith(f"{clip(repr(override))} on the command line: {words}")
    assert len(line) < 900


# What is refused: one sentence, with the file, the key and the remedy


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("maskin.use = 'x'", "maskin: unknown key in an experiment; did you mean 'masking'? (available: name, seed,"),
        ("train.loggers = ['file', 'fil']", "train.loggers[1].use: unknown logger 'fil'; did you mean 'fi"),
        ("train = 3", "train: expected a table, got 3"),
        (
            "order.use = 'random'",
            "order: is not a table in an experiment; set it as a parameter of the component that uses it",
        ),
        ("name = 'a/b'", "name: expected a folder name"),
        ('name = "a\\nb"', "name: expected a folder name"),
        ("seed = -1", "seed: expected an int from 0 to 2**63 - 1, got -1"),
        (
            "data.length = 64\nestimator = {use = 'hybrid', learned.max_length = 32}",
            "data.length: 64 is longer than estimator.learned.max_length = 32; "
            "lower data.length or raise estimator.learned.max_length",
        ),
        ("optimizer = 'adafactor'\ntrain.sharding = 'full'", "train.sharding: optimizer 'adafactor' does not"),
        ("requires = 'click'", "requires: expected a list of package names, got 'click'"),
        ("extends = 3", "extends: expected a file name or a list of them, got 3"),
        ("extends = ['a.toml', 2]", "extends: expected a file name or a list of them, got ['a.toml', 2]"),
        ("extends = 'mine.toml'", "extends itself through mine.toml; remove one of these `extends`"),
        (f"seed = {'1' * 5000}", "is not valid TOML: "),
    ],
)
def test_every_mistake_is_one_sentence_with_file_and_key(write, text, words):
    path = write("mine.toml", text)
    (line,) = refused(path)
    assert line.startswith(f"{path}: {words}")


def test_all_mistakes_are_said_at_once_each_with_the_file_that_made_it(write):
    base = write("base.toml", "[train]\nsteps = 0\nmax_grad_norm = -1")
    path = write("child.toml", "extends = 'base.toml'\nmasking = 'nothing'\n[train]\nmax_grad_norm = 'x'")
    assert [line.split(": ")[:2] for line in refused(path, ["data.length=0"])] == [
        [path, "masking.use"],
        ["'data.length=0' on the command line", "data.length"],
        [base, "train.steps"],
        [path, "train.max_grad_norm"],
    ]


def test_what_is_no_experiment_is_said(write, tmp_path):
    assert "unknown experiment" in refused(str(tmp_path / "nothing.toml"))[0]
    assert refused(str(tmp_path)) == [f"{tmp_path} is a folder; pass the experiment file in it"]
    assert "cannot be read" in refused("x" * 5000)[0]
    assert refused(write("b.toml", "extends = 'atta'"))[0].startswith("unknown experiment 'atta'")
    path = write("a.toml", "extends = 'gone.toml'")
    base = str(tmp_path / "gone.toml")
    assert refused(path)[0].startswith(f"{path}: extends {base!r}, which does not exist; give a path")
    (tmp_path / "a.toml").write_bytes("name = 'ü'".encode("latin-1"))
    assert re.fullmatch(rf"{path}: is not UTF-8 text: .*; save it as UTF-8", refused(path)[0])


def test_a_circle_and_a_chain_without_end_are_refused(write, tmp_path):
    write("one.toml", "extends = 'two.toml'")
    write("two.toml", "extends = 'three/../one.toml'")
    (tmp_path / "three").mkdir()
    assert "extends itself through one.toml, two.toml" in refused(str(tmp_path / "one.toml"))[0]
    os.symlink(tmp_path / "four.toml", tmp_path / "link.toml")
    assert "extends itself" in refused(write("four.toml", "extends = 'link.toml'"))[0]
    write("0.toml", "seed = 3")
    for number in range(1, 40):
        write(f"{number}.toml", f"extends = '{number - 1}.toml'")
    (line,) = refused(write("top.toml", "extends = '39.toml'"))
    assert "8.toml: more than 32 files extend each other" in line
    assert load(write("top.toml", "extends = '30.toml'")).seed == 3


@pytest.mark.parametrize(
    ("base", "words"),
    [
        ("x" * 5000 + ".toml", "cannot be read: File name too long; pass a readable TOML file"),
        ("x" * 5000, "cannot be read: File name too long; pass an experiment file"),
        ("circle.toml", "cannot be read: Too many levels of symbolic links; pass a readable TOML file"),
        ("a\\u0000b.toml", "cannot be read: embedded null byte; pass a readable TOML file"),
        ("pipe.toml", "pipe.toml: cannot be read: it is a device or a pipe; pass a TOML file"),
        ("folder.toml", "folder.toml: cannot be read: Is a directory; pass a readable TOML file"),
    ],
)
def test_a_base_that_can_be_no_file_is_one_short_sentence(write, tmp_path, base, words):
    os.symlink("back.toml", tmp_path / "circle.toml")
    os.symlink("circle.toml", tmp_path / "back.toml")
    os.mkfifo(tmp_path / "pipe.toml")
    (tmp_path / "folder.toml").mkdir()
    (line,) = refused(write("a.toml", f'extends = "{base}"'))
    assert words in line
    assert len(line) < 900


@component
class Plain:
    """An objective that uses little."""

    name = "plain"
    summary = "an objective that uses a backbone and noise only"
    uses = frozenset({"backbone", "noise"})


@component
class Bare:
    """An objective that uses nothing."""

    name = "bare"
    summary = "an objective that uses no other part"
    uses = frozenset()


@component
class Recurrent:
    """A backbone without attention."""

    name = "recurrent"
    summary = "a backbone that always reads the whole text, both ways"
    reads_time = False
    both_ways_only = True


@pytest.fixture(scope="module")
def larger():
    menu = read(shipped())
    ours = [entry_of("objective", cls, "here") for cls in (Plain, Bare)] + [entry_of("backbone", Recurrent, "here")]
    return Zoo(attrs.evolve(menu, entries=(*menu.entries, *ours)), [])


def test_an_objective_refuses_the_kinds_that_it_does_not_use(write, larger):
    path = write("a.toml", "objective = 'plain'\nmasking = 'importance'\n[curriculum]\nuse = 'none'")
    assert refused(path, zoo=larger) == [
        f"{path}: {kind}: objective 'plain' does not use the kind {kind}; remove [{kind}], or extend mdlm, whose "
        "objective does"
        for kind in ("masking", "curriculum")
    ]


@pytest.mark.parametrize("overrides", [(), ["objective.use=plain"], ["objective=plain", "backbone.preset=nano"]])
def test_tables_that_an_objective_does_not_use_are_not_inherited(write, larger, overrides):
    write("base.toml", "masking = 'importance'\nnoise = 'cosine'\n[curriculum]\nuse = 'dynamic'")
    named = "" if overrides else "objective = 'plain'"
    made = load(write("a.toml", f"extends = 'base.toml'\n{named}"), overrides, larger)
    assert made == load(write("b.toml", "objective = 'plain'\nname = 'a'\nnoise = 'cosine'"), overrides, larger)
    assert " ".join(made.kinds) == "corpus tokenizer backbone noise objective sampler guidance optimizer schedule"
    assert "masking" not in made.to_table()
    assert from_table(made.to_table(), zoo=larger) == made
    # A long sequence is no problem of an absent backbone.
    load(write("a.toml", "objective = 'bare'\n[data]\nlength = 2000"), zoo=larger)


@pytest.mark.parametrize(
    ("own", "overrides", "lines"),
    [
        # Of a table that is inherited in part, as of one of its own.
        (
            "objective = 'plain'\n[masking]\ntemperature = 2.0",
            (),
            ["{a}: masking: objective 'plain' does not use the kind masking"],
        ),
        (
            "objective = 'plain'",
            ["masking.temperature=2.0"],
            ["'masking.temperature=2.0' on the command line: masking:"],
        ),
        (
            "[curriculum]\nuse = 'none'",
            ["objective=plain", "curriculum.use=dynamic"],
            ["'curriculum.use=dynamic' on the command line: curr"],
        ),
        ("objective = 'plane'", (), ["{a}: objective.use: unknown objective 'plane'"]),
    ],
)
def test_tables_beside_the_objective_are_refused(write, larger, own, overrides, lines):
    write("base.toml", "masking = 'importance'")
    a = write("a.toml", f"extends = 'base.toml'\n{own}")
    with pytest.raises(UserError) as error:
        load(a, overrides, larger)
    for line, found in zip(lines, str(error.value).splitlines(), strict=True):
        assert found.startswith(line.format(a=a)), found


@pytest.mark.parametrize(
    ("objective", "sampler"),
    [("autoregressive", "left_to_right"), ("strided_causal", "strided"), ("block", "semi_autoregressive")],
)
def test_a_backbone_that_reads_both_ways_only_is_not_asked_to_read_a_part(write, larger, objective, sampler):
    path = write("a.toml", f"objective = '{objective}'\nsampler = '{sampler}'\nbackbone = 'recurrent'")
    (said,) = refused(path, zoo=larger)
    assert said.startswith(f"{path}: objective: '{objective}' needs ")
    assert "'recurrent'" in said
    assert "mdlm" in said, "what to use instead"
    load(write("b.toml", "backbone = 'recurrent'"), zoo=larger)


def test_a_recipe_is_the_corpus_of_its_file_and_another_name_is_none():
    assert "lm1b" in recipes()
    assert {"quickstart", "studies/sets", "baselines/sedd", "mdlm", "lm1b/mdlm"} <= {*names()}
    for name in recipes():
        assert recipe(name, Zoo.load()) == recipe(name)
    assert len({repr(recipe(name)) for name in recipes()}) == len(recipes())
    with pytest.raises(KeyError, match=r"^'nosuch'$"):
        recipe("nosuch")


def test_what_reads_importance_says_so_and_masks_by_position_alone_do_not():
    zoo = Zoo.load()

    def reading(kind):
        return {name for name in zoo.names(kind) if zoo.spec(kind, name).reads_importance}

    assert {*zoo.names("masking")} - reading("masking") == {"uniform", "position", "progressive"}
    assert reading("curriculum") == {"dynamic", "planner_aware", "three_stage"}
    assert zoo.spec("position_sets", "by_importance").reads_importance
    assert not zoo.spec("position_sets", "random").reads_importance


@pytest.mark.parametrize(
    ("parts", "words"),
    [
        (
            {"objective": "set_causal"},
            "objective 'set_causal' attends over the whole sequence, including the other dialogues in it",
        ),
        (
            {"estimator": "transformer"},
            "estimator 'transformer' reads all dialogues in a sequence together; set data.packing",
        ),
    ],
)
def test_what_reads_a_row_as_a_whole_takes_no_packed_dialogues(parts, words):
    table = {"name": "talk", "corpus": {"use": "files", "train": ["a"]}, "backbone": {"ngram_prior": 0}}
    with pytest.raises(UserError) as caught:
        from_table(table | parts | {"data": {"format": "chat", "packing": "packed"}})
    assert f"data.packing: {words}" in str(caught.value)
