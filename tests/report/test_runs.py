"""Which runs there are, how far they are, and what differs between two: `atat ls` and `atat diff`."""

from __future__ import annotations

import json
import os
import shlex
import subprocess
import sys
import time
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

from atat_zoo.errors import LeftOut
from atat_zoo.experiment import load
from atat_zoo.report.runs import RecordedBound, find, glance
from atat_zoo.results.naming import PERPLEXITY
from atat_zoo.run import RunFolder
from tests.report.run_folders import RESOLVED, write_evaluation, write_run

if TYPE_CHECKING:
    from collections.abc import Callable

    Atat = Callable[..., tuple[int, str, str]]


def listed(atat: Atat, *words: str) -> list[dict[str, Any]]:
    """Return what `atat ls --json` prints."""
    code, out, err = atat("ls", *words, "--json")
    assert (code, err) == (0, "")
    runs: list[dict[str, Any]] = json.loads(out)
    return runs


# atat ls


def test_runs_are_found_in_studies_and_behind_links(tmp_path: Path) -> None:
    for name in ("a", "study/mdlm-seed17", "study/atat-seed17", "1/2/3/4", "1/2/3/x/too-deep", ".hidden"):
        write_run(tmp_path / name)
    write_run(tmp_path / "a" / "model" / "inside-a-run")
    (tmp_path / "link").symlink_to(tmp_path / "a")
    (tmp_path / "circle").symlink_to(tmp_path)
    (tmp_path / "file").touch()
    found = [str(path.relative_to(tmp_path)) for path in find(tmp_path)]
    assert found == ["1/2/3/4", "a", "link", "study/atat-seed17", "study/mdlm-seed17"]
    assert list(find(tmp_path / "a")) == [tmp_path / "a"]


def test_a_run_is_training_while_its_lock_is_held(tmp_path: Path) -> None:
    run = write_run(tmp_path / "run", steps=20)
    assert glance(run.path, "run").state == "stopped"
    with run.lock():
        seen = glance(run.path, "run")
        assert (seen.state, seen.step, seen.steps) == ("training", 20, 30)
    assert glance(run.path, "run").state == "stopped"
    run.model.mkdir()
    (run.model / "model.json").touch()
    assert glance(run.path, "run").state == "finished"


def test_the_bound_is_the_last_that_the_training_recorded(tmp_path: Path) -> None:
    run = write_run(tmp_path / "run")
    for value, step in ((90.0, 10), (70.0, 20), (60.0, 30)):
        write_evaluation(run, value, step=step)
    others = {"split": "test", "seed": 3, "draws": 64, "method": "continuous_t", "corpus": "ptb", "sequences": 800}
    for key, value in others.items():
        write_evaluation(run, 1.0, **{key: value})
    for damaged in ({"step": None}, {"bounds": 5}, {"bounds": {"nelbo": {"value": "x"}}}):
        write_evaluation(run, 2.0, **damaged)
    (run.evaluations / "torn.json").write_text('{"step": 40')
    with pytest.warns(LeftOut, match=r"torn\.json cannot be read: .*; it is left out: evaluate again"):
        bound = glance(run.path, "run").bound
    assert bound == RecordedBound(quantity=PERPLEXITY, value=60.0, stderr=1.2, step=30)


def test_ls_prints_a_line_for_each_run(atat: Atat, tmp_path: Path) -> None:
    write_evaluation(write_run(tmp_path / "study" / "one", finished=True), 57.66)
    write_run(tmp_path / "two", objective="sedd", steps=10)
    long_ago = time.time() - 7300
    for path in (tmp_path / "two").iterdir():
        os.utime(path, (long_ago, long_ago))
    code, out, err = atat("ls", str(tmp_path))
    assert (code, err) == (0, "")
    head, *lines = (line.split("  ") for line in out.splitlines())
    assert [word.strip() for word in head if word] == ["run", "objective", "step", "bound", "age", "state"]
    (one, two) = ([word.strip() for word in line if word] for line in lines)
    assert [*one[:4], one[5]] == ["study/one", "mdlm", "30/30", f"{PERPLEXITY} 57.7 ± 1.2", "finished"]
    assert two == ["two", "sedd", "10/30", "—", "2 h", "stopped"]


