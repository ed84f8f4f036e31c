"""Forms, their keys, and ratings: nothing of a run is in a form, and what is rated comes back to its run."""

import csv
import hashlib
import json
import random

import numpy as np
import pytest
from atat_zoo_human_eval.rating_form import QUESTIONS, Question, RatedText, RatingForm, check_size, questions_of
from atat_zoo_human_eval.ratings import COLUMNS, alpha, ratings_of, unblinded
from hypothesis import given
from hypothesis import strategies as st

from atat_zoo.experiment.runs import write_json
from atat_zoo.system.errors import UserError
from atat_zoo.system.parsing import from_json

# K. Krippendorff, Computing Krippendorff's Alpha-Reliability (2011), the example of four observers and twelve units.
NONE = np.nan
EXAMPLE = np.array(
    [
        [1, 2, 3, 3, 2, 1, 4, 1, 2, NONE, NONE, NONE],
        [1, 2, 3, 3, 2, 2, 4, 1, 2, 5, NONE, 3],
        [NONE, 3, 3, 3, 2, 3, 4, 2, 2, 5, 1, NONE],
        [1, 2, 3, 3, 2, 4, 4, 1, 2, 5, 1, NONE],
    ]
)


def make_form(sizes=(3, 3), seed=0):
    """Return a form of runs with so many texts each, named by secrets that no text has."""
    texts = [RatedText(run=run, text=f"words of number {i}") for i, run in enumerate(_whose(sizes))]
    secret = {"step": 98765432100, "sampler": {"use": "sly"}}
    return RatingForm.shuffled(
        QUESTIONS, texts, [{"run": f"secret/{'abcdef'[i]}", **secret} for i in range(len(sizes))], seed
    )


def _whose(sizes):
    return [run for run, size in enumerate(sizes) for _ in range(size)]


def answers_of(form, rater, seed=0):
    """Return what the form would save."""
    draw = random.Random(seed)
    rows = [
        {"text": i + 1, "question": name, "rating": draw.randint(1, question.points)}
        for i in range(len(form.texts))
        for name, question in form.questions.items()
    ]
    return {"form": form.digest, "rater": rater, "ratings": rows}


def save(path, answers):
    if path.suffix == ".csv":
        with path.open("w", newline="", encoding="utf-8") as file:
            writer = csv.DictWriter(file, COLUMNS, quoting=csv.QUOTE_ALL)
            writer.writeheader()
            writer.writerows({"form": answers["form"], "rater": answers["rater"], **row} for row in answers["ratings"])
    else:
        path.write_text(json.dumps(answers))
    return path


def test_krippendorffs_alpha_is_that_of_his_example_and_none_where_nothing_could_disagree():
    assert alpha(EXAMPLE) == pytest.approx(0.815, abs=5e-4)
    assert alpha(np.array([[1, 2, 3], [1, 2, 3]])) == 1.0
    assert alpha(np.full((3, 4), 2)) is None
    assert alpha(np.array([[2.0, 2.0, NONE], [2.0, 2.0, 2.0]])) is None  # one that is missing is no other rating
    assert alpha(np.array([[1.0, 2.0, NONE], [NONE, NONE, 3.0]])) is None  # no text has two ratings


sizes = st.lists(st.integers(1, 6), min_size=1, max_size=4)


@given(sizes, st.integers(0, 2**40))
def test_the_order_is_a_permutation_by_the_seed_and_the_form_names_no_run(sizes, seed):
    form = make_form(sizes, seed)
    assert sorted(each.text for each in form.texts) == sorted(f"words of number {i}" for i in range(sum(sizes)))
    assert all(each.run == _whose(sizes)[int(each.text.split()[-1])] for each in form.texts)
    assert form == make_form(sizes, seed)
    seen = json.dumps(form.blinded())
    assert not any(secret in seen for secret in ("secret", "sly", "98765", "run", "seed", "step"))


def test_seeds_draw_other_orders():
    """And neighbours in the form are of one run as often as by chance."""
    orders = [[each.run for each in make_form((20, 20), seed).texts] for seed in range(50)]
    assert len(set(map(tuple, orders))) == 50
    same = np.mean([np.mean(np.diff(order) == 0) for order in orders])
    assert same == pytest.approx(19 / 39, abs=0.04)


