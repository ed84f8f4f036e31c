"""Which runs there are, how far they are, and what differs between two: `atat ls` and `atat diff`."""

import json
import os
import time

import pytest

from atat_zoo.evaluation.results.quantity_names import PERPLEXITY
from atat_zoo.reports.run_list import RecordedBound, find, glance
from atat_zoo.system.errors import OmissionNote
from tests.cli.terminal import printed, refused
from tests.reports.run_folders import RESOLVED, write_evaluation, write_run


def listed(atat, *words):
    """Return what `atat ls --json` prints."""
    return json.loads(printed(atat, "ls", *words, "--json"))


# atat ls


def test_runs_are_found_in_studies_and_behind_links(tmp_path):
    for name in ("a", "study/mdlm-seed17", "study/atat-seed17", "1/2/3/4", "1/2/3/x/too-deep", ".hidden"):
        write_run(tmp_path / name)
    write_run(tmp_path / "a" / "model" / "inside-a-run")
    (tmp_path / "link").symlink_to(tmp_path / "a")
    (tmp_path / "circle").symlink_to(tmp_path)
    (tmp_path / "file").touch()
    found = [str(path.relative_to(tmp_path)) for path in find(tmp_path)]
    assert found == ["1/2/3/4", "a", "link", "study/atat-seed17", "study/mdlm-seed17"]
    assert list(find(tmp_path / "a")) == [tmp_path / "a"]


def test_a_run_is_training_while_its_lock_is_held(tmp_path):
    run = write_run(tmp_path / "run", steps=20)
    assert glance(run.path, "run").state == "stopped"
    with run.lock():
        seen = glance(run.path, "run")
        assert (seen.state, seen.step, seen.steps) == ("training", 20, 30)
    assert glance(run.path, "run").state == "stopped"
    run.model.mkdir()
    (run.model / "model.json").touch()
    assert glance(run.path, "run").state == "finished"


def test_the_bound_is_the_last_that_the_training_recorded(tmp_path):
    run = write_run(tmp_path / "run")
    for value, step in ((90.0, 10), (70.0, 20), (60.0, 30)):
        write_evaluation(run, value, step=step)
    others = {"split": "test", "seed": 3, "draws": 64, "method": "continuous_t", "corpus": "ptb", "sequences": 800}
    for key, value in others.items():
        write_evaluation(run, 1.0, **{key: value})
    for damaged in ({"step": None}, {"bounds": 5}, {"bounds": {"nelbo": {"value": "x"}}}):
        write_evaluation(run, 2.0, **damaged)
    (run.evaluations / "torn.json").write_text('{"step": 40')
    with pytest.warns(OmissionNote, match=r"torn\.json cannot be read: .*, so it is ignored; evaluate again"):
        bound = glance(run.path, "run").bound
    assert bound == RecordedBound(quantity=PERPLEXITY, value=60.0, stderr=1.2, step=30)


def test_ls_prints_a_line_for_each_run(atat, tmp_path):
    write_evaluation(write_run(tmp_path / "study" / "one", finished=True), 57.66)
    write_run(tmp_path / "two", objective="sedd", steps=10)
    long_ago = time.time() - 7300
    for path in (tmp_path / "two").iterdir():
        os.utime(path, (long_ago, long_ago))
    head, *lines = (line.split("  ") for line in printed(atat, "ls", str(tmp_path)).splitlines())
    assert [word.strip() for word in head if word] == ["run", "objective", "step", "held-out", "age", "state"]
    (one, two) = ([word.strip() for word in line if word] for line in lines)
    assert [*one[:4], one[5]] == ["study/one", "mdlm", "30/30", f"{PERPLEXITY} 57.7 ± 1.2", "finished"]
    assert two == ["two", "sedd", "10/30", "—", "2 h", "stopped"]


def test_ls_sorts_and_filters(atat, tmp_path):
    for name, steps, value in (("a", 10, 70.0), ("b", 30, 50.0), ("c", 20, None), ("d", 30, 60.0)):
        run = write_run(tmp_path / name, objective="mdlm" if name < "c" else "sedd", steps=steps, finished=steps == 30)
        if value:
            write_evaluation(run, value, step=steps)
        for each in (run.resolved, run.metrics):
            os.utime(each, (1e9 + steps, 1e9 + steps))

    def names(*words):
        return "".join(run["name"] for run in listed(atat, str(tmp_path), *words))

    assert names() == "abcd"
    assert names("--sort", "bound") == "bdac"
    assert names("--sort", "age") == "bdca"
    assert names("--sort", "step") == "bdca"
    assert names("--objective", "sedd") == "cd"
    assert names("--state", "stopped", "--objective", "sedd") == "c"
    assert names("--state", "training") == ""
    assert "none of the 4 runs in" in atat("ls", str(tmp_path), "--state", "training")[1]