def test_ls_sorts_and_filters(atat: Atat, tmp_path: Path) -> None:
    for name, steps, value in (("a", 10, 70.0), ("b", 30, 50.0), ("c", 20, None), ("d", 30, 60.0)):
        run = write_run(tmp_path / name, objective="mdlm" if name < "c" else "sedd", steps=steps, finished=steps == 30)
        if value:
            write_evaluation(run, value, step=steps)
        for each in (run.resolved, run.metrics):
            os.utime(each, (1e9 + steps, 1e9 + steps))

    def names(*words: str) -> str:
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
        (b"train = 3\nobjective = 4", "resolved.toml is not the whole of an experiment"),
        (RESOLVED.replace("30", "inf").encode(), "resolved.toml is not the whole of an experiment"),
    ],
)
def test_a_damaged_run_is_listed_with_a_sentence(atat: Atat, tmp_path: Path, text: bytes, sentence: str) -> None:
    write_run(tmp_path / "whole")
    run = write_run(tmp_path / "damaged")
    run.resolved.write_bytes(text)
    run.metrics.write_bytes(b"\0" * 100)
    code, out, err = atat("ls", str(tmp_path))
    assert (code, err) == (0, "")
    first, second, last = out.splitlines()[1:]
    assert (first.split()[0], first.split()[-1]) == ("damaged", "damaged")
    assert second.split()[0] == "whole"
    assert last.startswith("damaged: ")
    assert sentence in last
    assert [run["name"] for run in listed(atat, str(tmp_path), "--state", "damaged")] == ["damaged"]


