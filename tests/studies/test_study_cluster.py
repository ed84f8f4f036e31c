"""A study on a cluster: what is submitted, and that it trains, continues and measures, with a stand-in for SLURM."""

import json
import os
import re
import shutil
import signal
import stat
from pathlib import Path

import pytest

from atat_zoo.studies.processes import elements, submit, write_script
from atat_zoo.system.errors import UserError
from tests.studies.making import STUDY, Place, steps_of, wait_for

SWEEP = '[sweep]\nseed = 7\npoints = { a = [], b = ["optimizer.learning_rate=1e-3"] }\n'
# One job after the other, at once.
SBATCH = """
array=0
while [[ $1 == --* ]]; do
    if [[ $1 == --array=* ]]; then array=${1#--array=1-}; fi
    echo "$1" >> options
    shift
done
export SLURM_JOB_ID=7
if ((array)); then
    for ((i = 1; i <= array; i++)); do SLURM_ARRAY_TASK_ID=$i bash "$@"; done
    echo "7;here"
else
    bash "$@"
    echo Submitted batch job 8
fi
"""


@pytest.fixture
def slurm(tmp_path, monkeypatch):
    """Put `sbatch`, and an `atat` that writes down its words, on the PATH."""
    there = tmp_path / "bin"
    there.mkdir()
    for name, text in (("sbatch", SBATCH), ("atat", 'echo "$*" >> asked')):
        (there / name).write_text(f"#!/bin/bash\n{text}\n")
        (there / name).chmod(stat.S_IRWXU)
    monkeypatch.setenv("PATH", f"{there}:{os.environ['PATH']}")


def test_an_element_is_a_run_seed_by_seed_and_the_script_says_how_many(read, tmp_path, monkeypatch):
    study = read(STUDY)
    assert [run.name for run in elements(study)] == ["plain-seed18", "fast-seed18", "plain-seed19", "fast-seed19"]
    script = write_script(study, ["study.toml", "--write", "my page.md"], 2)
    assert script == Path("study/cluster.sh")
    first, second = re.findall(r"sbatch (.*study\.sbatch .*?)\)?\n", script.read_text())
    assert first.startswith('--parsable "$@" --array=1-4%2 ')
    assert second.startswith('"$@" --dependency=afterany:"${job%%;*}" ')
    assert second.endswith("study.sbatch study.toml --write 'my page.md'")
    monkeypatch.setattr(shutil, "which", lambda _: None)
    assert submit(script) is None


@pytest.mark.parametrize(
    ("more", "said"),
    [
        (SWEEP, "study.toml: [sweep] makes runs depend on the results of others"),
        ('[arms.b]\nlike = "fast"\nmatch_seconds = "plain"\n', "match_s"),
    ],
)
def test_trainings_that_wait_for_others_are_refused(read, more, said):
    study = read(STUDY + more)
    with pytest.raises(UserError, match=re.escape(said)):
        elements(study)


@pytest.mark.slow
def test_it_is_trained_by_elements_and_measured_at_the_end(slurm, tmp_path):
    place = Place(tmp_path)
    place.write(STUDY.replace("[18, 19]", "[18]"))
    stopped = place.begin("--array-index", "2", slow=0.4)
    wait_for(lambda: steps_of(place, "fast-seed18") >= 1, stopped)
    stopped.send_signal(signal.SIGTERM)
    out, _ = stopped.communicate()
    assert (stopped.returncode, place.runs()) == (143, ["fast-seed18"]), out
    out, _ = place.study("--cluster", "--write", "page.md")
    said = "2 training runs, and a job that evaluates them: study/cluster.sh"
    assert out.splitlines() == [said, "Submitted batch job 8"]
    assert (tmp_path / "options").read_text().splitlines() == ["--parsable", "--array=1-2", "--dependency=afterany:7"]
    asked = (tmp_path / "asked").read_text().splitlines()
    elements = ["study study.toml --array-index 1", "study study.toml --array-index 2"]
    assert asked == [*elements, "study study.toml --write page.md --measure"]
    first, second, _ = (place.study(*each.split()[2:])[0] for each in asked)
    assert "plain-seed18: training to step 3" in first
    assert "fast-seed18: resuming to step 3" in second
    assert json.loads((tmp_path / "page.json").read_text()) == place.report()
    assert (place.report()["failed"], len(place.report()["arms"])) == ({}, 2)
    # Again: the element is finished.
    before = place.trainings()
    place.study("--array-index", "2")
    assert place.trainings() == before
    # What did not end well is listed, and nothing is trained for it.
    shutil.rmtree(place.folder / "fast-seed18" / "model")
    _, err = place.study("--measure", code=1)
    assert "error: fast-seed18: is not finished (study/logs/fast-seed18.txt)" in err
    assert place.trainings() == before
    for words, sentence in (
        (["--array-index", "3"], "--array-index 3: pass a number from 1 to 2, the number of training runs"),
        (
            ["--array-index", "1", "--measure"],
            "--array-index and --measure cannot be combined; leave all but one",
        ),
    ):
        assert sentence in place.study(*words, code=2)[1]
