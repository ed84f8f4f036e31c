"""What K streams of text cost: the excess over an autoregressive model by the number of streams, and by position.

A set-causal model with L/K decoding steps decodes K streams of L/K tokens side by side. The first tokens of streams 2
to K have no left context, so that its NLL per token should exceed that of one stream by (K − 1)·c/L, with c nats per
cold start. The law is fitted by least squares to arms of the study `sets_512`, and predicts the excess that was
measured for other numbers of streams or at other lengths; its intervals are bootstrap percentiles over sequences.
`--runs` also measures, on the trained runs, the NLL by position of a stream, relative to the autoregressive model at
the same positions of the text, the NLL of one model for all numbers of streams relative to models of one number, that
of masked diffusion by the number of steps, and the forward passes of speculative decoding.
"""

from __future__ import annotations

import argparse
import json
import math
import sys
from pathlib import Path
from statistics import fmean
from typing import TYPE_CHECKING, Any

import attrs
import torch

from atat_zoo.evaluation.results.format import change
from atat_zoo.evaluation.results.intervals import interval, paired, percent, resampled

if TYPE_CHECKING:
    from atat_zoo.generation.model import Model

STUDIES = Path(__file__).parents[1] / "docs" / "studies"
RESULT = STUDIES.parent / "results" / "streams.json"
FITTED, LENGTH = "sets_512", 512
STREAMS = {"two_whole": 2, "four_whole": 4, "eight_whole": 8, "one": 1, "eight": 8}
# The arms that a law is fitted to, all trained alike, and what it predicts: study, arm, its K and L.
LAWS = {
    "whole": (("two_whole", "eight_whole"), (("sets_512", "four_whole", 4, 512),)),
    "gaps": (("one", "eight"), (("sets", "sets", 4, 64), ("sets_256", "sets_32", 8, 256))),
}
ONE_MODEL = "any_whole"
AT_POSITIONS = ("two_whole", "four_whole", "eight_whole")  # drawn over positions
AHEAD = {"one_ahead": 1, "two_ahead": 2}  # models for speculative decoding, with their numbers of streams
DRAFT_LENGTH = 2
BASE, MASKED = "autoregressive", "mdlm"
EDGE = 16  # tokens at the beginning and at the end of a stream
BIN = 8  # tokens in a point of the curve over positions


def excess(arms: tuple[str, ...]) -> dict[str, tuple[float, torch.Tensor]]:
    """Return by arm the nats per token above the autoregressive model's, and their resamples over sequences [R]."""
    lines = [json.loads(line) for line in (STUDIES / f"{FITTED}.nats.jsonl").read_text(encoding="utf-8").splitlines()]
    seeds: dict[str, dict[int, torch.Tensor]] = {}
    for line in lines:
        if line["bound"] == ("nelbo" if line["arm"] == BASE else "sets"):
            seeds.setdefault(line["arm"], {})[line["seed"]] = torch.tensor(line["nats"], dtype=torch.float64)
    count, others, found = torch.tensor(lines[0]["tokens"], dtype=torch.float64), seeds[BASE], {}
    for arm in arms:
        more = torch.stack([nats - others[seed] for seed, nats in seeds[arm].items()]).mean(0)
        sums = resampled(torch.stack([more, count], 1), purpose="streams", seed=0)
        found[arm] = float(more.sum() / count.sum()), sums[:, 0] / sums[:, 1]
    return found


def fit(arms: tuple[str, ...], predicted: tuple[tuple[str, str, int, int], ...]) -> dict[str, Any]:
    """Return the law that is fitted to the arms, and what it predicts, as tables of nats per token.

    `cold_start` is c in nats, not per token. If an arm has a single stream, `one_stream` is its excess, in nats per
    token: it differs from the autoregressive model, because it also learns prompts and gaps.
    """
    points = excess(arms)
    own = min(STREAMS[arm] for arm in arms) == 1

    def row(streams: int, length: int) -> list[float]:
        return [*([1.0] if own else []), (streams - 1) / length]

    design = torch.tensor([row(STREAMS[arm], LENGTH) for arm in points], dtype=torch.float64)
    values = torch.tensor([[value] for value, _ in points.values()], dtype=torch.float64)
    samples = torch.stack([each for _, each in points.values()])
    solution, of_samples = (torch.linalg.lstsq(design, each).solution for each in (values, samples))
    found: dict[str, Any] = {
        "cold_start": attrs.asdict(interval(float(solution[-1]), of_samples[-1])),
        "excess": {arm: value for arm, (value, _) in points.items()},
        "fitted": dict(zip(points, (design @ solution)[:, 0].tolist(), strict=True)),
        "predicted": [],
    }
    if own:
        found["one_stream"] = interval(float(solution[0]), of_samples[0]).to_table()
    for study, arm, streams, length in predicted:
        at = torch.tensor(row(streams, length), dtype=torch.float64)
        report = json.loads((STUDIES / f"{study}.json").read_text(encoding="utf-8"))["arms"]
        ours, theirs = (
            fmean(run["bounds"][run["bound"]]["nats_per_token"] for run in report[each]["runs"]) for each in (arm, BASE)
        )
        found["predicted"].append(
            {"study": study, "streams": streams, "length": length, "measured": ours - theirs}
            | interval(float(at @ solution[:, 0]), at @ of_samples).to_table()
        )
    return found


