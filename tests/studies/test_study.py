"""True studies, end to end: finished, stopped, killed, shared, failing, and the test split evaluated once."""

import json
import shutil
import signal
from pathlib import Path

import pytest

from atat_zoo.studies.run_measurement import rows_of
from tests.cli.terminal import printed
from tests.studies.making import RUNS, STUDY, Place, steps_of, wait_for

pytestmark = pytest.mark.slow
ONE_SEED = STUDY.replace("[18, 19]", "[18]")


@pytest.fixture(scope="module")
def done(tmp_path_factory):
    """Return a study that was never interrupted."""
    place = Place(tmp_path_factory.mktemp("study"))
    place.study("--jobs", "2", "--write", "page/study.md")
    return place


@pytest.fixture(scope="module")
def one_seed(done, tmp_path_factory):
    """Return the numbers of a study of one seed that was never interrupted."""
    place = Place(Path(shutil.copytree(done.root, tmp_path_factory.mktemp("one") / "copy")))
    place.write(ONE_SEED)
    place.study()
    return place.numbers()


@pytest.fixture
def place(tmp_path):
    return Place(tmp_path)


@pytest.fixture
def copy(done, tmp_path):
    return Place(Path(shutil.copytree(done.root, tmp_path / "copy")))


def test_it_ends_with_normal_runs_and_a_result(done):
    assert sorted(line["run"] for line in done.trainings()) == done.runs() == RUNS
    assert all((line["code"], line["jobs"], line["threads"]) == (0, 2, 1) for line in done.trainings())
    report = done.report()
    assert [report[key] for key in ("half", "failed", "left_out", "test", "sweep")] == ["claim", {}, [], None, None]
    plain, fast = report["arms"]["plain"], report["arms"]["fast"]
    assert (plain["steps"], plain["tokens"]) == (3, 3 * 4 * 16)
    assert fast["overrides"] == ["optimizer.learning_rate=1e-2"]
    assert plain["peak_memory"] > 1 << 20
    assert plain["seconds"] is None  # two trainings at a time ran beside each other
    (comparison,) = report["comparisons"]
    assert (comparison["arm"], comparison["against"], comparison["seeds"]) == ("fast", "plain", [18, 19])
    # The differences are those of the runs' own numbers.
    for each, one, other in zip(comparison["each"], fast["runs"], plain["runs"], strict=True):
        nats = [run["bounds"]["perplexity"]["nats_per_token"] for run in (one, other)]
        assert each["nats_per_token"] == pytest.approx(nats[0] - nats[1])
    # The claims are on the other half.
    kept = [json.loads(path.read_text()) for path in done.folder.glob("*/evaluations/study-*.json")]
    held_out = json.loads(next((done.root / "shards").glob("*/manifest.json")).read_text())
    rows = rows_of("claim", held_out["splits"]["validation"]["sequences"], 0).tolist()
    assert [each["rows"] for each in kept] == [rows] * 4
    page = (done.root / "page" / "study.md").read_text()
    assert page == (done.folder / "study.md").read_text()
    assert json.loads((done.root / "page" / "study.json").read_text()) == done.report()
    text = (done.folder / "study.nats.jsonl").read_text()
    assert (done.root / "page" / "study.nats.jsonl").read_text() == text
    assert (report["nats"], len(text.splitlines())) == (True, 4)
    assert "2 training runs at a time, 1 thread each" in page


def test_what_is_finished_is_not_repeated(copy):
    before = copy.report()
    out, _ = copy.study("--json")
    assert json.loads(out) == copy.report() == before  # without a word of training or measuring
    # A measurement that is damaged is made again, and nothing else.
    (path,) = (copy.folder / "fast-seed18" / "evaluations").glob("study-*.json")
    path.write_bytes(path.read_bytes()[:-50])
    out, _ = copy.study()
    assert [line.split(":")[0] for line in out.splitlines() if "evaluating" in line] == ["fast-seed18"]
    assert copy.report() == before


