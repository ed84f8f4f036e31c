"""What an experiment takes from the run that it continues from. No run is trained here: its files are written."""

import hashlib
import json
import shutil
import subprocess
import sys
from pathlib import Path

import attrs
import pytest

from atat_zoo import UserError, Zoo
from atat_zoo.experiment import from_table, load
from atat_zoo.experiment.inheritance import Source, incompatibilities
from tests.experiment.test_loading import refused, write

__all__ = ["refused", "write"]

BACKBONE = '[backbone]\npreset = "nano"\nlocal_heads = 2\nmax_length = 96\ndropout = 0.1\n'
TOKENIZER = "[tokenizer]\nvocabulary_size = 512\n"
DATA = '[data]\nlength = 64\nspecial_tokens = "sequence"\npacking = "document"\n'
FILE = b'{"a tokenizer": 1}'


def hashed(data):
    return hashlib.sha256(data).hexdigest()


def finished(folder, text, tokenizer=FILE):
    """Write what a finished run leaves behind, but for the weights' content."""
    folder.mkdir(parents=True)
    (folder / "source.toml").write_text(text)
    made = load(str(folder / "source.toml"))
    (folder / "resolved.toml").write_text(made.to_toml())
    (folder / "model").mkdir()
    description = {"step": 7, "experiment": made.to_table(), "sha256": {"tokenizer.json": hashed(tokenizer)}}
    (folder / "model" / "model.json").write_text(json.dumps(description))
    (folder / "model" / "model.safetensors").write_bytes(b"")
    (folder / "model" / "tokenizer.json").write_bytes(tokenizer)
    return str(folder)


@pytest.fixture
def run(tmp_path):
    return finished(tmp_path / "run", BACKBONE + TOKENIZER + DATA)


def test_what_the_weights_depend_on_is_taken_from_the_run(run, write):
    made = load(write("fine.toml", "[corpus]\nfirst_year = 1981\n[train]\nsteps = 5"), [f"init_from={run}"])
    there = load(f"{run}/source.toml")
    assert made.init_from == run
    assert made.parts["backbone"] == there.parts["backbone"]
    assert (made.data.length, made.data.special_tokens, made.data.packing) == (64, "sequence", "document")
    assert made.train.steps == 5
    tokenizer = made.parts["tokenizer"]
    assert (tokenizer.name, tokenizer.path, tokenizer.like) == ("run", run, there.parts["tokenizer"])
    assert tokenizer.sha256 == tokenizer.fingerprint() == hashed(FILE)
    # The rest is the experiment's own.
    assert made.parts["corpus"].first_year == 1981
    assert made.train.batch_size == 64


def test_what_the_run_says_may_be_said_again_or_change_where_the_weights_allow_it(run, write, tmp_path):
    path = write("a.toml", f'init_from = "{run}"')
    plain = load(path)
    named = f'[tokenizer]\nuse = "run"\npath = "{run}"'
    for again in (f"{BACKBONE}{TOKENIZER}{DATA}", 'tokenizer = "run"', named):
        assert load(write("b.toml", f'init_from = "{run}"\n{again}'), ["name=a"]) == plain
    made = load(path, ["backbone.dropout=0.3", "data.length=96"])  # longer than trained on, not than it reads
    assert (made.parts["backbone"].dropout, made.data.length) == (0.3, 96)
    # Dialogues have the special tokens of their template, and none of the run.
    chat = load(path, ['data.format="chat"', "corpus={use='files', train=['a']}"])
    assert (chat.data.length, chat.data.special_tokens, chat.data.packing) == (64, "none", "document")
    resolved = write("resolved.toml", plain.to_toml())
    moved = shutil.move(run, tmp_path / "moved")
    again = load(resolved, [f"init_from={moved}"])
    assert again.parts["tokenizer"] == attrs.evolve(plain.parts["tokenizer"], path=str(moved))


def test_it_resolves_to_itself_with_and_without_the_run(run, write):
    made = load(write("fine.toml", f'init_from = "{run}"\n[data]\nlength = 32'))
    assert load(write("resolved.toml", made.to_toml())) == made
    shutil.rmtree(run)
    assert from_table(made.to_table()) == made
    (line,) = refused(write("resolved.toml", made.to_toml()))
    assert "init_from: " in line
    assert "is not a run folder" in line


def test_a_chain_keeps_the_first_tokenizer(run, write, tmp_path):
    second = finished(tmp_path / "second", f'init_from = "{run}"')
    shutil.rmtree(run)
    made = load(write("third.toml", f'init_from = "{second}"'))
    assert made.parts["tokenizer"].like == Zoo.load().spec("tokenizer", {"use": "bpe", "vocabulary_size": 512})
    assert made.parts["tokenizer"].path == second


