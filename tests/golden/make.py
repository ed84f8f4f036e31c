"""Compute the golden record: what this version of the zoo trains, writes, measures and builds.

    python -m tests.golden.make OUT.json

It goes through the public names only, so that the same record can be made by a version before a change and by the one
after it; `make golden OLD=revision` does that on one machine.
"""

import argparse
import contextlib
import hashlib
import json
import platform
import tempfile
from pathlib import Path
from typing import Any

import torch
from safetensors.torch import load_file

from atat_zoo import Model, Zoo
from atat_zoo.evaluation.likelihood import evaluate_run
from atat_zoo.experiment import EvaluationSpec, load, names
from atat_zoo.system.errors import UserError
from atat_zoo.testing.toys import Hashed, hashed_importance
from atat_zoo.training import train
from tests.golden.experiments import BASE, RUNS, write_corpus

SEEDS = (1, 2)
# Named samplers that go only with a model of their own.
OWN_MODEL = {"learned_order": "adaptive_position"}
# Models that are written from besides: what they can write in is their own.
WRITTEN = {
    "autoregressive": ["left_to_right", {"use": "semi_autoregressive", "block_size": 1}],
    "block": ["left_to_right", {"use": "semi_autoregressive", "block_size": 2}],
    "atat": ["uncertainty_guided", "confidence_history"],
}
BOUNDS = ["exact_k", {"use": "continuous_t"}, {"use": "discrete_t", "steps": 4}]
CHOICES = ("order", "tokens_per_step", "remasking", "stopping_rule", "token_sampling")
CLOCK = ("tokens_per_second", "flops_per_second", "seconds", "peak_memory")
# Keys of metrics.jsonl that the record does not have.
SINCE = ("curriculum_strength", "mask_rates")


def machine():
    """Return what the numbers depend on to the bit: the processor, its instructions and torch."""
    path = Path("/proc/cpuinfo")
    lines = path.read_text(encoding="utf-8").splitlines() if path.exists() else []
    names = [line.partition(":")[2].strip() for line in lines if line.startswith("model name")]
    return {
        "processor": names[0] if names else platform.processor(),
        "instructions": torch.backends.cpu.get_cpu_capability(),
        "bf16": " ".join(sorted({flag for line in lines for flag in line.split() if flag.endswith("_bf16")})),
        "torch": torch.__version__,
    }


def record():
    torch.set_num_threads(1)
    with tempfile.TemporaryDirectory() as folder, contextlib.chdir(folder):
        write_corpus(Path())
        trained = {name: _train(name) for name in RUNS}
        return {
            "machine": machine(),
            "shards": _shards(),
            "training": trained,
            "texts": _texts(),
            "drawn": drawn(),
            "bounds": {run: bounds(Path("runs") / run) for run in RUNS},
            "resolved": _resolved(),
        }


def _train(name):
    """Train one of the runs in `runs/`; return its metrics and its weights."""
    Path("golden.toml").write_text(BASE)
    out = Path("runs") / name
    train(load("golden.toml", RUNS[name]), out)
    metrics = [json.loads(line) for line in (out / "metrics.jsonl").read_text().splitlines()]
    file = out / "model" / "model.safetensors"
    tensors = dict(sorted(load_file(file).items()))
    weights = {
        key: [float(tensor.double().sum()), float(tensor.double().norm())]
        for key, tensor in tensors.items()
        if tensor.is_floating_point()
    }
    hashes = [[key, _digest(tensor.numpy().tobytes())] for key, tensor in tensors.items()]
    lines = [{key: value for key, value in line.items() if key not in CLOCK + SINCE} for line in metrics]
    return {
        # The first, the middle and the last step: what goes wrong anywhere is in the last one.
        "metrics": [lines[i] for i in (0, 9, 19)],
        "all_metrics_sha256": _digest(json.dumps(lines, sort_keys=True).encode()),
        "weights": weights,
        "weights_sha256": _digest(json.dumps(hashes).encode()),
    }


def _digest(data):
    return hashlib.sha256(data).hexdigest()