def test_another_experiment_under_the_name_of_an_arm_is_refused(copy):
    copy.write("overrides = ['train.steps=5']\n" + STUDY)
    _, err = copy.study(code=2)
    assert "study/plain-seed18 is a run of a different experiment: its train.steps is 3, not 5 as in the study" in err


def test_stopped_and_continued(place, one_seed):
    place.write(ONE_SEED)
    process = place.begin("--write", "my page.md", "--jobs", "1", "--device", "cpu", slow=0.4)
    wait_for(lambda: steps_of(place, "plain-seed18") >= 1, process)
    process.send_signal(signal.SIGINT)
    out, _ = process.communicate()
    assert process.returncode == 130, out
    assert "plain-seed18: stopped" in out
    assert "resume with: atat study study.toml --write 'my page.md' --device cpu --jobs 1\n" in out
    # Nothing runs any more, and nothing is said to have failed.
    states = {row["run"]: row for row in json.loads(place.study("--dry-run", "--json")[0])["runs"]}
    assert states["plain-seed18"]["state"] == "to continue"
    assert 1 <= states["plain-seed18"]["step"] < 3
    assert states["fast-seed18"]["state"] == "to do"
    assert "failed" not in out
    out, _ = place.study()
    assert "plain-seed18: resuming" in out
    assert place.numbers() == one_seed


def test_killed_and_continued(place, one_seed):
    """Its training lives on; who continues the study waits for it."""
    place.write(ONE_SEED)
    process = place.begin(slow=1.5)
    wait_for(lambda: steps_of(place, "plain-seed18") >= 1, process)
    process.send_signal(signal.SIGKILL)  # to it alone
    process.communicate()
    assert not (place.folder / "plain-seed18" / "model").exists()
    out, _ = place.study("--jobs", "2")
    assert "plain-seed18: in use by process" in out
    assert place.numbers() == one_seed
    assert [line["run"] for line in place.trainings()] == ["fast-seed18"]


def test_two_at_once_share_the_work(place, one_seed):
    place.write(ONE_SEED)
    first, second = place.begin(slow=0.1), place.begin(slow=0.1)
    said = [process.communicate()[0] for process in (first, second)]
    assert (first.returncode, second.returncode) == (0, 0), said
    runs = ["fast-seed18", "plain-seed18"]
    assert sorted(line["run"] for line in place.trainings()) == runs
    assert all(": training" in out for out in said)
    assert all(sum(f"{run}: evaluating" in out for out in said) == 1 for run in runs)
    assert place.numbers() == one_seed


def test_a_failing_arm_is_listed_and_the_others_go_on(copy):
    wild = '[arms.wild]\nlike = "plain"\noverrides = ["optimizer.learning_rate=1e38", "train.steps=4"]\n'
    copy.write(STUDY.replace("mask_samples = 2", "mask_samples = 2\ntest = true") + wild)
    out, err = copy.study(code=1)
    report = copy.report()
    assert list(report["failed"]) == ["wild-seed18", "wild-seed19"]
    assert "(exit code 2, logs/wild-seed18.txt)" in report["failed"]["wild-seed18"]
    assert err.startswith("error: wild-seed18: ")
    assert (list(report["arms"]), len(report["comparisons"])) == (["plain", "fast"], 1)
    assert "## Failed" in out
    # The test split waits until every run is finished.
    assert (report["test"], (copy.folder / "test.json").exists()) == (None, False)
    # What went wrong is mended under another name; what has failed is tried again, and fails again.
    assert "wild-seed18: resuming" in copy.study(code=1)[0]


