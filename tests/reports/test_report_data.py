"""What `collect` reads of run folders: what is recorded, value by value, and nothing else."""

import base64
import hashlib
import json
import math
import shutil
import tempfile
import warnings
from pathlib import Path

import pytest
import tomli_w
from hypothesis import given
from hypothesis import strategies as st

from atat_zoo.evaluation.results import store
from atat_zoo.evaluation.results.format import uncertain
from atat_zoo.evaluation.results.quantity_names import title
from atat_zoo.experiment.runs import RunFolder
from atat_zoo.reports import report_data as collecting
from atat_zoo.reports import run_records
from atat_zoo.reports.html_report import page
from atat_zoo.reports.offline_page import inert
from atat_zoo.reports.report_data import collect
from atat_zoo.reports.verdict import verdict
from atat_zoo.system.errors import OmissionNote, UserError
from tests.cli.terminal import spawned
from tests.reports.run_folders import HOSTILE, PNG, make, write_evaluation, write_task


@pytest.fixture(scope="module")
def full(tmp_path_factory):
    return make(tmp_path_factory.mktemp("runs") / "full")


@pytest.fixture
def copy(full, tmp_path):
    """A run that a test may change."""
    return shutil.copytree(full, tmp_path / "full")


def change(path, **keys):
    path.write_text(json.dumps(json.loads(path.read_text()) | keys))


def test_every_value_is_one_that_is_recorded(full):
    data, lines = collect([full]), RunFolder(full).read_metrics()
    tables, by_step = data["tables"], {line["step"]: line for line in lines}
    assert len(tables["curves"]) == len(lines)
    assert len(tables["strengths"]) == len(lines)
    for row in (*tables["curves"], *tables["rates"], *tables["strengths"]):
        assert by_step[row["step"]] | row == by_step[row["step"]] | {"run": "full"}
    assert [row["stage"] for row in tables["stages"]] == ["easy", "medium", "hard"]
    files = {json.loads(path.read_text())["step"]: path for path in full.glob("evaluations/0*.json")}
    assert [row["step"] for row in tables["bounds"]] == sorted(files)
    for row in tables["bounds"]:
        value, error = json.loads(files[row["step"]].read_text())["bounds"]["nelbo"].values()
        assert (row["bound"], row["value"], row["high"]) == (title("nelbo"), value, value + error)
    metrics = {step: json.loads(path.read_text())["metrics"] for step, path in files.items()}
    drawn = [(row["step"], row["metric"].replace(" ", "_"), row["value"]) for row in tables["metrics"]]
    assert drawn == [
        (step, name, each[name]["value"])
        for step, each in sorted(metrics.items())
        for name in ("calibration_error", "coherence")  # and none of a metric without a value
    ]
    last = metrics[max(metrics)]["calibration_error"]
    for column, values in last["table"].items():
        assert [row[column] for row in tables["reliability"]] == values
    said = [["calibration error", uncertain(last["value"], last["stderr"])], ["coherence", "0.100"]]
    assert data["metrics"] == {"columns": ["metric", "full"], "rows": said}
    quality = json.loads((full / "evaluations" / "importance.json").read_text())
    rhos = {(row["order"], row["orders by"]): row["rho"] for row in tables["bands"]}
    for i, band in enumerate(quality["bands"]):
        assert rhos[i, "importance"] == band["importance_spearman"]
        assert rhos[i, "frequency"] == band["frequency_spearman"]
        assert rhos[i, "entropy"] == band["entropy_spearman"]
    assert [row["rank"] for row in tables["bins"]] == [within["rank"] for within in quality["bins"]]
    measured = json.loads((full / "evaluations" / "samplers-2x16.json").read_text())["measured"]
    points = {(row["sampler"], row["evaluations"], row["value"]) for row in tables["frontier"]}
    assert points == {(one["name"], one["policy"]["nfe"], one["policy"]["value"]) for one in measured if one["policy"]}
    text = json.loads((full / "report" / "text.json").read_text())
    shown = data["runs"][0]["text"]
    assert [one["tokens"] for one in shown["texts"]] == [one["tokens"] for one in text["texts"]]
    assert shown["texts"][0]["loss"][3] == [v and round(v, 3) for v in text["texts"][0]["loss"][3]]


