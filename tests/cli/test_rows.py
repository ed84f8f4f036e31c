"""What stands between documents, said in words, and shown in rows with the special tokens."""

import json

import pytest

from atat_zoo.cli.data_command import joints
from atat_zoo.cli.rows import first_rows
from atat_zoo.data.build import build
from atat_zoo.experiment import from_table
from tests.data.in_memory import Memory, experiment_of


@pytest.fixture
def own(tmp_path, monkeypatch):
    """Write an experiment for one's own text, as docs/your-text.md has it, into the working folder."""
    monkeypatch.chdir(tmp_path)
    (tmp_path / "stories.txt").write_text("\n\n".join(f"story {i}" for i in range(40)))
    (tmp_path / "own.toml").write_text(
        'extends = "quickstart"\ncorpus = {use = "files", train = ["stories.txt"], document = "paragraph"}\n'
        'tokenizer = {use = "bpe", vocabulary_size = 300}\ndata = {length = 16, lanes = 2}\n'
    )


def test_the_commands_say_and_show_what_joins_documents(atat, own):
    said = "each document ends with EOS"
    code, out, _ = atat("data", "build", "own.toml")
    assert (code, f"in these shards, {said}\n" in out) == (0, True)
    folder = next(line.rpartition(" ")[2] for line in out.splitlines() if line.startswith("the shards are in"))
    assert said in atat("data", "info", folder)[1].splitlines()
    code, out, _ = atat("data", "show", "own.toml", "-n", "2", "--json")
    rows = json.loads(out)
    assert [len(row["ids"]) for row in rows] == [16, 16]
    together = "".join(row["text"] for row in rows)
    stories = together.split("<eos>")
    assert len(stories) > 4
    assert all(story.startswith("story ") for story in stories[1:-1])
    assert atat("data", "show", "own.toml", "-n", "1")[1].splitlines()[-1] == rows[0]["text"]
    code, out, _ = atat("data", "build", "own.toml", "data.special_tokens=none")
    assert (
        'in these shards, documents are concatenated without a separator (set data.special_tokens = "document" to'
        in out
    )


@pytest.mark.parametrize(
    ("special", "rows", "text"),
    [
        ("none", "packed", "\nab\nab\na"),
        ("document", "packed", "ab\n<eos>ab\n<eos>"),
        ("sequence", "packed", "<bos>ab\nab\n<eos>"),
        ("both", "packed", "<bos>\n<eos>ab\n<eos><eos>"),
        ("none", "document", "ab\n" + "<pad>" * 5),
        ("document", "document", "ab\n<eos>" + "<pad>" * 4),
        ("sequence", "document", "<bos>ab\n<eos>" + "<pad>" * 3),
        ("both", "document", "<bos>ab\n<eos>" + "<pad>" * 3),
    ],
)
def test_the_sentence_is_what_the_rows_have(tmp_path, special, rows, text):
    corpus = Memory(train=("ab\n",) * 60)
    experiment = experiment_of(tmp_path, corpus=corpus, special_tokens=special, packing=rows, length=8, lanes=1)
    shown = first_rows(build(experiment), experiment.parts["tokenizer"].train(None), 5)
    assert (len(shown), shown[1]["text"]) == (5, text)
    assert [len(row["ids"]) for row in shown] == [8] * 5
    assert shown[1]["ids"].count(-1) == text.count("<pad>")
    said = joints(special, rows, "text")
    assert ("EOS" in said.partition("(")[0]) == ("<eos>" in text)
    assert ("BOS" in said) == ("<bos>" in text)
    assert ("without a separator" in said) == ("\nab" in text)


def test_what_is_learned_of_a_dialogue_is_marked(tmp_path):
    (tmp_path / "a.jsonl").write_text('{"prompt": "one?", "response": "1"}\n' * 40)
    corpus = {"use": "files", "train": [str(tmp_path / "a.jsonl")], "validation_share": 0.0, "test_share": 0.0}
    data = {"format": "chat", "packing": "document", "length": 32, "lanes": 1, "root": str(tmp_path / "shards")}
    table = {"name": "x", "corpus": corpus, "tokenizer": "bytes", "data": data, "backbone": {"ngram_prior": 0}}
    (row,) = first_rows(build(from_table(table)), from_table(table).parts["tokenizer"].train(None), 1)
    begin = "<bos>user\none?<eos><bos>assistant\n«1<eos>"
    assert row["text"] == begin + "<eos>" * (row["text"].count("<eos>") - 2) + "»"
    assert len(row["ids"]) == 32