@given(sizes, st.integers(0, 99), st.sampled_from([".json", ".csv"]))
def test_what_is_rated_comes_back_to_its_run(tmp_path_factory, sizes, seed, ending):
    """The files hold their rows in any order, and the key is read from its file."""
    folder, form = tmp_path_factory.mktemp("rated"), make_form(sizes, seed)
    write_json(folder / "form.key.json", form.key())
    form = RatingForm.from_key(folder / "form.key.json")
    assert form == make_form(sizes, seed)
    raters = ("ann", "bo, the 2nd", "Ζωή")
    given_, paths = {}, []
    for i, rater in enumerate(raters):
        answers = answers_of(form, rater, seed + i)
        given_[rater] = {(row["text"], row["question"]): row["rating"] for row in answers["ratings"]}
        random.Random(seed).shuffle(answers["ratings"])
        paths.append(save(folder / f"{i}{ending}", answers))
    result = unblinded(form, ratings_of(form, paths))
    assert (result.raters, result.texts) == (raters, tuple(sizes))
    for question, each in result.answers.items():
        for run in range(len(sizes)):
            own = [i + 1 for i, text in enumerate(form.texts) if text.run == run]
            wanted = np.mean([given_[rater][text, question] for rater in raters for text in own])
            assert each.means[run] == pytest.approx(wanted)
        for (b, a), difference in zip(result.pairs, each.differences, strict=True):
            assert b > a
            assert difference is None or difference.value == pytest.approx(each.means[b] - each.means[a])
    table = result.to_table()
    assert from_json(json.dumps(table).encode()) == table
    names = [run["run"] for run in form.runs]
    assert list(table["questions"]["overall"]["means"]) == names
    (overall,) = [each for name, each in result.answers.items() if name == "overall"]
    assert [
        (each["run"], each["minus"], each["difference"]) for each in table["questions"]["overall"]["differences"]
    ] == [(names[b], names[a], overall.means[b] - overall.means[a]) for b, a in result.pairs]


def test_the_interval_is_over_texts_and_one_rater_has_no_agreement(tmp_path):
    """Three ratings of each text are no nine texts."""
    form = make_form((3, 1))
    files = [save(tmp_path / f"{rater}.json", answers_of(form, rater)) for rater in ("a", "b", "c")]  # all alike
    one, three = (unblinded(form, ratings_of(form, some)).answers["fluency"] for some in (files[:1], files))
    assert (one.means, one.intervals) == (three.means, three.intervals)
    assert one.intervals[0].width > 0
    assert one.intervals[1] is None
    assert one.differences == (None,)
    assert (one.alpha, three.alpha) == (None, 1.0)


# Mistakes


def in_a_file(change, name="a.json"):
    def write(form, folder):
        answers = answers_of(form, "ann")
        change(answers)
        return [save(folder / name, answers)]

    return write


def twice(form, folder):
    return [save(folder / f"{name}.json", answers_of(form, "ann")) for name in "ab"]


def two_raters_in_one(form, folder):
    path = save(folder / "a.csv", answers_of(form, "ann"))
    path.write_text(path.read_text() + save(folder / "b.csv", answers_of(form, "bob")).read_text().partition("\n")[2])
    return [path]


def text(content, name="a.json"):
    def write(form, folder):
        (folder / name).write_bytes(content)
        return [folder / name]

    return write


def row(number, **keys):
    return in_a_file(lambda answers: answers["ratings"][number].update(keys))


HEAD = b"form,rater,text,question,rating\n"


@pytest.mark.parametrize(
    ("write", "sentences"),
    [
        (in_a_file(lambda a: a.update(form="0123")), ["rates form 0123, but this key is for "]),
        (
            in_a_file(lambda a: a["ratings"].pop(4)),
            ["no rating for text 2, coherence; complete the form, and save the ratings"],
        ),
        (
            in_a_file(lambda a: a["ratings"].__delitem__(slice(0, 5))),
            ["text 1, overall and 2 more; "],
        ),
        (in_a_file(lambda a: a["ratings"].append(a["ratings"][0])), ["more than one rating for text 1, fluency"]),
        (row(2, rating=6), ["text 1, overall: 6 is not a rating from 1 to 5"]),
        (row(2, rating=-(10**30)), ["is not a rating from 1 to 5"]),
        (
            row(0, question="fluenzy"),
            ["the form has no question 'fluenzy'; did you mean 'fluency'?"],
        ),
        (row(0, text=7), ["text 7 does not exist; the form has texts 1 to 6", "no rating for text 1, fluency"]),
        (row(0, rating=True), ["a.json does not contain ratings saved by a form"]),
        (in_a_file(lambda a: a.update(ratings=[])), ["a.json does not contain ratings saved by a form"]),
        (in_a_file(lambda a: a.update(rater=" ")), ["does not name the rater; enter a name in the form"]),
        (twice, ["b.json: ann also appears in ", "a.json; leave out one file"]),
        (two_raters_in_one, ["a.csv contains more than one rater (ann, bob); use a separate file for each"]),
        *((text(content), ["does not contain ratings"]) for content in (b"{", b"[]")),
        *(
            (text(content, "a.csv"), ["does not contain ratings"])
            for content in (b"a,b\n1,2\n", HEAD + b"x\n", b"\xff")
        ),
        (text(HEAD + b"x,y,one,fluency,1\n", "a.csv"), ["does not contain ratings"]),
        (lambda form, folder: [folder / "none.json"], ["none.json cannot be read: No such file"]),
    ],
)
def test_ratings_that_do_not_fit_are_said_all_at_once(tmp_path, write, sentences):
    form = make_form()
    with pytest.raises(UserError) as refused:
        ratings_of(form, write(form, tmp_path))
    for sentence in sentences:
        assert sentence in str(refused.value)
    assert len(str(refused.value).splitlines()) <= 2
    good = save(tmp_path / "good.json", answers_of(form, "c"))
    with pytest.raises(UserError) as more:
        ratings_of(
            form, [*write(form, tmp_path), good, save(tmp_path / "z.json", answers_of(form, "z") | {"form": "0"})]
        )
    assert len(str(more.value).splitlines()) == 1 + len(str(refused.value).splitlines())