def _shards():
    found = sorted(Path("shards").rglob("*.tar"))
    splits = sorted({path.name.partition("-")[0] for path in found})
    return {
        split: _digest(b"".join(path.read_bytes() for path in found if path.name.startswith(split))) for split in splits
    }


def _wanted():
    """Return model, name and value of every named sampler, and of every part that a sampler can have."""
    named = Zoo.load().names("sampler")
    wanted: list[tuple[str, Any]] = [(OWN_MODEL.get(name, "mdlm"), name) for name in named]
    wanted += [(model, sampler) for model, samplers in WRITTEN.items() for sampler in samplers]
    # Every part in the place of the one that `combination` has by itself.
    wanted += [("mdlm", {"use": "combination", kind: part}) for kind in CHOICES for part in Zoo.load().names(kind)]
    return [
        (model, spec if isinstance(spec, str) else " ".join(map(str, spec.values())), spec) for model, spec in wanted
    ]


def _texts():
    """Return what every named sampler writes, by model, sampler and seed; nothing where the sampler is refused."""
    found: dict[str, dict[str, list[Any]]] = {}
    for name, part, sampler in _wanted():
        model, texts = Model.from_run(Path("runs") / name), []
        with contextlib.suppress(UserError):
            texts = [model.sample(2, sampler=sampler, seed=seed, precision="fp32") for seed in SEEDS]
        found.setdefault(name, {})[part] = [generation.sample.tokens.tolist() for generation in texts]
    return found


def drawn():
    """Return what every sampler draws from logits that are a hash in float64, the same on every processor."""
    found: dict[str, list[Any]] = {}
    for _, name, sampler in _wanted():
        model, spec = Hashed(9, importance=hashed_importance), Zoo.load().spec("sampler", sampler)
        found[name] = spec.sample(model, torch.full((4, 16), 9), torch.arange(4)).tokens.tolist()
    return found


def bounds(run):
    """Return the bounds of one run by every method that its objective and noise take."""
    model, found = Model.from_run(run), {}
    for method in BOUNDS:
        bound = Zoo.load().spec("bound", method)
        spec = EvaluationSpec(sequences=8, mask_samples=2, bound=bound)
        found[bound.name] = {}
        with contextlib.suppress(UserError):  # a bound may follow a schedule that this run's noise does not complete
            made = evaluate_run(model, run, spec, seed=3)
            found[bound.name] = {name: value.nats_per_token for name, value in made.bounds.items()}
    return found


def _resolved():
    """Return every shipped experiment, resolved: what most share once, and by name what differs."""
    tables = {}
    for name in names():
        if not name.startswith(("base/", "studies/")):
            # Without the words that say where files come from.
            found = flat(load(name).to_table())
            tables[name] = {key: value for key, value in found.items() if not key.endswith(".source")}
    common = dict(set.intersection(*({(k, json.dumps(v)) for k, v in t.items()} for t in tables.values())))
    return {
        "common": {key: json.loads(value) for key, value in sorted(common.items())},
        "each": {name: {k: v for k, v in t.items() if k not in common} for name, t in tables.items()},
    }


def flat(table, prefix=""):
    """Return a nested table as key paths and values; lists of tables are counted."""
    found: dict[str, Any] = {}
    for key, value in table.items():
        if isinstance(value, dict):
            found |= flat(value, f"{prefix}{key}.")
        elif isinstance(value, list) and any(isinstance(item, dict) for item in value):
            found |= flat({str(i): item for i, item in enumerate(value)}, f"{prefix}{key}.")
        else:
            found[prefix + key] = value
    return found


def written(record):
    """Return a record as JSON: a line for each thing that can differ, and none for a number."""

    def lines(value, depth):
        if depth and isinstance(value, dict) and value:
            inside = (f"{json.dumps(key)}: {lines(item, depth - 1)}" for key, item in value.items())
            return "{\n" + ",\n".join(inside) + "\n}"
        return json.dumps(value, ensure_ascii=False)

    return lines(record, 3) + "\n"


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("out", type=Path)
    parser.parse_args().out.write_text(written(record()), encoding="utf-8")
