"""A study on a cluster: its trainings as a SLURM job array, and a job after them that measures. Imports no torch."""

import shlex
import shutil
import subprocess
from collections.abc import Sequence
from pathlib import Path

from atat_zoo import experiment as experiments
from atat_zoo.errors import UserError, clip
from atat_zoo.experiment.runs import write_text
from atat_zoo.studies.schema import Study, StudyRun, in_order


def elements(study: Study) -> list[StudyRun]:
    """Return the runs of the array in order; a `UserError` where some follow from what others have measured."""
    for key, there in (("[sweep]", study.sweep), ("match_seconds", study.matched)):
        if there:
            problem = (
                f"{clip(study.file)}: {key} lets trainings wait for what others have measured, and an array cannot"
            )
            raise UserError(f"{problem}; leave it out, or run the study on one machine with --jobs")
    return in_order({arm: study.arm_runs(arm, {}) for arm in study.arms})


def write_script(study: Study, measure: Sequence[str], jobs: int | None) -> Path:
    """Write the script that submits a study, and return it.

    Args:
        study: the study.
        measure: words of `atat study` for the job that measures: the file, and options.
        jobs: elements that run at a time; as many as SLURM starts, if None.
    """
    array = f"1-{len(elements(study))}{f'%{jobs}' if jobs else ''}"
    sbatch = shlex.quote(str(experiments.shipped("cluster/study", ".sbatch")))
    path = study.folder / "cluster.sh"
    lines = [
        "#!/bin/bash",
        "# A study's trainings as a job array, and a job after them that measures: written by `atat study --cluster`.",
        "# Words behind its name are options of sbatch, such as --partition=gpu. To continue, submit it again.",
        "set -eu",
        f"cd {shlex.quote(str(Path.cwd()))}",
        f'job=$(sbatch --parsable "$@" --array={array} {sbatch} {shlex.quote(measure[0])})',
        f'sbatch "$@" --dependency=afterany:"${{job%%;*}}" {sbatch} {shlex.join(measure)}',
    ]
    write_text(path, "\n".join(lines) + "\n")
    path.chmod(0o755)
    return path


def submit(script: Path) -> str | None:
    """Run the script where `sbatch` is, and return what was said; None where it is not."""
    if shutil.which("sbatch") is None:
        return None
    done = subprocess.run(["bash", str(script)], capture_output=True, text=True, check=False)
    if done.returncode:
        raise UserError(
            f"{script} cannot be submitted: {clip(done.stderr.strip())}; give its options of sbatch by hand"
        )
    return done.stdout.strip()