@pytest.mark.parametrize(
    ("text", "sentence"),
    [
        (b"\xff", "resolved.toml cannot be read: "),
        (b'name = "\\u001b[31m', "resolved.toml cannot be read: "),
        (b"train = 3\nobjective = 4", "resolved.toml is an incomplete experiment"),
        (RESOLVED.replace("30", "inf").encode(), "resolved.toml is an incomplete experiment"),
    ],
)
def test_a_damaged_run_is_listed_with_a_sentence(atat, tmp_path, text, sentence):
    write_run(tmp_path / "whole")
    run = write_run(tmp_path / "damaged")
    run.resolved.write_bytes(text)
    run.metrics.write_bytes(b"\0" * 100)
    first, second, last = printed(atat, "ls", str(tmp_path)).splitlines()[1:]
    assert (first.split()[0], first.split()[-1]) == ("damaged", "damaged")
    assert second.split()[0] == "whole"
    assert last.startswith("damaged: ")
    assert sentence in last
    assert [run["name"] for run in listed(atat, str(tmp_path), "--state", "damaged")] == ["damaged"]


def test_a_folder_without_runs_and_what_is_no_folder_or_run_is_said(atat, tmp_path):
    assert atat("ls", str(tmp_path)) == (0, f"no runs in {tmp_path}\n", "")
    assert listed(atat, str(tmp_path)) == []
    no_folder = f"error: {tmp_path / 'nothing'} is not a folder; pass a folder of runs"
    assert refused(atat, "ls", str(tmp_path / "nothing")) == no_folder
    said = refused(atat, "diff", str(write_run(tmp_path / "run").path), str(tmp_path))
    assert "is not a run folder: resolved.toml is missing; pass a folder that" in said


# atat diff


def test_diff_says_what_differs_and_nothing_else(atat, tmp_path):
    one, two = write_run(tmp_path / "one"), write_run(tmp_path / "two", objective="sedd")
    two.resolved.write_text(two.resolved.read_text().replace("steps = 30", "steps = 30\nema_decay = 0.5"))
    for run, device in ((one, "cpu"), (two, "NVIDIA H100")):
        about = {"command": [run.path.name], "python": "3.11.7", "computes": {"device": device, "ranks": 1}}
        run.environment.write_text(json.dumps(about))
    rows = [line.split("  ") for line in printed(atat, "diff", str(one.path), str(two.path)).splitlines()]
    assert [[cell.strip() for cell in row if cell] for row in rows] == [
        ["experiment", "one", "two"],
        ["name", "one", "two"],
        ["objective.use", "mdlm", "sedd"],
        ["train.ema_decay", "—", "0.5"],
        [],
        ["environment", "one", "two"],
        ["computes.device", "cpu", "NVIDIA H100"],
        [],
        [f"the runs have no evaluation on the same text and masks; run `atat compare {one.path} {two.path}`"],
    ]


def test_diff_puts_bounds_on_the_same_text_and_masks_side_by_side(atat, tmp_path):
    one, two = write_run(tmp_path / "one"), write_run(tmp_path / "two")
    write_evaluation(one, 70.0, step=20)
    write_evaluation(one, 60.0)
    write_evaluation(two, 50.0, step=20)
    for changed in ({"seed": 3}, {"draws": 4}, {"sequences": 4}, {"split": "test"}, {"bytes": 1801}):
        write_evaluation(two, 1.0, step=40, **changed)
    *lines, last = printed(atat, "diff", str(one.path), str(two.path)).splitlines()
    (line, *more) = (each for each in lines if each.startswith("validation, 8 sequences, 2 masks each, seed 17, step "))
    assert f"{PERPLEXITY} 60.0 ± 1.2" in line
    assert [line, *more][-1].endswith(f"{PERPLEXITY} 50.0 ± 1.0")
    assert last == f"`atat compare {one.path} {two.path}` measures the difference and gives its confidence interval."
    (same,) = json.loads(atat("diff", str(one.path), str(two.path), "--json")[1])["bounds"]
    assert [bound["value"] for bound in same["bounds"]] == [60.0, 50.0]
    assert (same["split"], same["draws"], same["seed"]) == ("validation", 2, 17)
