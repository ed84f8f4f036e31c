"""What `collect` reads of run folders: what is recorded, value by value, and nothing else."""

import json
import math
import os
import shutil
import subprocess
import sys
import tempfile
import warnings
from pathlib import Path

import pytest
import tomli_w
from hypothesis import given
from hypothesis import strategies as st

from atat_zoo.errors import LeftOut, UserError
from atat_zoo.evaluation.naming import title
from atat_zoo.report import recorded
from atat_zoo.report.collect import _rows, collect
from atat_zoo.report.page import inert, page
from atat_zoo.report.runs import bounds
from atat_zoo.report.verdict import verdict
from atat_zoo.report.wording import uncertain
from atat_zoo.run import RunFolder
from tests.report.run_folders import HOSTILE, make, write_evaluation


@pytest.fixture(scope="module")
def full(tmp_path_factory):
    return make(tmp_path_factory.mktemp("runs") / "full")


def test_every_value_of_a_curve_is_one_that_the_training_has_recorded(full):
    data = collect([full])
    lines = {line["step"]: line for line in RunFolder(full).read_metrics()}
    assert len(data["tables"]["curves"]) == len(lines)
    for row in data["tables"]["curves"]:
        assert {key: lines[row["step"]][key] for key in row if key != "run"} == {k: row[k] for k in row if k != "run"}


def test_every_bound_is_one_that_an_evaluation_has_recorded(full):
    files = {
        table["step"]: table for table in map(json.loads, (p.read_text() for p in full.glob("evaluations/0*.json")))
    }
    rows = collect([full])["tables"]["bounds"]
    assert [row["step"] for row in rows] == sorted(files)
    for row in rows:
        bound = files[row["step"]]["bounds"]["nelbo"]
        assert (row["value"], row["high"]) == (bound["value"], bound["value"] + bound["stderr"])
        assert row["bound"] == title("nelbo")


def test_the_other_charts_and_the_texts_are_as_recorded(full):
    data = collect([full])
    quality = json.loads((full / "evaluations" / "importance.json").read_text())
    rhos = {(row["order"], row["orders by"]): row["rho"] for row in data["tables"]["bands"]}
    for i, band in enumerate(quality["bands"]):
        assert rhos[i, "importance"] == band["importance_spearman"]
        assert rhos[i, "frequency alone"] == band["frequency_spearman"]
    assert [row["rank"] for row in data["tables"]["bins"]] == [one["rank"] for one in quality["bins"]]
    priced = json.loads((full / "evaluations" / "samplers-2x16.json").read_text())["measured"]
    points = {(row["sampler"], row["evaluations"], row["value"]) for row in data["tables"]["frontier"]}
    assert points == {(one["name"], one["policy"]["nfe"], one["policy"]["value"]) for one in priced if one["policy"]}
    text = json.loads((full / "report" / "text.json").read_text())
    shown = data["runs"][0]["text"]
    assert [one["tokens"] for one in shown["texts"]] == [one["tokens"] for one in text["texts"]]
    assert shown["texts"][0]["loss"][3] == [v and round(v, 3) for v in text["texts"][0]["loss"][3]]
    assert [row["stage"] for row in data["tables"]["stages"]] == ["easy", "medium", "hard"]


@pytest.mark.parametrize(("recorded", "shown"), [("train", []), ("none", []), ("planner_aware", ["planner_aware"])])
def test_a_stage_is_one_of_a_curriculum(full, tmp_path, recorded, shown):
    run = RunFolder(shutil.copytree(full, tmp_path / "run"))
    run.append_metrics({"step": 900, "stage": recorded})
    assert [row["stage"] for row in collect([run.path])["tables"]["stages"]][3:] == shown


def test_a_run_may_have_the_name_of_the_base_where_the_report_is_asked_for(full, tmp_path, monkeypatch):
    shutil.copytree(full, tmp_path / "mdlm")
    monkeypatch.chdir(tmp_path)
    assert collect([Path("mdlm")])["experiment"]["rows"] == collect([full])["experiment"]["rows"]


def test_the_verdict_has_the_number_its_error_and_what_it_was_measured_on(full):
    first, second, third = collect([full])["verdict"]
    assert first == f"full, trained by mdlm for 450 steps, 1,843,200 tokens: {title('nelbo')} 55.9 ± 1.2."
    assert second.startswith("Measured on 768 sequences of validation text of sotu, 4 masks each by exact_k, seed 17")
    assert third.startswith("That is 30.1 ± 0.6 % lower than a count-table model of two neighbours, 80.0 ± 1.5")


