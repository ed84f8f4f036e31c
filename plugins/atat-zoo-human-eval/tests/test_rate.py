"""`atat rate`: a form of two runs is written, rated, and unblinded; and what is said of mistakes."""

import json

import pytest
from atat_zoo_human_eval.rating_form import QUESTIONS, RatingForm
from test_ratings import answers_of, save

from atat_zoo.generation.model import Model
from tests.cli.terminal import printed, refused, spawned
from tests.evaluation.making import make_run
from tests.limited import full_disk
from tests.reports.test_html_report import given


@pytest.fixture(scope="module")
def root(tmp_path_factory):
    made = tmp_path_factory.mktemp("rate")
    for name, length in (("first-run", 16), ("second-run", 12)):
        make_run(made, name, "mdlm", length=length, sampler={"use": "ancestral", "steps": 4})
    return made


@pytest.fixture
def atat(atat, monkeypatch, root):
    monkeypatch.chdir(root)
    return lambda *words: atat("rate", *words)


@pytest.fixture
def form(atat, root):
    """Return the form that is written once."""
    if not (root / "form.html").exists():
        words = (
            "first-run",
            "second-run",
            "--out",
            "form.html",
            "--num-samples",
            "3",
            "--prompt",
            "the",
            "--prompt",
            "",
        )
        out = printed(atat, "export", *words, "--seed", "5")
        assert out.splitlines()[-2:] == [
            "form.html: 12 texts, for the raters",
            "form.key.json: the key, which raters must not see",
        ]
    return RatingForm.from_key(root / "form.key.json")


def test_a_form_has_as_many_texts_of_each_run_and_prompt(form, root):
    page = (root / "form.html").read_text()
    assert given(page) == form.blinded()
    assert "first-run" not in page
    assert (
        sorted((text.run, text.prompt) for text in form.texts)
        == [(0, "")] * 3 + [(0, "the")] * 3 + [(1, "")] * 3 + [(1, "the")] * 3
    )
    assert all(text.text.startswith(text.prompt) for text in form.texts)
    written = Model.from_run(root / "second-run").sample(3, prompt="the", length=12, seed=5).texts  # by `atat sample`
    assert sorted(text.text for text in form.texts if (text.run, text.prompt) == (1, "the")) == sorted(written)
    assert [run["run"] for run in form.runs] == ["first-run", "second-run"]
    assert {run["sampler"]["steps"] for run in form.runs} == {4}
    assert max(len(text.text) for text in form.texts) <= 12  # bytes at most, as many as the shorter run has
    assert list(form.questions) == list(QUESTIONS)


def test_a_form_that_finds_no_room_leaves_no_key_either(atat, root):
    with full_disk(3_000):
        code, _, err = atat("export", "first-run", "--out", "full.html", "--num-samples", "1")
    assert code == 2
    assert "full.html cannot be written: File too large; free some space" in err
    assert not list(root.glob("*full*"))


def test_a_table_of_means_differences_and_agreement(form, atat, root):
    files = [save(root / f"{name}.csv", answers_of(form, name, i)).name for i, name in enumerate(("ann", "bob"))]
    lines = printed(atat, "import", "form.key.json", *files).splitlines()
    assert lines[0].split() == ["fluency", "coherence", "overall"]
    assert [line.split("  ")[0] for line in lines[1:5]] == ["first-run", "second-run", "second-run − first-run", "α"]
    assert lines[6].startswith("2 raters; texts: 6 of first-run, 6 of second-run.")
    kept = json.loads((root / "form.results.json").read_text())
    said = json.loads(printed(atat, "import", "form.key.json", *files, "--json", "--out", "other.json"))
    assert said == kept == json.loads((root / "other.json").read_text())
    assert kept["raters"] == ["ann", "bob"]
    mean = kept["questions"]["fluency"]["means"]["first-run"]
    assert f"{mean['mean']:.2f} [{mean['low']:.2f}, {mean['high']:.2f}]" in lines[1]
    assert "| α |" in printed(atat, "import", "form.key.json", *files, "--markdown")
    assert printed(atat, "import", "form.key.json", files[0]).splitlines()[4].split() == ["α", "—", "—", "—"]


def test_ratings_are_read_without_torch(form, root):
    """The file is made by the fixture; the command answers at once."""
    save(root / "quick.json", answers_of(form, "ann"))
    call = "import sys, atexit\natexit.register(lambda: print('torch' in sys.modules, file=sys.stderr))\n"
    call += "from atat_zoo.cli import main; main()"
    done = spawned("rate", "import", str(root / "form.key.json"), str(root / "quick.json"), call=call)
    assert (done.returncode, done.stderr.strip()) == (0, "False")


@pytest.mark.parametrize(
    ("words", "sentence"),
    [
        ("export first-run --out form.txt", "--out form.txt is not an HTML file"),
        (
            "export first-run --out form.html",
            "form.html already exists; choose a different name, or delete the file first",
        ),
        ("export first-run first-run --out new.html", "the run first-run is passed twice; pass each run once"),
        ("export first-run nothing --out new.html", "nothing"),
        ("export first-run --out new.html --length 17", "length 17 exceeds the model's maximum length, 16"),
        ("export first-run --out new.html --sampler klas", "did you mean 'klass'?"),
        ("export first-run --out new.html --num-samples 20000", "reduce --num-samples"),
        ("export first-run --out new.html --questions none.toml", "--questions none.toml cannot be read"),
        ("export first-run --out new.html --prompt " + "x" * 40, "40"),
        (
            "import none.key.json a.json",
            "the key none.key.json does not exist; pass the .key.json file next to the form",
        ),
        ("import form.key.json none.json", "none.json cannot be read"),
        ("import form.html none.json", "form.html is damaged or is not a form's key"),
    ],
)
def test_a_mistake_is_said_in_a_sentence(form, atat, root, words, sentence):
    assert sentence in refused(atat, *words.split(" "))
    assert not (root / "new.html").exists()
    assert not (root / "new.key.json").exists()


# Files


@pytest.mark.parametrize(
    ("line", "said"),
    [
        (
            "import f.key.json a.json --out f.key.json",
            "--out f.key.json: the command reads f.key.json; pass another path",
        ),
        ("import f.key.json a.json --out a.json", "--out a.json: the command reads a.json"),
        ("import a.json f.results.json a.results.json", "--out a.results.json: the command reads a.results.json"),
        ("export run --questions page.html --out page.html", "--out page.html: the command reads page.html"),
        ("export run --out run/model/form.html", "--out run/model/form.html belongs to the run "),
    ],
)
def test_neither_what_is_read_nor_a_file_of_a_run_is_written(tmp_path, monkeypatch, atat, line, said):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "run" / "model").mkdir(parents=True)
    names = ("run/resolved.toml", "f.key.json", "f.results.json", "a.json", "a.results.json", "page.html")
    for name in names:
        (tmp_path / name).write_text("{}")
    assert refused(atat, *line.split()).startswith(f"error: {said}")
    files = [path for path in tmp_path.rglob("*") if path.is_file()]
    assert {str(path.relative_to(tmp_path)) for path in files} == {*names}
    assert {path.read_text() for path in files} == {"{}"}
