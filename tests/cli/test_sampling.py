"""`atat sample` and `atat infill`: what is printed, what is written, and what is said of mistakes."""

from __future__ import annotations

import errno
import io
import json
import os
import resource
import shutil
import signal
import subprocess
import sys
import time
from collections import Counter
from functools import partial

import pytest

from atat_zoo.cli.sample_command import picture, watching
from atat_zoo.data.tokenizers.components import BytesTokenizer
from atat_zoo.generation.layout import SpaceAwareTokenizer
from atat_zoo.generation.model import Model
from atat_zoo.registry import Zoo
from tests import forked
from tests.cli.terminal import CALL, imported, on_terminal, printed, refused, spawned
from tests.evaluation.making import make_run
from tests.limited import full_disk


@pytest.fixture(scope="module")
def root(tmp_path_factory):
    """A folder with an untrained run, and one that is not finished."""
    made = tmp_path_factory.mktemp("writing")
    run = make_run(made, "run", "mdlm", sampler={"use": "ancestral", "steps": 4})
    (made / "unfinished").mkdir()
    shutil.copy(run / "resolved.toml", made / "unfinished")
    return made


@pytest.fixture
def atat(atat, monkeypatch, root):
    monkeypatch.chdir(root)
    return atat


# sample


def test_sample_prints_texts_or_json_with_their_cost(atat):
    out = printed(atat, "sample", "run", "--prompt", "We ", "--suffix", " us")
    assert (out[:3], out[-4:]) == ("We ", " us\n")
    out = atat("sample", "run", "--num-samples", "2", "--prompt", "We ")[1]
    assert [line[:15] for line in out.splitlines() if "──" in line] == ["── sample 1 of ", "── sample 2 of "]
    assert out.count("\nWe ") == 2
    words = ("sample", "run", "--json", "--num-samples", "3", "--length", "12", "--prompt", "We", "--seed", "4")
    sampled = json.loads(atat(*words)[1])
    assert (sampled["run"], sampled["seed"], len(sampled["texts"]), len(sampled["nfe"])) == ("run", 4, 3, 3)
    assert (sampled["sampler"]["use"], sampled["sampler"]["steps"], sampled["max_nfe"]) == ("ancestral", 4, 4)
    assert (sampled["guidance"], sampled["tokens_written"]) == ({"use": "none"}, 30)
    assert sampled["tokens_per_second"] > 0
    assert json.loads(atat(*words)[1])["texts"] == sampled["texts"]


@pytest.mark.slow
def test_sample_ends_a_text_at_eos_unless_windows_are_asked_for(atat, root):
    make_run(root, "ends", "mdlm", sampler={"use": "ancestral", "steps": 4}, data={"special_tokens": "both"})
    words = ("sample", "ends", "--json", "--num-samples", "150", "--seed", "4")
    ended, windows = (json.loads(printed(atat, *words, *more))["texts"] for more in ((), ("--windows",)))
    assert windows == Model.from_run(root / "ends").sample(150, seed=4, windows=True).texts
    assert ended != windows
    assert all(window.startswith(text) for text, window in zip(ended, windows, strict=True))


@pytest.mark.parametrize(
    "words",
    [
        ("sampler.use=uncertainty_guided", "sampler.max_steps=3", "sampler.min_steps=1"),
        ("--sampler", "{use = 'uncertainty_guided', max_steps = 3, min_steps = 1}"),
    ],
)
def test_a_trace_of_another_sampler_can_be_replayed(atat, root, words):
    common = ("--num-samples", "3", "--batch-size", "2", "--prompt", "We", "--trace", "deep/steps.jsonl", "--json")
    out = printed(atat, "sample", "run", *common, *words)
    assert json.loads(out)["max_nfe"] == 3
    header, *steps = [json.loads(line) for line in (root / "deep" / "steps.jsonl").read_text().splitlines()]
    assert (header["run"], header["seed"], header["mask"]) == ("run", 0, 258)
    assert header["sampler"]["use"] == "uncertainty_guided"
    rows = [list(header["start"]) for _ in range(header["number"])]
    for step in steps:
        for row, position, token in zip(step["rows"], step["positions"], step["tokens"], strict=True):
            assert rows[row][position] == 258
            rows[row][position] = token
    assert [bytes(i for i in row if i < 256).decode("utf-8", "replace") for row in rows] == json.loads(out)["texts"]