def save_model(run, weights):
    """Save a model whose description has the hashes of its files."""
    files = {"model.safetensors": weights, "tokenizer.json": "{}"}
    sums = {name: hashlib.sha256(text.encode()).hexdigest() for name, text in files.items()}
    (run / "model").mkdir(exist_ok=True)
    for name, text in {**files, "model.json": json.dumps({"experiment": {}, "sha256": sums})}.items():
        (run / "model" / name).write_text(text)


def test_a_recorded_comparison_is_in_the_verdict_while_it_is_of_these_models(copy, tmp_path):
    other = make(tmp_path / "other", experiment="mdlm", seed=1, estimator=False)
    third = shutil.copytree(other, tmp_path / "elsewhere" / "other")  # the same name and step, another model
    for i, run in enumerate((copy, other, third)):
        save_model(run, f"weights {i}")

    def said(*runs):
        return " ".join(collect(runs)["verdict"])

    assert "not recorded" in said(copy, other)
    difference = {"percent": 1.23456, "percent_low": 0.91, "percent_high": 1.56}
    rows = [{"bounds": {"nelbo": {"difference": each}}} for each in (None, difference)]
    sums = [run_records.model_sum(RunFolder(run)) for run in (copy, other)]
    (copy / "report" / "compare.json").write_text(json.dumps({"format": 1, "models": sums, "runs": rows}))
    assert "Against full: other +1.23 % [+0.91, +1.56]" in said(copy, other)
    assert "not recorded" in said(copy, third)
    save_model(other, "trained again")
    assert "not recorded" in said(copy, other)


def test_the_verdict_names_every_bound_of_a_run(copy):
    run = RunFolder(copy)
    for path in run.evaluations.iterdir():
        path.unlink()
    bounds = {name: {"value": value, "stderr": 1.0} for name, value in (("nelbo", 61.5), ("sets", 53.8))}
    write_evaluation(run, 61.5, step=450, sequences=64, draws=4, tokens=4096, bounds=bounds)
    data = collect([run.path])
    assert data["verdict"][1] == f"{title('nelbo').capitalize()} 61.5 ± 1.0."
    assert data["conditions"][1] == f"{title('sets').capitalize()}: 53.8 ± 1.0."


def test_the_curve_of_the_bound_begins_before_the_first_step_and_is_of_one_text(copy):
    """The verdict is of all sequences; those that were measured on the way are fewer, the last of them as well."""
    run = RunFolder(copy)
    whole = (run.evaluations / "00000450.json").read_text()
    for path in run.evaluations.glob("000*.json"):
        path.unlink()
    (run.evaluations / "whole.json").write_text(whole)
    for step, value in ((0, 82.71), (450, 58.03)):
        write_evaluation(run, value, file=f"{step}", step=step, sequences=64, draws=4, tokens=4096)
    data = collect([run.path])
    rows = [[row[key] for key in ("step", "tokens", "seconds", "value")] for row in data["tables"]["bounds"]]
    assert rows == [[0, 0, 0, 82.71], [450, 1_843_200, 562.5, 58.03]]
    assert data["verdict"][1].startswith(f"{title('nelbo').capitalize()} 55.9 ± 1.2")
    began = "fell from 82.7 at step 0 (n-gram prior only) to 58.0 at step 450 on 64 of these sequences"
    assert data["verdict"][2] == f"{data['title']}: its held-out {title('nelbo')} {began}."
    of_sequences, of_counts = data["notes"]["curves"]
    assert "64 of the 768 sequences" in of_sequences
    assert "the network includes the n-gram prior from step 0" in of_counts