def by_position(run: Path, steps: int | None = None) -> torch.Tensor:
    """Return the NLL in nats of each position of the claim half, float64 [n, L].

    It is that of the run's own position sets or, with `steps`, of as many streams as there are tokens per step.
    """
    from atat_zoo.generation.model import Model
    from atat_zoo.modeling.position_sets import StridedPositionSets

    model = Model.from_run(run)
    if steps is not None:
        model.module.sets = StridedPositionSets(stride=steps)
    return nats_of(model, *claim_half(model))


def claim_half(model: Model) -> tuple[torch.Tensor, torch.Tensor]:
    """Return the sequences of the claim half, and which of their tokens are evaluated, each [n, L]."""
    from atat_zoo.data.build import build
    from atat_zoo.studies.run_measurement import text_of

    _, tokens, maskable = text_of(build(model.experiment), "claim", 0)
    return tokens, maskable


def nats_of(model: Model, tokens: torch.Tensor, maskable: torch.Tensor) -> torch.Tensor:
    """Return the NLL in nats of each position of these sequences, float64 [n, L]."""
    module, method, found = model.module.eval(), model.experiment.evaluation.bound, []
    with torch.no_grad():
        for x, free in zip(tokens.split(16), maskable.split(16), strict=True):
            keys = torch.zeros(len(x), dtype=torch.int64)
            estimates = module.own_bounds(x, free, keys, 1) or module.bound(x, free, keys, 1, method)
            found.append(next(iter(estimates.values())).contribution)
    return torch.cat(found)


def positions(folder: Path, seed: int = 18) -> dict[str, Any]:
    """Return by arm the nats above the autoregressive model's: of the first stream, and of the others by position.

    For the others, `first_tokens` and `last_tokens` are sums over the edges of a stream, and `between` is the mean of
    the tokens between them, all averaged over streams 2 to K. `curve` has the means over every 8 positions of the text.
    """
    others, found = by_position(folder / f"{BASE}-seed{seed}"), {}
    for arm, streams in STREAMS.items():
        more = (by_position(folder / f"{arm}-seed{seed}") - others).mean(0).view(streams, -1)
        curve = [round(nats, 4) for nats in more.flatten().view(-1, BIN).mean(1).tolist()]
        found[arm] = {"first_stream": float(more[0].mean()), "curve": curve}
        if streams > 1:
            later = more[1:].mean(0)
            found[arm] |= {"first_tokens": float(later[:EDGE].sum()), "between": float(later[EDGE:-EDGE].mean())}
            found[arm] |= {"last_tokens": float(later[-EDGE:].sum())}
    return found