# infill


def test_infill_prints_the_text_with_its_gaps_filled(atat):
    text = "We [MASK:3]\tthe[MASK]."
    out = printed(atat, "infill", "run", text)
    assert (out[:3], out[-2:], "\tthe" in out) == ("We ", ".\n", True)
    several = atat("infill", "run", text, "--num-samples", "2", "sampler.steps=2")[1]
    assert several.startswith("[1] We ")
    assert "[2] We " in several
    assert atat("infill", "run", text, "--seed", "1")[1] != out


def test_infill_as_json(atat):
    given = "a[MASK:2]b[MASK:1-3]c"
    table = json.loads(printed(atat, "infill", "run", given, "--num-samples", "2", "--json", "sampler.steps=2"))
    (text,) = table["texts"]
    assert text["given"] == given
    assert [row["lengths"] for row in text["lengths"]] == [[2, 1], [2, 2], [2, 3]]
    assert sum(row["probability"] for row in text["lengths"]) == pytest.approx(1)
    for filled in text["filled"]:
        first, second = filled["fills"]
        assert filled["text"] == f"a{first}b{second}c"
        assert 1 <= filled["nfe"] <= table["max_nfe"] == 2
    assert table["tokens_written"] == sum(sum(filled["lengths"]) for filled in text["filled"])
    assert table["evaluations_for_lengths"] == 3


def test_infill_many_lines(atat, root, monkeypatch):
    data = "\ufeffWe [MASK:3]\r\n\nthe [MASK:1-2] of\n".encode()
    (root / "lines.txt").write_bytes(data)
    out = printed(atat, "infill", "run", "--file", "lines.txt", "sampler.steps=2")
    assert (out[:3], "\nthe " in out, out[-4:]) == ("We ", True, " of\n")
    monkeypatch.setattr(sys, "stdin", io.TextIOWrapper(io.BytesIO(data)))
    assert atat("infill", "run", "--file", "-", "sampler.steps=2")[1] == out
    out = printed(atat, "infill", "run", "--file", "lines.txt", "--num-samples", "2")
    assert out.startswith("[1.1] We ")
    assert "\n[2.2] the " in out


@pytest.mark.parametrize("words", [("sample", "run", "--prompt", "We "), ("infill", "run", "We [MASK:2]")])
def test_what_is_asked_for_is_resolved_once(atat, monkeypatch, words):
    """One experiment is validated, one tokenizer is read, and one text is laid out."""
    counts = Counter()

    def counted(owner, name):
        plain = getattr(owner, name)

        def count(*args, **given):
            counts[name] += 1
            return plain(*args, **given)

        monkeypatch.setattr(owner, name, count)

    counted(Zoo, "origins")  # for each experiment that is validated
    counted(BytesTokenizer, "load")
    counted(SpaceAwareTokenizer, "before_gap")
    printed(atat, *words)
    assert counts == {"origins": 1, "load": 1, "before_gap": 1}


# Mistakes