def forged(table, _):
    """Give a changed key the digest that it would have."""
    questions = [{"name": name, **each} for name, each in table["questions"].items()]
    texts = [{"text": each["text"], "prompt": each["prompt"]} for each in table["texts"]]
    written = json.dumps({"questions": questions, "texts": texts}, sort_keys=True).encode()
    table["form"] = hashlib.sha256(written).hexdigest()[:16]


@pytest.mark.parametrize(
    "damage",
    [
        lambda table: table["texts"][0].update(run=2),
        lambda table: table["texts"][0].update(text="other"),
        lambda table: table.pop("form"),
        lambda table: table.update(runs=[{}, {}]),
        lambda table: table["questions"]["overall"].update(points=7),
        lambda table: forged(table, table["questions"]["overall"].update(points="5")),
        lambda table: forged(table, table["questions"].update({"a\nb": {"text": "a name of two lines"}})),
        lambda table: forged(table, table["runs"][1].update(run=table["runs"][0]["run"])),
        lambda table: forged(table, table["runs"].append({"run": "which wrote nothing"})),
        lambda table: forged(table, table["runs"][0].update(run="\ud800")),
        lambda table: table.update(format=2),
    ],
)
def test_a_key_that_was_changed_is_none(tmp_path, damage):
    path = tmp_path / "form.key.json"
    write_json(path, make_form().key())
    table = json.loads(path.read_text())
    digest = table["form"]
    forged(table, None)
    assert table["form"] == digest
    damage(table)
    path.write_text(json.dumps(table))
    with pytest.raises(UserError, match="is damaged or is not a form's key"):
        RatingForm.from_key(path)


def test_a_key_is_a_file(tmp_path):
    with pytest.raises(UserError, match="does not exist"):
        RatingForm.from_key(tmp_path / "none.key.json")
    with pytest.raises(UserError, match="cannot be read"):
        RatingForm.from_key(tmp_path)


# Questions


def test_questions_are_tables_in_their_order(tmp_path):
    path = tmp_path / "asked.toml"
    path.write_text('[wit]\ntext = "Is it funny?"\npoints = 7\n[anger]\ntext = "Is it angry?"\nlow = "calm"\n')
    assert questions_of(path) == {
        "wit": Question(text="Is it funny?", points=7),
        "anger": Question(text="Is it angry?", low="calm"),
    }
    assert list(questions_of(path)) == ["wit", "anger"]
    assert {question.points for question in QUESTIONS.values()} == {5}


@pytest.mark.parametrize(
    ("text", "sentence"),
    [
        ("[wit]\n", "wit.text: is missing: the question"),
        ('[wit]\ntext = "x"\npoints = 10\n', "wit.points: must be at most 9"),
        ('[wit]\ntext = "x"\npoints = 1\n', "wit.points: must be at least 2"),
        ('[wit]\ntxt = "x"\n', "wit.txt: is not a parameter of 'wit'; did you mean 'text'?"),
        ('wit = "x"\n', 'wit: expected a table, such as [wit] with text = "…"'),
        ('["a/b"]\ntext = "x"\n', "a/b: expected a name of at most 40 letters"),
        ("", "has no questions; add one table"),
        ("[", "is not valid TOML"),
    ],
)
def test_a_question_that_is_none(tmp_path, text, sentence):
    path = tmp_path / "asked.toml"
    path.write_text(text)
    with pytest.raises(UserError) as refused:
        questions_of(path)
    assert sentence in str(refused.value)


def test_a_form_has_each_run_once_and_not_too_many_texts(tmp_path):
    with pytest.raises(UserError, match="the run a is passed twice"):
        check_size([tmp_path.relative_to(tmp_path.parent).with_name("a")] * 2, [""], 1)
    with pytest.raises(UserError, match="the prompt x is passed twice"):
        check_size([tmp_path], ["x", "x"], 1)
    with pytest.raises(UserError, match="reduce --num-samples"):
        check_size([tmp_path], [""], 10_001)
    check_size([tmp_path], [""], 10_000)
