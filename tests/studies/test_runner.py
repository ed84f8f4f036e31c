"""What a study's plan says while points, steps and times are not known; nothing is trained here."""

from atat_zoo.studies import runner
from tests.studies.making import STUDY

SWEPT = """
[arms.long]
experiment = "tiny.toml"
overrides = ["evaluation.sequences=5"]
[arms.timed]
like = "long"
match_seconds = "plain"
[sweep]
seed = 7
points = { a = ["train.steps=2"], b = ["train.steps=9"] }
"""


def test_a_plan_takes_any_point_where_none_is_chosen_and_the_times_of_the_arms_that_are_most_alike(read, monkeypatch):
    study = read(STUDY + SWEPT)
    folder = study.run("plain", 7, "b").folder
    folder.path.mkdir(parents=True)
    folder.resolved.touch()
    folder.metrics.write_text('{"step": 1}\nwhat is damaged is left out\n{"step": 3}\n{"step": 4}\n')
    study.run("long", 7, "a").folder.path.mkdir()
    study.run("long", 7, "a").folder.resolved.touch()
    recorded = {"plain-a-seed7": 10.0, "plain-b-seed7": 30.0, "fast-b-seed18": 400.0}
    monkeypatch.setattr(runner, "_seconds_per_step", lambda run: recorded.get(run.name))
    known = runner.StudyRunner(study, runs={"fast": study.arm_runs("fast", {"plain": "b"})})
    assert {row.run: (row.state, row.step, row.steps, row.seconds) for row in runner.plan(known)} == {
        "plain-a-seed7": (runner.TO_DO, 0, 2, 2 * 20.0),
        "plain-b-seed7": (runner.TO_CONTINUE, 4, 9, 5 * 20.0),
        "long-a-seed7": (runner.TO_CONTINUE, 0, 2, 2 * 30.0),  # of all that are recorded
        "long-b-seed7": (runner.TO_DO, 0, 9, 9 * 30.0),
        "fast-b-seed18": (runner.TO_DO, 0, 9, 9 * 400.0),
        "fast-b-seed19": (runner.TO_DO, 0, 9, 9 * 400.0),
        **{
            f"{arm}-?-seed{seed}": (runner.TO_DO, 0, 2, 2 * each)
            for arm, each in (("plain", 20.0), ("long", 30.0), ("timed", 30.0))
            for seed in (18, 19)
        },
    }