@pytest.mark.parametrize("more", ["", '[sweep]\nseed = 7\npoints = { a = [], b = ["train.steps=2"] }\n'])
def test_a_page_is_left_as_it_is_while_no_run_is_finished(place, more):
    place.write(STUDY + more)
    (place.root / "page.md").write_text("numbers")
    (place.root / "page.json").write_text("{}")
    _, err = place.study("--measure", "--write", "page.md", code=1)
    assert "error: --write page.md: not written, because no run is finished; train one first" in err
    assert ("error: fast-seed19: is not finished (study/logs/fast-seed19.txt)" in err) is not bool(more)
    assert [(place.root / name).read_text() for name in ("page.md", "page.json")] == ["numbers", "{}"]


SWEPT = """
seeds = [18]
baseline = "plain"
folder = "study"
[arms]
plain = { experiment = "tiny.toml" }
short = { like = "plain", overrides = ["train.steps=2"], against = ["plain"] }
halves = { like = "short", overrides = ["data.length=8"], against = [] }
as-long = { like = "short", match_seconds = "short" }
[sweep]
seed = 17
[sweep.points]
low = ["optimizer.learning_rate=1e-5"]
middle = ["optimizer.learning_rate=1e-3"]
high = ["optimizer.learning_rate=1e-2"]
"""


def test_a_sweep_chooses_on_one_half_and_what_follows_uses_it(place):
    place.write(SWEPT)
    before = [row["run"] for row in json.loads(place.study("--dry-run", "--json")[0])["runs"]]
    sweep = ["plain-low-seed17", "plain-middle-seed17", "plain-high-seed17"]
    assert before == [*sweep, "plain-?-seed18", "short-?-seed18", "halves-?-seed18", "as-long-?-seed18"]
    place.study("--jobs", "2")
    report = place.report()
    chosen = report["sweep"]["arms"]["plain"]
    assert (chosen["chosen"], chosen["at_an_end"]) == ("high", True)
    assert chosen["nats_per_token"]["low"] > chosen["nats_per_token"]["high"]
    runs = ["plain-high-seed18", "short-high-seed18", "halves-high-seed18", "as-long-high-seed18"]
    assert place.runs() == sorted([*sweep, *runs])
    assert [arm["point"] for arm in report["arms"].values()] == ["high"] * 4
    # An arm with sequences of another length is compared with none.
    assert {(each["arm"], each["against"]) for each in report["comparisons"]} == {
        ("short", "plain"),
        ("as-long", "plain"),
    }
    assert report["fewest_sequences"] < report["sequences"]
    assert f" or fewer longer ones (at least {report['fewest_sequences']}), " in (place.folder / "study.md").read_text()
    # Its steps are those of `short`, whose time it was to take: both are measured by the same runs.
    assert report["arms"]["as-long"]["steps"] == 2
    kept = {path.parent.parent.name: path.name for path in place.folder.glob("*/evaluations/study-*.json")}
    assert all(kept[run].startswith("study-selection-") for run in sweep)
    assert all(kept[run].startswith("study-claim-") for run in runs)
    assert [row["run"] for row in json.loads(place.study("--dry-run", "--json")[0])["runs"]] == [*sweep, *runs]


def test_the_test_split_is_evaluated_once(copy):
    tested = STUDY.replace("mask_samples = 2", "mask_samples = 2\ntest = true")
    copy.write(tested)
    assert "Evaluated once, after all settings were fixed." in copy.study()[0]
    report = copy.report()
    assert (report["test"]["times"], report["test"]["sequences"] > 0) == (1, True)
    assert report["test"]["comparisons"][0]["each"] != report["comparisons"][0]["each"]
    # The same again is no second evaluation.
    assert "evaluating" not in copy.study()[0]
    assert copy.report() == report
    # Another setting is.
    copy.write(tested.replace("mask_samples = 2", "mask_samples = 3"))
    assert "the test split was already evaluated with other runs or settings" in copy.study(code=2)[1]
    assert copy.report()["test"] is None
    # So are other runs, and then nothing is trained for it.
    copy.write(tested.replace("[18, 19]", "[18, 19, 20]"))
    assert "was already evaluated" in copy.study(code=2)[1]
    assert copy.runs() == RUNS
    # A person who insists is counted.
    copy.write(tested.replace("mask_samples = 2", "mask_samples = 3"))
    assert "**Evaluated 2 times.**" in copy.study("--test-again")[0]
    assert copy.report()["test"]["times"] == 2
    (copy.folder / "test.json").write_text("{")
    assert "test.json cannot be read" in copy.study(code=2)[1]