MISTAKES = [
    (("sample", "run", "train.steps=3"), "only the sampler and the guidance of a trained run can be changed"),
    (("sample", "run", "--sampler", "ancestrel"), "did you mean 'ancestral'"),
    (("sample", "run", "--prompt", "x" * 17), "prompt and suffix take 17 tokens"),
    (
        ("sample", "run", "--prompt", "of [MASK:3]"),
        "the prompt: '[MASK:3]' would be read as plain text, not as a gap; ",
    ),
    (("sample", "run", "--suffix", "[MASK:3"), "the suffix: '[MASK:3' would be read as plain text"),
    (("sample", "run", "--prompt", "\udcff"), "--prompt is not UTF-8"),
    (("sample", "run", "--watch"), "--watch needs a terminal"),
    (("sample", "run", "--trace", "run"), "--trace run is a folder; pass a file"),
    (("sample", "run", "--trace", "run/resolved.toml"), "--trace run/resolved.toml belongs to the run "),
    (("sample", "run", "--trace", "pipe"), "pipe is a device or a pipe, which cannot be replaced; name a file"),
    (("sample", "unfinished"), "unfinished has no final model yet; finish training it with `atat train --resume"),
    (
        ("sample", "run", "--sampler", "semi_autoregressive", "--length", str(10**9)),
        "generating 1 sequence of 10000000",
    ),
    (("sample", "run", "--chat", "hi"), "--chat needs a chat model, and run was not trained on dialogues; pass a run"),
    (("infill", "run"), "TEXT is missing; pass one with gaps"),
    (("infill", "run", "none"), "the text has no gap: 'none'"),
    (("infill", "run", "\udcff[MASK]"), "the text is not UTF-8"),
    (("infill", "run", "--file", "nothing.txt"), "nothing.txt cannot be read: No such file or directory"),
    (("infill", "run", "--file", "empty.txt"), "empty.txt is empty; write a text with gaps on each line"),
    (("infill", "run", "--file", "latin.txt"), "latin.txt is not UTF-8"),
    (("infill", "run", "--file", "second.txt"), "text 2 has no gap: 'b'"),
]


@pytest.fixture
def mistaken(root):
    """Write the files that the mistakes name."""
    (root / "empty.txt").write_text("\n \n")
    (root / "latin.txt").write_bytes("é [MASK]".encode("latin-1"))
    (root / "second.txt").write_text("a [MASK]\nb\n")
    if not (root / "pipe").exists():
        os.mkfifo(root / "pipe")


@pytest.mark.usefixtures("mistaken")
@pytest.mark.parametrize(("words", "said"), MISTAKES, ids=str)
def test_a_mistake_is_one_sentence(atat, words, said):
    assert said in refused(atat, *words)


@pytest.mark.slow
@pytest.mark.usefixtures("mistaken")
def test_a_mistake_is_said_before_torch_is_imported(root):
    commands = [words for words, _ in MISTAKES]
    assert imported(commands, ["torch"], cwd=root) == [[2, []]] * len(commands)


# Watching


def test_what_is_watched_is_what_happens(root):
    """Masks become text where they are, are hidden again where they are, and nothing moves the cursor."""
    model = Model.from_run(root / "run")
    from rich.console import Console

    row = [*b"We", *[258] * 4, *b"us"]
    rows, screen = [list(row), list(row)], io.StringIO()

    def shown():
        return picture(rows, model.tokenizer, 7).plain

    assert shown() == "[1] We▁▁▁▁us\n[2] We▁▁▁▁us\n"
    with watching(rows, model.tokenizer, Console(file=screen, force_terminal=True, width=60)) as observer:
        observer({"step": 0, "rows": [0, 1, 1], "positions": [2, 3, 5], "tokens": [*b"ab\x1b"]})
        assert shown() == "[1] Wea▁▁▁us\n[2] We▁b▁\ufffdus\n"
        observer({"step": 1, "hidden": {"rows": [0], "positions": [2]}})
        assert shown() == "[1] We▁▁▁▁us\n[2] We▁b▁\ufffdus\n"
    assert "\x1b[2m▁" in screen.getvalue()
    assert picture([row] * 500, model.tokenizer, 7).plain.count("▁▁▁▁") == 7