def test_a_recorded_comparison_is_in_the_verdict_while_it_is_of_these_models(full, tmp_path):
    other = make(tmp_path / "other", experiment="mdlm", seed=1, estimator=False)
    copy = shutil.copytree(full, tmp_path / "full")
    without = " ".join(collect([copy, other])["verdict"])
    assert f"{title('nelbo').capitalize()}, lowest first: full 55.9 ± 1.2 and other 56.9 ± 1.2." in without
    assert "not recorded" in without
    difference = {"percent": 1.23456, "percent_low": 0.91, "percent_high": 1.56}
    third = shutil.copytree(other, tmp_path / "elsewhere" / "other")  # the same name and step, another model
    for i, run in enumerate((copy, other, third)):
        (run / "model").mkdir()
        for name, content in (
            ("model.json", '{"experiment": {}}'),
            ("model.safetensors", f"weights {i}"),
            ("tokenizer.json", "{}"),
        ):
            (run / "model" / name).write_text(content)
    rows = [{"bounds": {"nelbo": {"difference": each}}} for each in (None, difference)]
    sums = [recorded.model_sum(RunFolder(run)) for run in (copy, other)]
    (copy / "report" / "compare.json").write_text(json.dumps({"format": 1, "models": sums, "runs": rows}))
    assert "Against full: other +1.23 % [+0.91, +1.56]" in " ".join(collect([copy, other])["verdict"])
    assert "not recorded" in " ".join(collect([copy, third])["verdict"])
    (other / "model" / "model.safetensors").write_text("trained again")
    assert "not recorded" in " ".join(collect([copy, other])["verdict"])


def test_the_curve_of_the_bound_begins_before_the_first_step_and_is_of_one_text(full, tmp_path):
    """The verdict is of all sequences; those that were measured on the way are fewer, the last of them as well."""
    run = RunFolder(shutil.copytree(full, tmp_path / "full"))
    whole = json.loads((run.evaluations / "00000450.json").read_text())
    for path in run.evaluations.glob("000*.json"):
        path.unlink()
    (run.evaluations / "whole.json").write_text(json.dumps(whole))
    for step, value in ((0, 82.71), (450, 58.03)):
        write_evaluation(run, value, file=f"{step}", step=step, sequences=64, draws=4, tokens=4096)
    data = collect([run.path])
    rows = [[row[key] for key in ("step", "tokens", "seconds", "value")] for row in data["tables"]["bounds"]]
    assert rows == [[0, 0, 0, 82.71], [450, 1_843_200, 562.5, 58.03]]
    assert f"{title('nelbo')} 55.9 ± 1.2." in data["verdict"][0]
    began = "On 64 of these sequences it was 82.7 before the first step, which is what the counts of neighbouring"
    assert data["verdict"][3] == f"{began} tokens say alone, and is 58.0 after step 450."
    of_sequences, of_counts = data["notes"]["curves"]
    assert of_sequences == "full: the bound is drawn of 64 of the 768 sequences that the run is judged by."
    assert of_counts.startswith("full: counts of neighbouring tokens are in the network from step 0, so the training ")
    other = make(tmp_path / "other", experiment="baselines/mdlm", estimator=False)
    write_evaluation(RunFolder(other), 190.0, file="0", step=0, sequences=768, draws=4, tokens=49152, stderr=1.2444)
    data = collect([other])
    assert data["verdict"][3] == "It was 190 before the first step, and is 55.9 after step 450."
    assert "curves" not in data["notes"]


def test_the_title_says_what_is_compared_and_the_samples_which_sampler_wrote_them(full, tmp_path):
    others = [make(tmp_path / name, experiment="bell", seed=i) for i, name in enumerate("abcde", 1)]
    data = collect([full, others[0]])
    assert data["title"] == f"{title('nelbo').capitalize()} of a against full"
    assert data["runs"][1]["sampler"].startswith("strided (")
    assert data["runs"][1]["sampler"].endswith(", seed 17")
    assert "offset = random" in data["runs"][1]["sampler"]
    data = collect([full, *others, make(tmp_path / "f", bound="SEDD")])
    assert data["title"] == "a, b, c and 3 more against full"