@pytest.mark.parametrize(
    ("override", "words"),
    [
        ("backbone.preset=small", "backbone.preset: 'small' here, but 'nano' in {run}, whose backbone"),
        ("tokenizer=bytes", "tokenizer.use: 'bytes' here, but 'bpe' in {run}, whose tokenizer cannot be changed"),
        ("tokenizer.vocabulary_size=300", "tokenizer.vocabulary_size: 300 here, but 512 in {run}, whose tokenizer"),
        ("data.length=97", "data.length: 97 is longer than backbone.max_length = 96; lower data"),
        ("init_from=", "init_from: expected the folder of a finished run, got ''"),
        ("init_from=nowhere", "init_from: nowhere is not a run folder: resolved.toml is missing; pass a folder that"),
        ("tokenizer={use='run', path='other'}", "tokenizer.path: 'other' here, but init_from = "),
        ("tokenizer={use='run', sha256='12'}", "tokenizer.sha256: '12' here, "),
    ],
)
def test_what_does_not_fit_is_one_sentence(run, write, override, words):
    (line,) = refused(write("a.toml", f'init_from = "{run}"'), [override])
    assert line.startswith(f"{override!r} on the command line: {words.format(run=run)}"), line


def test_a_difference_names_the_file_that_said_it(run, write):
    base = write("base.toml", "[tokenizer]\nvocabulary_size = 300")
    path = write("a.toml", f'extends = "base.toml"\ninit_from = "{run}"\n[backbone]\npreset = "tiny"\nheads = 4')
    assert [line.partition(" here")[0] for line in refused(path)] == [
        f"{base}: tokenizer.vocabulary_size: 300",
        f"{path}: backbone.preset: 'tiny'",
        f"{path}: backbone.heads: 4",
    ]


@pytest.mark.parametrize(
    ("file", "text", "words"),
    [
        ("model/model.json", None, "has no final model yet; finish training it with `atat train --resume"),
        ("model/model.safetensors", None, "has no model.safetensors; copy the run again"),
        ("model/tokenizer.json", None, "has no tokenizer.json; copy the run again"),
        ("resolved.toml", None, "is not a run folder"),
        *(("model/model.json", text, "copy the run again") for text in ("{", "[]", '{"experiment": {}, "step": 3}')),
        ("model/model.json", '{"experiment": 3, "step": "x"}', "copy the run again"),
    ],
)
def test_a_run_that_is_not_whole(run, write, file, text, words):
    (Path(run) / file).unlink() if text is None else (Path(run) / file).write_text(text)
    (line,) = refused(write("a.toml", f'init_from = "{run}"'))
    assert "a.toml: init_from: " in line
    assert words in line


def test_a_training_looks_again(run, write):
    """An experiment that was put together in Python has not been through a file."""
    table = load(write("a.toml", BACKBONE + DATA)).to_table() | {"init_from": run}
    (problem,) = incompatibilities(from_table(table), Source.read(run, "init_from"), Zoo.load())
    assert str(problem).startswith("tokenizer.use: 'bpe' here, but 'run' in ")


# The tokenizer of a run, without its weights


def test_the_tokenizer_of_a_run_is_filled_in(run, write):
    path = write("a.toml", f'[tokenizer]\nuse = "run"\npath = "{run}"')
    made = load(path)
    tokenizer = made.parts["tokenizer"]
    assert made.init_from is None
    assert (tokenizer.like.vocabulary_size, tokenizer.sha256) == (512, hashed(FILE))
    assert made.parts["backbone"].preset == "small"  # nothing else is taken
    resolved = write("resolved.toml", made.to_toml())
    shutil.rmtree(run)
    assert attrs.evolve(load(resolved), name=made.name) == made
    (line,) = refused(path)
    assert line.startswith(f"{path}: tokenizer.path: {run} is not a run folder")


def test_a_tokenizer_that_has_changed_is_not_taken(run, write):
    tokenizer = load(write("a.toml", f'init_from = "{run}"')).parts["tokenizer"]
    (Path(run) / "model" / "tokenizer.json").write_bytes(b"{}")
    with pytest.raises(UserError, match="has changed since this experiment was resolved"):
        tokenizer.train(lambda: iter(()))
    (Path(run) / "model" / "tokenizer.json").unlink()
    with pytest.raises(UserError, match=r"tokenizer\.path: file not found: .*; name a finished run"):
        tokenizer.train(lambda: iter(()))


@pytest.mark.slow
def test_nothing_of_this_imports_torch(run, write):
    path = write("a.toml", f'init_from = "{run}"')
    code = f"import sys; from atat_zoo.experiment import load; load({path!r}); sys.exit('torch' in sys.modules)"
    subprocess.run([sys.executable, "-c", code], check=True)