def one_model(folder: Path, seed: int = 18) -> list[dict[str, Any]]:
    """Return, by the number of streams, the NLL of one model for all numbers relative to the model of this number."""
    found = []
    for specialist, streams in {BASE: 1, "two_whole": 2, "four_whole": 4, "eight_whole": 8}.items():
        theirs = by_position(folder / f"{specialist}-seed{seed}")
        ours = by_position(folder / f"{ONE_MODEL}-seed{seed}", LENGTH // streams)
        difference = paired(ours.sum(1), theirs.sum(1), torch.full((len(ours),), ours.shape[1])).to_table()
        perplexities = [math.exp(float(nats.mean())) for nats in (ours, theirs)]
        found.append({"streams": streams, "perplexities": perplexities} | difference)
    return found


def speculative(folder: Path, seed: int = 18, texts: int = 16) -> list[dict[str, Any]]:
    """Return by the number of streams the mean number of forward passes per text of speculative decoding, and the NLL.

    The NLL is that of the order with one step at a time, which has the same distribution, relative to the
    autoregressive model.
    """
    from atat_zoo.generation.model import Model

    theirs, found = by_position(folder / f"{BASE}-seed{seed}").sum(1), []
    for arm, streams in AHEAD.items():
        run, steps = folder / f"{arm}-seed{seed}", LENGTH // streams
        ours = by_position(run, steps).sum(1)
        sampler = {"use": "speculative", "draft_length": DRAFT_LENGTH}
        sampler |= {"position_sets": {"use": "strided", "stride": steps}}
        made = Model.from_run(run).sample(texts, sampler=sampler, seed=1).sample
        difference = paired(ours, theirs, torch.full((len(ours),), LENGTH)).to_table()
        found.append({"streams": streams, "passes": fmean(made.nfe.tolist())} | difference)
    return found


def masked(folder: Path, seed: int = 18) -> dict[int, float]:
    """Return by the number of decoding steps the nats per token of MDLM above those of one token per step.

    In random order with equally many tokens per step, they follow from the model's loss by mask rate.
    """
    from atat_zoo.generation.model import Model

    model = Model.from_run(folder / f"{MASKED}-seed{seed}")
    losses = model.module.loss_by_mask_rate.losses(LENGTH, LENGTH)
    mean = {steps: float(losses[LENGTH // steps :: LENGTH // steps].mean()) for steps in (64, 128, 256, LENGTH)}
    return {steps: nats - mean[LENGTH] for steps, nats in mean.items()}


def table_of(found: dict[str, Any]) -> str:
    """Return the page's table of positions."""
    head = ["arm", "K", "first stream, nats per token", f"further streams: first {EDGE} tokens, nats"]
    head += ["between, nats per token", f"last {EDGE} tokens, nats"]
    rows = [head, ["---"] * len(head)]
    for arm, each in found["positions"].items():
        numbers = [f"{each['first_stream']:+.3f}"]
        if "between" in each:
            numbers += [f"{each['first_tokens']:+.1f}", f"{each['between']:+.3f}", f"{each['last_tokens']:+.1f}"]
        rows.append([f"`{arm}`", str(STREAMS[arm]), *numbers, *[""] * (4 - len(numbers))])
    return "".join(f"| {' | '.join(row)} |\n" for row in rows)


def law_of(found: dict[str, Any]) -> str:
    """Return the page's table of the laws: by K and L, what was measured and what the law says."""
    head = ["training", "K", "L", "decoding steps", "measured", "law"]
    rows = [head, ["---"] * len(head)]

    def add(training: str, streams: int, length: int, measured: float, said: str) -> None:
        steps = str(length // streams)
        rows.append([training, str(streams), str(length), steps, f"{percent(measured):+.1f} %", said])

    for name, training in (("whole", "whole sequences"), ("gaps", "with prompts and gaps")):
        law = found["laws"][name]
        for arm, said in law["fitted"].items():
            add(training, STREAMS[arm], LENGTH, law["excess"][arm], f"{percent(said):+.1f} %, fitted")
        for each in law["predicted"]:
            add(training, each["streams"], each["length"], each["measured"], f"{change(each, 1)}, predicted")
    return "".join(f"| {' | '.join(row)} |\n" for row in rows)


def one_model_table(found: dict[str, Any]) -> str:
    """Return the page's table of one model for all numbers of streams."""
    head = ["K", "decoding steps", "perplexity of the model for one K", "of the model for all K", "difference"]
    rows = [head, ["---"] * len(head)]
    for each in found["one_model"]:
        ours, theirs = each["perplexities"]
        steps = str(LENGTH // each["streams"])
        rows.append([str(each["streams"]), steps, f"{theirs:.1f}", f"{ours:.1f}", change(each, 1)])
    return "".join(f"| {' | '.join(row)} |\n" for row in rows)


def speculative_table(found: dict[str, Any]) -> str:
    """Return the page's table of speculative decoding."""
    head = ["K", "decoding steps", "forward passes", "perplexity relative to the autoregressive model"]
    rows = [head, ["---"] * len(head)]
    for each in found["speculative"]:
        steps = LENGTH // each["streams"]
        rows.append([str(each["streams"]), str(steps), f"{each['passes']:.0f}", change(each, 1)])
    return "".join(f"| {' | '.join(row)} |\n" for row in rows)


TABLES = (table_of, law_of, one_model_table, speculative_table)


def main() -> None:
    """Print the laws; with `--runs`, also measure by position and one model, and with `--write`, keep the results."""
    parser = argparse.ArgumentParser(prog="streams")
    parser.add_argument("--runs", type=Path, help="folder of the study's runs, to measure the NLL by position again")
    parser.add_argument("--write", action="store_true", help=f"write docs/results/{RESULT.name}")
    given, _ = parser.parse_known_args(sys.argv[2:])
    found = json.loads(RESULT.read_text(encoding="utf-8")) if RESULT.exists() else {}
    found["laws"] = {name: fit(*law) for name, law in LAWS.items()}
    if given.runs:
        found |= {"positions": positions(given.runs), "one_model": one_model(given.runs), "masked": masked(given.runs)}
        found["speculative"] = speculative(given.runs)
    print(*(each(found) for each in TABLES), sep="\n")
    if given.write:
        RESULT.write_text(json.dumps(found, indent=1) + "\n", encoding="utf-8")


if __name__ == "__main__":
    main()