@pytest.mark.parametrize("bound", ["nelbo", "adaptive", "SEDD"])
def test_a_bound_has_the_name_of_its_objective(tmp_path, bound):
    data = collect([make(tmp_path / "run", bound=bound)])
    assert {row["bound"] for row in data["tables"]["bounds"]} == {title(bound)}
    assert f"{title(bound)} 55.9 ± 1.2" in data["verdict"][0]


def test_a_run_that_has_only_begun(full, tmp_path):
    run = tmp_path / "begun"
    run.mkdir()
    shutil.copy(full / "resolved.toml", run)
    data = collect([run])
    assert all(rows == [] for rows in data["tables"].values())
    assert data["verdict"][0] == "begun, trained by mdlm for 0 steps."
    assert data["verdict"][-1] == "begun is at step 0 of 450."
    assert data["runs"][0]["text"] is None


# Puts a pipe, and then a link to what never ends, in the place of each file of a run, and reads the run.
ENDLESS = """
import os, resource, sys, warnings
from contextlib import suppress
from pathlib import Path
from atat_zoo.errors import UserError
from atat_zoo.evaluation.history import history
from atat_zoo.experiment import from_table
from atat_zoo.report.again import command
from atat_zoo.report.collect import collect
from atat_zoo.report.runs import environment, glance
from atat_zoo.run import RunFolder
warnings.simplefilter("ignore")
run = Path(sys.argv[1])
used = int(Path("/proc/self/statm").read_text().split()[0]) * resource.getpagesize()
resource.setrlimit(resource.RLIMIT_AS, (used + (1 << 30), -1))
for path in sorted(path for path in run.rglob("*") if path.is_file()):
    for put in (os.mkfifo, lambda path: path.symlink_to("/dev/zero")):
        path.rename(run / "kept")
        put(path)
        folder = RunFolder(run)
        for read in (glance, lambda run, _: collect([run]), lambda *_: folder.last_checkpoint(),
                     lambda *_: (environment(folder), command(folder), folder.began_with()),
                     lambda *_: history(folder, from_table(folder.table()))):
            with suppress(UserError):
                read(run, "run")
        path.unlink()
        (run / "kept").rename(path)
    print(path.relative_to(run))
"""


@pytest.mark.slow
def test_what_never_ends_is_not_read(full, tmp_path):
    run = shutil.copytree(full, tmp_path / "run")
    with RunFolder(run).writing_checkpoint(450, 1) as path:
        path.write_bytes(b"weights")
    (run / "model").mkdir()
    for name in ("model.json", "model.safetensors", "tokenizer.json"):
        (run / "model" / name).write_text("{}")
    ended = subprocess.run(
        [sys.executable, "-c", ENDLESS, str(run)], capture_output=True, text=True, timeout=100, check=False
    )
    assert ended.returncode == 0, ended.stderr
    read = ended.stdout.split()
    assert {"metrics.jsonl", "environment.json", "samples.txt", "report/text.json", "model/model.json"} <= set(read)
    assert "checkpoints/step-00000450.json" in read


def test_eight_runs_have_eight_names_and_two_of_one_name_their_folders_too(full, tmp_path):
    runs = [shutil.copytree(full, tmp_path / f"seed{i}" / "atat") for i in range(8)]
    names = [run["name"] for run in collect(runs)["runs"]]
    assert names == [f"seed{i}/atat" for i in range(8)]
    with pytest.raises(UserError, match="is named twice"):
        collect([runs[0], runs[1], runs[0] / ".." / "atat"])


def test_what_differs_between_runs_comes_first(full, tmp_path):
    others = [make(tmp_path / name, experiment="bell", overrides=(f"seed={i}",)) for i, name in enumerate("ab")]
    found = collect(others)["experiment"]
    assert found["columns"][2:] == ["a", "b"]
    assert [row[0] for row in found["rows"][: found["apart"]]] == ["seed"]
    assert ["rates.use", "noise", "bell", "bell"] in found["rows"]


