"""One training that is killed twenty times, continued each time, and compared with one that was left alone."""

import shutil
from functools import partial

from tests.attack import kills, moments
from tests.attack.driver import REFUSED, Verdict, one_by_one

# A kill comes eight new steps after the last checkpoint at most, so the sixteen before the end do not reach it.
LONG = ["train.steps=72", "train.save_every=2", "train.evaluate_every=4"]
BEFORE_THE_END = {"build": 1, "step": 4, "checkpoint": 3, "evaluation": 2}  # stage -> moments of it to choose from
EACH = 4  # kills at each of the five stages
VARIANTS = ("one", "two ranks", "foreign")


def order(draw):
    """Return the stages at which to kill, each with which of its moments; the model is saved at the end only."""
    early = [stage for stage in BEFORE_THE_END for _ in range(EACH)]
    draw.shuffle(early)
    return [*((stage, draw.randrange(BEFORE_THE_END[stage])) for stage in early), *[("save", 0)] * EACH]


def attack(draw, number, seed, base, work):
    """Kill a training again and again: on one rank, on two, or with stages on a WebDataset that comes over HTTP."""
    variant, begin = VARIANTS[number % 3], partial(kills.train, extra=LONG)
    shutil.rmtree(work)
    kills.begun(work)
    story: list[str] = []
    memory, ranks = 0, kills.VARIANTS[variant][1]
    for kill, (stage, at) in enumerate(order(draw)):
        # Only rank 0 saves the model.
        rank = 0 if stage == "save" else draw.randrange(ranks)
        log = work / f"moments-{kill}"
        ended = begin(variant, work, moments.plan("kill", at, log, rank, stage))
        memory = max(memory, ended.memory)
        story.append(f"{variant}: kill {kill} on rank {rank}, {stage} {at}: exit code {ended.code}")
        if moments.read(log, rank) != [stage] * (at + 1):
            return kills.failure("it was not killed", story, ended, memory)
        if draw.random() < 0.3:
            kills.tear_record(draw, work / "run" / "metrics.jsonl")
    ended = begin(variant, work, moments.plan(log=work / "moments"))
    why = kills.wrong(ended, "", variant) or kills.difference(base / variant, work)
    return kills.failure(why, story, ended, memory) if why else Verdict(REFUSED, "", memory)


KIND = one_by_one("endurance", 3, attack, partial(kills.prepare, variants=VARIANTS, extra=LONG))