def test_a_folder_that_cannot_be_read_is_left_out(atat: Atat, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Permissions are told by a stand-in: the superuser may read everything."""
    for name in ("a", "closed", "z"):
        write_run(tmp_path / name)
    is_file = Path.is_file

    def told(path: Path) -> bool:
        if path.parent.name == "closed":
            raise PermissionError(13, "Permission denied")
        return is_file(path)

    monkeypatch.setattr(Path, "is_file", told)
    assert [run["name"] for run in listed(atat, str(tmp_path))] == ["a", "z"]
    code, _, err = atat("ls", str(tmp_path / "closed"))
    assert (code, err.count("closed cannot be read: Permission denied")) == (2, 1)


def test_a_folder_without_runs_and_what_is_no_folder_or_run_is_said(atat: Atat, tmp_path: Path) -> None:
    assert atat("ls", str(tmp_path)) == (0, f"there is no run in {tmp_path}\n", "")
    assert listed(atat, str(tmp_path)) == []
    code, out, err = atat("ls", str(tmp_path / "nothing"))
    assert (code, out) == (2, "")
    assert err == f"error: {tmp_path / 'nothing'} is no folder; name one that runs are in\n"
    code, _, err = atat("diff", str(write_run(tmp_path / "run").path), str(tmp_path))
    assert (code, "is no run folder: it has no resolved.toml; name a folder that" in err) == (2, True)


def test_two_hundred_runs_are_listed_quickly_and_without_torch(tmp_path: Path) -> None:
    """The bar is two seconds; the processor's time is not changed by what else runs here."""
    run = write_run(tmp_path / "run0", finished=True)
    run.resolved.write_text(load("bell").to_toml())
    run.metrics.write_text("".join(json.dumps({"step": step, "loss": 1.0}) + "\n" for step in range(10_000)))
    for _ in range(5):
        write_evaluation(run, 57.7, sequences=768, draws=4)
    for number in range(1, 200):
        (tmp_path / f"run{number}").symlink_to(run.path)
    code = (
        "import resource, sys\nfrom atat_zoo.cli import main\n"
        "try: main()\nfinally: print('torch' in sys.modules, sum(resource.getrusage(0)[:2]), file=sys.stderr)"
    )
    done = subprocess.run([sys.executable, "-c", code, "ls", str(tmp_path)], capture_output=True, text=True, check=True)
    torch, seconds = done.stderr.split()
    assert done.stdout.count("9999/450 ") == 200
    assert torch == "False"
    assert float(seconds) < 2


# atat diff


def test_diff_says_what_differs_and_nothing_else(atat: Atat, tmp_path: Path) -> None:
    one, two = write_run(tmp_path / "one"), write_run(tmp_path / "two", objective="sedd")
    two.resolved.write_text(two.resolved.read_text().replace("steps = 30", "steps = 30\nema = 0.5"))
    for run, device in ((one, "cpu"), (two, "NVIDIA H100")):
        run.environment.write_text(
            json.dumps({"command": [run.path.name], "python": "3.11.7", "computes": {"device": device, "ranks": 1}})
        )
    code, out, err = atat("diff", str(one.path), str(two.path))
    assert (code, err) == (0, "")
    rows = [line.split("  ") for line in out.splitlines()]
    assert [[cell.strip() for cell in row if cell] for row in rows] == [
        ["experiment", "one", "two"],
        ["name", "one", "two"],
        ["objective.use", "mdlm", "sedd"],
        ["train.ema", "—", "0.5"],
        [],
        ["environment", "one", "two"],
        ["computes.device", "cpu", "NVIDIA H100"],
        [],
        [f"no bound is recorded for both on the same text and masks: `atat compare {one.path} {two.path}` measures it"],
    ]


def test_diff_of_a_run_with_itself_is_empty(atat: Atat, tmp_path: Path) -> None:
    run = write_run(tmp_path / "run")
    for said in ("are not recorded", "do not differ"):
        out = atat("diff", str(run.path), str(run.path))[1]
        assert out.startswith(f"the experiments do not differ\n\nthe environments {said}\n")
        run.environment.write_text('{"python": "3.11.7"}')
    said = json.loads(atat("diff", str(run.path), str(run.path), "--json")[1])
    assert said == {"runs": [str(run.path)] * 2, "experiment": {}, "environment": {}, "bounds": []}


def test_diff_puts_bounds_on_the_same_text_and_masks_side_by_side(atat: Atat, tmp_path: Path) -> None:
    one, two = write_run(tmp_path / "one"), write_run(tmp_path / "two")
    write_evaluation(one, 70.0, step=20)
    write_evaluation(one, 60.0)
    write_evaluation(two, 50.0, step=20)
    for changed in ({"seed": 3}, {"draws": 4}, {"sequences": 4}, {"split": "test"}, {"bytes": 1801}):
        write_evaluation(two, 1.0, step=40, **changed)
    code, out, _ = atat("diff", str(one.path), str(two.path))
    assert code == 0
    line, last = out.splitlines()[-2:]
    assert line.startswith("validation, 8 sequences × 2 draws, seed 17, step 30 and 20  ")
    assert line.endswith(f"{PERPLEXITY} 60.0 ± 1.2  {PERPLEXITY} 50.0 ± 1.0")
    assert last == f"`atat compare {one.path} {two.path}` measures the difference with its interval."
    (same,) = json.loads(atat("diff", str(one.path), str(two.path), "--json")[1])["bounds"]
    assert [bound["value"] for bound in same["bounds"]] == [60.0, 50.0]
    assert (same["split"], same["draws"], same["seed"]) == ("validation", 2, 17)


def test_the_command_that_diff_prints_can_be_pasted(atat: Atat, tmp_path: Path) -> None:
    paths = [str(write_run(tmp_path / name).path) for name in ("my run", "it's; $(rm)")]
    for value in (None, 60.0):  # without a bound of both, and with one
        for path in paths if value else ():
            write_evaluation(RunFolder(Path(path)), 60.0)
        said = atat("diff", *paths)[1].split("`")[1]
        assert shlex.split(said) == ["atat", "compare", *paths]