def test_what_is_left_out_of_a_table_is_said_under_its_section_beside_what_is_said_there(full):
    data = collect([full])
    of_curves = list(data["notes"]["curves"])
    data["notes"]["curriculum"] = ["said before"]
    for name, section in {"rates": "curriculum", "bins": "importance", "uncertainty": "uncertainty"}.items():
        before = list(data["notes"].get(section, []))
        data["tables"][name] = [{"row": i} for i in range(100_000)]
        while len(data["tables"][name]) > 30_000:
            assert _rows(data)
        said = f"Of {name} only rows at even distances are drawn, for the page would be too large."
        assert data["notes"][section] == [*before, said]
        data["tables"][name] = []
    assert data["notes"]["curves"] == of_curves


def test_a_long_curve_is_thinned_and_the_page_says_so(tmp_path):
    data = collect([make(tmp_path / "long", lines=10_000)])
    assert len(data["tables"]["curves"]) <= recorded.POINTS
    kept = len(data["tables"]["curves"])
    said = f"long: {kept} of 10,000 recorded lines are drawn; the extremes of every stretch are kept."
    assert data["notes"]["curves"][0] == said
    assert len(data["tables"]["rates"]) == recorded.POINTS
    assert "800 of 10,000 recorded steps are drawn, evenly spaced" in data["notes"]["curriculum"][0]


def test_the_histogram_of_mask_rates_counts_every_rate_of_every_line(tmp_path):
    run = make(tmp_path / "long", lines=10_000)
    with RunFolder(run).metrics.open("a") as file:
        for damaged in ([1, "x"], [-1] * 20, [0] * 20, 3, None, [[]], [1]):
            file.write(json.dumps({"step": file.tell(), "mask_rates": damaged}) + "\n")
    drawn = [line["mask_rates"] for line in RunFolder(run).read_metrics()[:10_000]]
    sums = [sum(each) for each in zip(*drawn, strict=True)]
    rows = collect([run])["tables"]["spread"]
    assert [row["low"] for row in rows] == [i / 20 for i in range(4, 18)]
    assert [row["drawn"] for row in rows] == sums[4:18]
    assert all(row["share"] == row["drawn"] / sum(sums) for row in rows)
    assert all(row["high"] == pytest.approx(row["low"] + 0.05) for row in rows)


def test_the_strength_of_the_curriculum_is_as_recorded_and_another_objective_has_no_stage(full, tmp_path):
    lines = RunFolder(full).read_metrics()
    rows = collect([full])["tables"]["strengths"]
    assert [(row["step"], row["curriculum_strength"]) for row in rows] == [
        (line["step"], line["curriculum_strength"]) for line in lines
    ]
    run = RunFolder(shutil.copytree(full, tmp_path / "sedd"))
    run.metrics.write_text("".join(json.dumps({"step": line["step"], "stage": "train"}) + "\n" for line in lines))
    tables = collect([run.path])["tables"]
    assert [tables[name] for name in ("stages", "strengths", "rates", "spread")] == [[], [], [], []]


def test_an_evaluation_under_other_conditions_changes_neither_the_curve_nor_the_verdict(full, tmp_path):
    run = shutil.copytree(full, tmp_path / "full")
    before, own = collect([run]), bounds(RunFolder(run))
    table = json.loads((run / "evaluations" / "00000450.json").read_text())
    table |= {"split": "test", "sequences": 9999, "draws": 64}
    table["bounds"]["nelbo"]["value"] = 1.5
    (run / "evaluations" / "eval-test.json").write_text(json.dumps(table))
    after = collect([run])
    assert (after["tables"]["bounds"], after["verdict"]) == (before["tables"]["bounds"], before["verdict"])
    assert [row["value"] for row in after["tables"]["bounds"]] == [each.value for each in own]
    assert uncertain(own[-1].value, own[-1].stderr) in after["verdict"][0]


def test_the_tokens_of_the_verdict_are_of_the_step_of_its_evaluation(full, tmp_path):
    run = shutil.copytree(full, tmp_path / "full")
    (run / "evaluations" / "00000450.json").unlink()
    assert "for 320 steps, 1,310,720 tokens" in collect([run])["verdict"][0]