def test_figures_are_shown_with_their_step_while_there_is_room(copy, monkeypatch):
    """Those that `atat importance-figures` of atat-zoo-paper leaves in the run."""
    drawn = copy / "report" / "importance"
    drawn.mkdir(parents=True)
    for name, step in (("classes", 450), ("agreement", 450), ("rates", 450), ("frequency", "x")):
        (drawn / f"{name}.svg").write_text(f"<svg><desc>step {step}</desc></svg>")
    data = collect([copy])
    (figures,) = [run["figures"] for run in data["runs"]]
    assert [(figure["said"].partition(" ")[0], figure["step"]) for figure in figures] == [
        ("Importance", 450),
        ("Rank", 450),
    ]
    assert base64.b64decode(figures[0]["svg"]) == (drawn / "classes.svg").read_bytes()
    monkeypatch.setattr(collecting, "_ROOM", collecting._size(data) - 10)
    small = collect([copy])
    assert small["runs"][0]["figures"] == []
    assert small["runs"][0]["text"] == data["runs"][0]["text"]
    name = data["runs"][0]["name"]
    assert f"{name}: figures are left out to keep the page small." in small["notes"]["importance"]


def test_what_is_compared_and_what_differs_comes_first(tmp_path):
    runs = [make(tmp_path / name, experiment="bell", overrides=(f"seed={i}",)) for i, name in enumerate("ab")]
    data = collect(runs)
    assert data["title"] == f"{title('nelbo').capitalize()} of b against a"
    found = data["experiment"]
    assert found["columns"][2:] == ["a", "b"]
    assert [row[0] for row in found["rows"][: found["apart"]]] == ["seed"]
    assert ["mask_rates.use", "noise", "logit_normal", "logit_normal"] in found["rows"]
    assert data["runs"][1]["sampler"].startswith("strided (")
    with pytest.raises(UserError, match="is passed twice"):
        collect([*runs, runs[0] / ".." / "a"])
    more = [make(tmp_path / "0" / name, bound="SEDD") for name in "acd"]
    data = collect([*runs, *more])
    assert data["title"].partition(" and ")[2].startswith("1 more against ")
    assert len({run["name"] for run in data["runs"]}) == 5  # of one name with their folders


def test_a_long_run_is_thinned_the_page_says_so_and_its_histogram_counts_every_rate(tmp_path):
    run = make(tmp_path / "long", lines=2_000)
    data = collect([run])
    kept = len(data["tables"]["curves"])
    assert kept <= run_records.POINTS == len(data["tables"]["rates"])
    assert data["notes"]["curves"][0].startswith(
        f"long: {kept} of 2,000 logged steps are drawn, with each interval's extremes"
    )
    assert "800 of 2,000 logged mask rates are drawn, evenly spaced" in data["notes"]["curriculum"][0]
    drawn = [line["mask_rates"] for line in RunFolder(run).read_metrics()]
    with RunFolder(run).metrics.open("a") as file:
        for damaged in ([1, "x"], [-1] * 20, [0] * 20, 3, None, [[]], [1]):
            file.write(json.dumps({"step": file.tell(), "mask_rates": damaged}) + "\n")
    sums = [sum(each) for each in zip(*drawn, strict=True)]
    rows = collect([run])["tables"]["spread"]
    assert [row["low"] for row in rows] == [i / 20 for i in range(4, 18)]
    assert [row["drawn"] for row in rows] == sums[4:18]
    assert all(row["share"] == row["drawn"] / sum(sums) for row in rows)
    assert all(row["high"] == pytest.approx(row["low"] + 0.05) for row in rows)