@pytest.mark.slow
@pytest.mark.parametrize("interrupted", [False, True])
def test_watching_on_a_terminal(root, interrupted):
    words = ["sample", "run", "--watch", "--prompt", "We ", "sampler.steps=16"]
    words += ["--num-samples", "6400"] if interrupted else []
    code, text = on_terminal(*words, cwd=root, interrupt_after=100 if interrupted else None)
    assert text.count("\x1b[2m▁") >= 2
    assert text.count("We ") >= 3
    # The cursor is there again.
    shown = text.rindex("\x1b[?25h")
    assert shown > text.rindex("\x1b[?25l")
    assert code == (130 if interrupted else 0)
    shown_last = text.count("stopped"), repr(text[-500:])
    assert text.endswith("stopped\r\n") if interrupted else "\x1b[2m▁" not in text[shown:], shown_last


# Breaking it


def test_a_full_disk_leaves_no_half_a_trace(atat, root):
    with full_disk(5000):
        said = refused(atat, "sample", "run", "--num-samples", "64", "--trace", "full.jsonl")
    assert said.startswith("error: full.jsonl cannot be written: File too large")
    assert not list(root.glob("*full.jsonl*"))


@pytest.mark.slow
def test_an_interrupt_stops_it_without_a_word_too_many(root):
    command = [sys.executable, "-c", CALL, "sample", "run", "--num-samples", "200000", "--trace", "stopped.jsonl"]
    process = subprocess.Popen(command, cwd=root, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)
    deadline = time.monotonic() + 60
    # The trace has grown: it is sampling.
    while not any(path.stat().st_size > 20_000 for path in root.glob(".stopped*")) and time.monotonic() < deadline:
        time.sleep(0.05)
    process.send_signal(signal.SIGINT)
    out, err = process.communicate(timeout=60)
    assert (process.returncode, out, err.strip()) == (130, "", "stopped")
    assert not list(root.glob("*stopped.jsonl*"))


def test_a_full_disk_under_standard_error_changes_no_exit_code(tmp_path):
    with (tmp_path / "said").open("w") as said:
        limit = partial(resource.setrlimit, resource.RLIMIT_FSIZE, (10, 10))
        done = spawned("check", "nothing.toml", stderr=said, preexec_fn=limit)
    assert (done.returncode, (tmp_path / "said").read_text()) == (2, "error: unk")


@pytest.mark.slow
def test_a_closed_standard_input(root):
    done = forked.run(["infill", "run", "--file", "-"], root, code=f"import os; os.close(0); {CALL}")
    assert (done.returncode, done.stdout, len(done.stderr.splitlines())) == (2, "", 1)
    assert done.stderr.startswith("error: --file -: standard input")


def test_a_full_disk_under_standard_output_is_one_sentence(atat, monkeypatch):
    def echo(text=None, err=False):
        if not err:
            raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))
        sys.stderr.write(f"{text}\n")

    monkeypatch.setattr("atat_zoo.cli.console.click.echo", echo)
    said = refused(atat, "sample", "run")
    assert said.startswith("error: the output cannot be written: No space left on device")


@pytest.mark.parametrize(
    ("error", "said"),
    [
        (OSError(errno.EMFILE, os.strerror(errno.EMFILE)), "Too many open files"),
        (OSError("the \x1b[31mlibrary says no"), r"'the \x1b[31mlibrary says no'"),
        (TimeoutError(), "TimeoutError"),
    ],
)
def test_an_error_of_the_system_that_names_no_file_is_one_sentence(atat, monkeypatch, error, said):
    def fail(*_):
        raise error

    monkeypatch.setattr("atat_zoo.cli.zoo_command.table", fail)
    expected = f"error: a file or connection: {said}; pass a different path, URL or port, or fix this one\n"
    assert atat("zoo", "list") == (2, "", expected)


@pytest.mark.slow
def test_a_closed_standard_output(root):
    done = spawned("zoo", "list", stderr=subprocess.PIPE, preexec_fn=lambda: os.close(1))
    assert (done.returncode, done.stderr) == (0, "")
    # Python begins without one where it is closed.
    code = f"import os, sys; os.close(1); sys.stdout = None; {CALL}"
    for words in (["sample", "run"], ["infill", "run", "a [MASK]"]):
        done = forked.run(words, root, code=code)
        assert (done.returncode, done.stderr) == (0, ""), words