def test_what_is_of_an_older_step_is_said_to_be_and_older_prices_are_left_out(full, tmp_path):
    run = shutil.copytree(full, tmp_path / "full")
    newest = collect([run])
    against = {"experiment": ["All are held against the experiment mdlm: a run does not record what it extends."]}
    against["curves"] = newest["notes"]["curves"]
    assert newest["notes"] == {**against, "frontier": ["full: of step 450."]}
    table = json.loads((run / "evaluations" / "samplers-2x16.json").read_text())
    (run / "evaluations" / "samplers-old.json").write_text(json.dumps(table | {"step": 300}))
    assert collect([run])["tables"]["frontier"] == newest["tables"]["frontier"]
    for name in ("text", "replay"):
        path = run / "report" / f"{name}.json"
        path.write_text(json.dumps(json.loads(path.read_text()) | {"step": 300}))
    said = ["full: of step 300; the run is at step 450."]
    notes = collect([run])["notes"]
    old = {"text": said, "replay": said, "uncertainty": said}
    assert notes == {**against, **old, "frontier": ["full: of step 450."]}


@pytest.mark.parametrize(
    ("key", "value"), [("objective", "x"), ("train", {"steps": math.inf}), ("train", 3), ("evaluation", [])]
)
def test_an_experiment_that_is_not_whole_is_said_to_be(full, tmp_path, key, value):
    run = shutil.copytree(full, tmp_path / "run")
    (run / "resolved.toml").write_text(tomli_w.dumps(RunFolder(run).table() | {key: value}))
    with pytest.raises(UserError, match=r"resolved\.toml is not the whole of an experiment; copy the run again"):
        collect([run])


def test_a_date_in_an_experiment_is_shown(full, tmp_path):
    run = shutil.copytree(full, tmp_path / "run")
    (run / "resolved.toml").write_text("when = 1979-05-27\n" + (run / "resolved.toml").read_text())
    assert ["when", "—", '"1979-05-27"'] in collect([run])["experiment"]["rows"]


def test_a_name_that_is_no_utf_8_is_written(full, tmp_path):
    run = Path(os.fsdecode(os.fsencode(tmp_path) + b"/\xff"))
    shutil.copytree(full, run)
    data = collect([run])
    assert data["title"] == "\\udcff"
    assert page(data).encode()


@pytest.mark.parametrize("value", [10**400, float("nan"), float("inf"), "3", True, None])
def test_a_figure_is_a_finite_number(value):
    assert recorded.figure(value) is None


def test_a_negative_error_is_none_and_settings_hold_no_nan(full, tmp_path):
    run = shutil.copytree(full, tmp_path / "run")
    path = run / "evaluations" / "00000450.json"
    table = json.loads(path.read_text())
    table["bounds"]["nelbo"]["stderr"] = -1
    path.write_text(json.dumps(table))
    path = run / "report" / "replay.json"
    table = json.loads(path.read_text())
    table["samplers"][0]["settings"] = {"use": "strided", "temperature": float("nan")}
    path.write_text(json.dumps(table))
    data = collect([run])
    assert "55.9." in data["verdict"][0]
    assert data["runs"][0]["replay"]["samplers"][0]["settings"] == {"use": "strided", "temperature": None}
    assert inert(data)


@given(st.lists(st.none() | st.floats(-1e6, 1e6), min_size=1, max_size=300), st.integers(10, 60))
def test_thinning_keeps_the_ends_the_extremes_and_the_order(values, points):
    rows = [{"step": i, "loss": value} for i, value in enumerate(values)]
    kept = recorded.thin(rows, "loss", points)
    assert len(kept) <= max(points, 2)
    assert kept[0] is rows[0]
    assert kept[-1] is rows[-1]
    assert kept == sorted(kept, key=lambda row: row["step"])
    known = [value for value in values if value is not None]
    if known:
        left = [row["loss"] for row in kept if row["loss"] is not None]
        assert (min(left), max(left)) == (min(known), max(known))


DAMAGE = [
    b"", b"{", b"[]", b"null", b'{"format": 2}', b'{"format": 1}', b'{"format": 1, "texts": 3, "samplers": [1]}',
    b'{"format": 1, "rates": [0.5], "texts": [{"tokens": [1]}]}', b"\xff\xfe", b"[" * 100_000,
]  # fmt: skip