def test_an_evaluation_under_other_conditions_changes_neither_the_curve_nor_the_verdict(copy):
    before = collect([copy])
    other = copy / "evaluations" / "eval-test.json"
    shutil.copy(copy / "evaluations" / "00000450.json", other)
    change(other, split="test", sequences=9999, draws=64, bounds={"nelbo": {"value": 1.5, "stderr": 0.1}})
    after = collect([copy])
    assert (after["tables"]["bounds"], after["verdict"]) == (before["tables"]["bounds"], before["verdict"])
    (copy / "evaluations" / "00000450.json").unlink()  # its tokens are of the step of its evaluation
    assert "320 training steps, 1,310,720 tokens" in collect([copy])["verdict"][0]


def test_what_is_of_an_older_step_is_said_to_be_and_older_policy_bounds_are_left_out(copy):
    newest = collect([copy])
    shutil.copy(copy / "evaluations" / "samplers-2x16.json", copy / "evaluations" / "samplers-old.json")
    for name in ("evaluations/samplers-old", "report/text", "report/replay"):
        change(copy / f"{name}.json", step=300)
    data = collect([copy])
    assert data["tables"]["frontier"] == newest["tables"]["frontier"]
    said = ["full: this was recorded at step 300; the run is at step 450."]
    assert data["notes"] == newest["notes"] | dict.fromkeys(("text", "replay", "uncertainty"), said)


def test_the_grid_of_a_picture_is_recorded_and_a_wrong_one_is_damage(tmp_path):
    grid = {"first": 1, "columns": 2, "colours": {"a": "#00ff80"}}
    run = make(tmp_path / "picture", words=["<7>", *"abab"], picture=grid)
    (found,) = collect([run])["runs"]
    assert (found["text"]["picture"], found["replay"]["picture"]) == (grid, grid)
    for wrong in (3, {}, grid | {"first": -1}, grid | {"columns": 0}, grid | {"columns": True}):
        change(run / "report" / "text.json", picture=wrong)
        with pytest.warns(OmissionNote, match="text.json is damaged: picture"):
            assert collect([run])["runs"][0]["text"] is None
    change(run / "report" / "text.json", picture=None)
    for colours in (None, ["#00ff80"], {"a": 3}, {"a": "#00ff80; top: 0"}, {"a": "red"}, {"a": "#00FF80"}):
        change(run / "report" / "replay.json", picture=grid | {"colours": colours})
        with pytest.warns(OmissionNote, match="replay.json is damaged: picture"):
            assert collect([run])["runs"][0]["replay"] is None


def test_images_of_texts_are_png_files_and_wrong_ones_are_damage(tmp_path):
    image = {"said": "A spectrogram.", "png": PNG}
    run = make(tmp_path / "images", images=[image, None])
    (found,) = collect([run])["runs"]
    assert (found["text"]["images"], found["replay"]["images"]) == ([image, None], [[image, None]])
    for wrong in ("", "iVBORw0KGg", "\n" + PNG, PNG + '" onload="', "AAAA", None, 3):
        change(run / "report" / "text.json", images=[None, image | {"png": wrong}])
        with pytest.warns(OmissionNote, match=r"text.json is damaged: images.1 is"):
            assert collect([run])["runs"][0]["text"] is None


def test_a_text_has_no_grid_and_no_image(full):
    (found,) = collect([full])["runs"]
    for name in ("text", "replay"):
        assert (found[name]["picture"], found[name]["images"]) == (None, [])


@pytest.mark.parametrize(
    ("key", "value"), [("objective", "x"), ("train", {"steps": math.inf}), ("train", 3), ("evaluation", [])]
)
def test_an_experiment_that_is_not_whole_is_said_to_be(copy, key, value):
    (copy / "resolved.toml").write_text(tomli_w.dumps(RunFolder(copy).table() | {key: value}))
    with pytest.raises(UserError, match=r"resolved\.toml is an incomplete experiment; copy the run again"):
        collect([copy])