def test_metrics_are_measured_of_every_arm(copy):
    copy.write(
        STUDY.replace("mask_samples = 2", 'mask_samples = 2\nmetrics = ["brier_score", {use = "top_accuracy", k = 3}]')
    )
    out, _ = copy.study()
    for arm in copy.report()["arms"].values():
        for run in arm["runs"]:
            assert list(run["metrics"]) == ["brier_score", "top_3_accuracy"]
            assert 0 < run["metrics"]["brier_score"]["value"] < 2
    assert "| arm | brier score | top 3 accuracy |" in out


def test_tasks_are_measured_of_every_arm(copy, atat, monkeypatch):
    few = "tasks = [{use = 'infilling', gap = 3, texts = 6}]"
    copy.write(STUDY.replace("mask_samples = 2", f"mask_samples = 2\n{few}"))
    out, _ = copy.study()
    (task,) = copy.report()["tasks"]
    assert (task["task"], task["seed"]) == ("infilling (gap = 3, texts = 6)", 0)
    assert [score["score"] for score in task["scores"]] == ["exact match", "price", "gain", "better"]
    price = task["scores"][1]
    plain, fast = price["rows"]
    assert (plain["arm"], plain["seeds"], plain["items"], plain["against"]) == ("plain", [18, 19], [6, 6], [])
    (against,) = fast["against"]
    assert against["each"] == pytest.approx([a - b for a, b in zip(fast["values"], plain["values"], strict=True)])
    for ends in (against["both"], against["over_items"]):
        assert ends["value"] == pytest.approx(sum(against["each"]) / 2)
        assert ends["low"] < ends["value"] < ends["high"]
    assert "## Task infilling (gap = 3, texts = 6)" in out
    assert "| price | nats per token | fast | 6 |" in out
    # Each is what `atat eval` says, and is not measured again.
    monkeypatch.chdir(copy.root)
    said = printed(atat, "eval", "study/plain-seed18", "--task", few[9:-1], "--seed", "0", "--json")
    assert json.loads(said)["tasks"][0]["scores"]["price"]["value"] == pytest.approx(plain["values"][0])
    out, _ = copy.study()
    assert "task infilling" not in out


GAPS = """
[arms.sets]
like = "plain"
overrides = ["objective.use=set_causal", "sampler.use=strided"]
[arms.left]
like = "plain"
overrides = ["objective.use=autoregressive", "sampler.use=left_to_right"]
[gaps]
arms = ["plain", "sets", "left"]
lengths = [4]
each = [{use = "strided", stride = 4}]
of_baseline = [{use = "combination", order = "random", tokens_per_step = "one_at_a_time"}]
sequences = 6
random_sequences = 4
orders = 2
"""


@pytest.mark.parametrize(
    ("was", "now", "problem"),
    [
        ('"plain", "sets"', '"sets"', "gaps.arms: the baseline 'plain' is missing; add it"),
        ("[4]", "[16]", "gaps.lengths: 16 is not shorter than a sequence of 16 tokens; use a smaller length"),
        ('use = "strided", stride = 4', 'use = "p2"', "gaps.each[0]: 'p2' has no policy bound"),
        (
            'use = "combination", order = "random", tokens_per_step = "one_at_a_time"',
            'use = "p2"',
            "gaps.of_baseline[0]: 'p2' has",
        ),
    ],
)
def test_gaps_that_cannot_be_priced_are_refused(place, was, now, problem):
    place.write(STUDY + GAPS.replace(was, now))
    _, err = place.study("--dry-run", code=2)
    assert problem in err