@pytest.mark.parametrize("damage", DAMAGE)
def test_damaged_files_are_missing_ones(full, tmp_path, damage):
    run = shutil.copytree(full, tmp_path / "run")
    for path in [*run.glob("report/*.json"), *run.glob("evaluations/*.json"), run / "environment.json"]:
        path.write_bytes(damage)
    other = shutil.copytree(full, tmp_path / "other")
    (run / "report" / "compare.json").write_bytes(damage)
    with pytest.warns(LeftOut) as told:
        collect([run, other])
    said = {str(each.message) for each in told}
    for name in ("text", "replay", "compare"):
        path = run / "report" / f"{name}.json"
        (sentence,) = (each for each in said if each.startswith(f"{path} "))
        assert sentence.endswith("; it is left out: `atat report --compute` records it again")
    assert all(each.isprintable() for each in said)
    with pytest.warns(LeftOut):
        data = collect([run])
    assert (data["runs"][0]["text"], data["runs"][0]["replay"]) == (None, None)
    assert data["tables"]["bounds"] == []
    assert inert(data)


EVALUATIONS = ["evaluations/00000450", "evaluations/importance", "evaluations/samplers-2x16"]


@given(st.data())
def test_a_file_that_is_changed_anywhere_is_refused_or_still_a_page(full, data):
    """Whatever a value in a recorded file becomes, the data can be written and have the shape the page relies on."""
    name = data.draw(st.sampled_from(["report/text", "report/replay", *EVALUATIONS]))
    table = json.loads((full / f"{name}.json").read_text())
    place = table
    while isinstance(place, dict | list) and place:
        key = data.draw(st.sampled_from(list(place) if isinstance(place, dict) else range(min(3, len(place)))))
        if not isinstance(place[key], dict | list) or data.draw(st.booleans()):
            place[key] = data.draw(st.sampled_from([None, -1, 3, 1e400, "x", [], {}, [[1]], True]))
            break
        place = place[key]
    with tempfile.TemporaryDirectory() as folder:
        run = RunFolder(Path(folder))
        path = run.path / f"{name}.json"
        path.parent.mkdir()
        path.write_text(json.dumps(table))
        with warnings.catch_warnings():
            warnings.simplefilter("ignore", LeftOut)
            text, replay, tables = recorded.text(run), recorded.replay(run), list(recorded.tables(run))
        evaluated = recorded.evaluated(tables)
        found = [text, replay, evaluated, recorded.quality(tables), recorded.priced(tables)]
    assert inert(found)
    for one in text["texts"] if text else ():
        for grid in (one["importance"], one["loss"]):
            assert grid is None or {len(row) for row in grid} <= {len(one["tokens"])}
    for sampler in replay["samplers"] if replay else ():
        for one in sampler["texts"]:
            assert all(0 <= i < len(one["start"]) for frame in one["frames"] for i in frame["hidden"])
        assert all(row["low"] <= row["median"] <= row["high"] for row in recorded.quartiles(replay))
    if evaluated:
        plain = {"name": "a", "objective": "b", "step": 1, "steps": 1, "tokens": 2, "trained": 2, "seconds": None}
        assert all(
            isinstance(sentence, str) for sentence in verdict([{**plain, "source": {}, "evaluated": evaluated}], None)
        )


@given(st.text() | st.sampled_from(HOSTILE))
def test_no_text_ends_the_element_that_it_stands_in(text):
    written = inert({"text": text})
    assert not set("<>&\u2028\u2029") & set(written)
    assert json.loads(written) == {"text": text}


def test_half_a_pair_of_surrogates_can_be_written():
    assert inert(json.loads('"\\ud83d"')).encode("utf-8") == b'"?"'


@pytest.mark.parametrize("runs", [1, 12])
def test_a_page_is_under_3_mb_whatever_is_recorded(tmp_path, runs):
    one = make(tmp_path / "0", lines=2000, words=("<&>",) * 250)
    every = [one, *(shutil.copytree(one, tmp_path / str(i)) for i in range(1, runs))]
    data = collect(every)
    assert len(page(data).encode()) < 3_000_000
    assert len(data["tables"]["curves"]) >= 200
    without = sum(one[key] is None for one in data["runs"] for key in ("text", "replay"))
    said = [each for key in ("text", "replay") for each in data["notes"].get(key, [])]
    assert (without > 0) == (runs > 1)
    assert len([each for each in said if "left out, for the page would be too large" in each]) == without


def test_torch_is_not_imported(full):
    code = "import sys; from pathlib import Path; from atat_zoo.report.collect import collect"
    code += "; collect([Path(sys.argv[1])]); print('torch' in sys.modules)"
    said = subprocess.run([sys.executable, "-c", code, full], capture_output=True, text=True, check=True).stdout
    assert said == "False\n"