def test_a_negative_error_is_none_and_settings_hold_no_nan(copy):
    change(copy / "evaluations" / "00000450.json", bounds={"nelbo": {"value": 55.94, "stderr": -1}})
    path = copy / "report" / "replay.json"
    table = json.loads(path.read_text())
    table["samplers"][0]["settings"] = {"use": "strided", "temperature": float("nan")}
    path.write_text(json.dumps(table))
    data = collect([copy])
    assert " 55.9, " in data["verdict"][1]
    assert data["runs"][0]["replay"]["samplers"][0]["settings"] == {"use": "strided", "temperature": None}
    assert inert(data)


@given(st.lists(st.none() | st.floats(-1e6, 1e6), min_size=1, max_size=300), st.integers(10, 60))
def test_thinning_keeps_the_ends_the_extremes_and_the_order(values, points):
    rows = [{"step": i, "loss": value} for i, value in enumerate(values)]
    kept = run_records.thin(rows, "loss", points)
    assert len(kept) <= max(points, 2)
    assert kept[0] is rows[0]
    assert kept[-1] is rows[-1]
    assert kept == sorted(kept, key=lambda row: row["step"])
    measured = [value for value in values if value is not None]
    if measured:
        left = [row["loss"] for row in kept if row["loss"] is not None]
        assert (min(left), max(left)) == (min(measured), max(measured))


DAMAGE = [
    b"", b"{", b"[]", b"null", b'{"format": 2}', b'{"format": 1}', b'{"format": 1, "texts": 3, "samplers": [1]}',
    b'{"format": 1, "rates": [0.5], "texts": [{"tokens": [1]}]}', b"\xff\xfe", b"[" * 100_000,
]  # fmt: skip


@pytest.mark.parametrize("damage", DAMAGE)
def test_damaged_files_are_missing_ones(full, copy, tmp_path, damage):
    for path in [*copy.glob("report/*.json"), *copy.glob("evaluations/*.json"), copy / "environment.json"]:
        path.write_bytes(damage)
    other = shutil.copytree(full, tmp_path / "other")
    (copy / "report" / "compare.json").write_bytes(damage)
    with pytest.warns(OmissionNote) as told:
        data = collect([copy, other])
    said = {str(each.message) for each in told}
    for name in ("text", "replay", "compare"):
        (sentence,) = (each for each in said if each.startswith(f"{copy / 'report' / name}.json "))
        assert sentence.endswith(", so it is ignored; run `atat report --compute` to compute it again")
    if damage == b'{"format": 1}':  # the key that is wrong is named
        assert any("text.json is damaged: step is missing, so it is ignored" in each for each in said)
    assert all(each.isprintable() for each in said)
    assert (data["runs"][0]["text"], data["runs"][0]["replay"], data["runs"][0]["command"]) == (None, None, None)
    assert {row["run"] for row in data["tables"]["bounds"]} == {"other"}
    assert inert(data)


EVALUATIONS = [
    "evaluations/00000450",
    "evaluations/importance",
    "evaluations/samplers-2x16",
    "evaluations/task-infilling-450-17",
]


@given(st.data())
def test_a_file_that_is_changed_anywhere_is_refused_or_still_a_page(full, data):
    """Whatever a value in a recorded file becomes, the data can be written and have the shape the page relies on."""
    name = data.draw(st.sampled_from(["report/text", "report/replay", *EVALUATIONS]))
    table = json.loads((full / f"{name}.json").read_text())
    inner = table
    while isinstance(inner, dict | list) and inner:
        key = data.draw(st.sampled_from(list(inner) if isinstance(inner, dict) else range(min(3, len(inner)))))
        if not isinstance(inner[key], dict | list) or data.draw(st.booleans()):
            inner[key] = data.draw(st.sampled_from([None, -1, 3, 1e400, 10**400, "x", [], {}, [[1]], True]))
            break
        inner = inner[key]
    with tempfile.TemporaryDirectory() as folder:
        run = RunFolder(Path(folder))
        path = run.path / f"{name}.json"
        path.parent.mkdir()
        path.write_text(json.dumps(table))
        with warnings.catch_warnings():
            warnings.simplefilter("ignore", OmissionNote)
            text, replay = (run_records.kept(run, name) for name in ("text", "replay"))
            tables = list(store.tables(run))
        evaluated = run_records.evaluated(tables)
        scored = collecting.task_tables({"a": collecting.last_tasks(tables)})
        found = [text, replay, evaluated, scored, run_records.quality(tables), run_records.policy_nll(tables)]
    assert inert(found)
    for one in text["texts"] if text else ():
        assert {len(row) for row in (one["maskable"], one["surprisal"]) if row is not None} == {len(one["tokens"])}
        for grid in (one["importance"], one["loss"]):
            assert grid is None or {len(row) for row in grid} <= {len(one["tokens"])}
    for sampler in replay["samplers"] if replay else ():
        for one in sampler["texts"]:
            for frame in one["frames"]:
                positions = [*frame["hidden"], *(position for position, _ in frame["filled"] + frame["open"])]
                assert all(0 <= position < len(one["start"]) for position in positions)
        assert all(row["low"] <= row["median"] <= row["high"] for row in run_records.quartiles(replay))
    if evaluated:
        plain = {"name": "a", "objective": "b", "step": 1, "steps": 1, "tokens": 2, "trained": 2, "seconds": None}
        sentences = list(verdict([{**plain, "source": {}, "evaluated": evaluated}], None))
        assert all(isinstance(sentence, str) for sentence in sentences)


@given(st.text() | st.sampled_from(HOSTILE))
def test_no_text_ends_the_element_that_it_stands_in(text):
    written = inert({"text": text})
    assert not set("<>&\u2028\u2029") & set(written)
    assert json.loads(written) == {"text": text}
    assert inert("\ud83d").encode("utf-8") == b'"?"'  # half a pair of surrogates, which JSON can have


@pytest.mark.slow
def test_a_page_is_under_3_mb_whatever_is_recorded(tmp_path):
    one = make(tmp_path / "0", lines=2000, words=("<&>",) * 250)
    data = collect([one, *(shutil.copytree(one, tmp_path / str(i)) for i in range(1, 5))])
    assert len(page(data).encode()) < 3_000_000
    assert len(data["tables"]["curves"]) >= 200
    without = sum(one[key] is None for one in data["runs"] for key in ("text", "replay"))
    said = [each for key in ("text", "replay") for each in data["notes"].get(key, [])]
    assert len([each for each in said if "left out to keep the page small" in each]) == without > 0


def test_tasks_of_the_latest_weights_are_tables_with_a_column_for_each_run(copy, tmp_path):
    other = make(tmp_path / "other", seed=1)
    write_task(RunFolder(copy), 440, 9.0)  # older weights
    write_task(RunFolder(copy), 450, 5.5, seed=3)
    by_itself, shared = collect([copy, other])["tasks"]
    assert (by_itself["title"], by_itself["columns"]) == (
        "infilling (gap = 3)",
        ["score", "quantity", "items", "full", "other", "AR, published"],
    )
    assert by_itself["said"][0] == "Seed 3, full at step 450; ± one standard error over items."
    assert by_itself["rows"][0] == ["price", "nats per token", "2", "5.500 ± 0.020", "—", "—"]
    assert [row[3:] for row in shared["rows"]] == [
        ["0.348 ± 0.020", "1.348 ± 0.020", "—"],
        ["95.1", "95.1", "82.05"],
        ["not finite", "not finite", "—"],
    ]
    said = ["Seed 17, full and other at step 450; ± one standard error over items.", "a <b>note</b>"]
    assert shared["said"][:2] == said
    assert "`atat compare RUN RUN --task`" in shared["said"][2]


@pytest.mark.slow
def test_torch_is_not_imported(full):
    call = "import sys; from pathlib import Path; from atat_zoo.reports.report_data import collect"
    call += "; collect([Path(sys.argv[1])]); print('torch' in sys.modules)"
    assert spawned(str(full), call=call).stdout == "False\n"
