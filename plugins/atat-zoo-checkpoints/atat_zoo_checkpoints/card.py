"""The model card of an exported model: the template `card.md`, filled in from the run's records.

Where an evaluation is missing, the card names its command. `evaluation.results.quantity_names` names the quantities. A
run may come from an untrusted source, so `_received` removes line breaks, tags, links and code from recorded strings.
"""

from __future__ import annotations

import json
import shlex
from collections.abc import Iterator, Mapping
from contextlib import suppress
from pathlib import Path
from typing import TYPE_CHECKING, Any

from atat_zoo import __version__
from atat_zoo.data import shard_manifest
from atat_zoo.data.build import Build, ShardSource
from atat_zoo.data.corpora import text_source
from atat_zoo.evaluation.results import store
from atat_zoo.evaluation.results.evaluation import LIKELIHOOD
from atat_zoo.evaluation.results.format import lasting, markdown, number, settings, size, uncertain
from atat_zoo.evaluation.results.quantity_names import PERPLEXITY
from atat_zoo.experiment import Experiment, recipe, recipes
from atat_zoo.experiment.runs import RunFolder, sha256_of
from atat_zoo.registry import Zoo
from atat_zoo.registry.spec import components_in, unstructure
from atat_zoo.reports import report_data, run_records
from atat_zoo.reports.run_list import RecordedBound, bounds
from atat_zoo.system.errors import UserError
from atat_zoo_checkpoints.published_model import HUB_NAME, Base

if TYPE_CHECKING:
    from atat_zoo.generation.model import Model

_SAID = (  # the kinds of components that a card lists
    "objective",
    "backbone",
    "tokenizer",
    "noise",
    "mask_rates",
    "masking",
    "curriculum",
    "estimator",
    "position_sets",
)


def card_of(model: Model, run: Path, folder: Path, name: str, base: Base | None = None) -> str:
    """Return the model card of an exported run as Markdown, with the title `name`.

    `folder` must contain the export's config.json, except for an adapter, whose base model is `base`.
    """
    from jinja2 import Environment, FileSystemLoader, StrictUndefined

    experiment, module, step, kept = model.experiment, model.module, model.step, RunFolder(run)
    objective: Any = experiment.parts["objective"]
    written: dict[str, Any] = {}
    if base is None:
        written = json.loads((folder / "config.json").read_text(encoding="utf-8"))
        causal = not str((written.get("architectures") or ["MaskedLM"])[0]).endswith("MaskedLM")
    else:
        causal = bool(getattr(module.backbone, "causal", objective.hub_form == "causal"))
    origin = _received(kept.imported()) if step == 0 else {}  # the published model, if it was not trained here
    revision = origin.get("revision")
    environment = _received(run_records.environment(kept))
    tables = _received(list(store.tables(kept, warn=False)))
    found = run_records.evaluated(table for table in tables if table["step"] == step)
    evaluated: Mapping[str, Any] = run_records.of_one_kind(found, kept.table())[-1] if found else {}
    measured = list(bounds(evaluated).values()) if found else []
    exact = bool(measured) and evaluated["method"] == LIKELIHOOD
    weights = {name: sum(w.numel() for w in child.parameters()) for name, child in module.named_children()}
    parts = [(kind, experiment.parts[kind]) for kind in _SAID if kind in experiment.kinds]
    git, packages = environment.get("git"), environment.get("packages")
    began, seconds = _received(kept.began_with()), run_records.figure(kept.last_metrics().get("seconds"))
    ranks = f" with {began['ranks']} ranks" if began.get("ranks", 1) != 1 else ""
    took = f"{lasting(seconds)} on {began.get('device')} in {began.get('precision')}{ranks}" if seconds else ""
    again = ["atat", "import", str(origin.get("model")), "RUN"] if origin else ["atat", "train", "experiment.toml"]
    rows = [[b.quantity, uncertain(b.value, b.stderr), _of_what(b, exact)] for b in measured]
    prices = list(_prices(tables, step))
    refs = dict.fromkeys(ref for _, part in parts for ref in part.refs)
    jinja = Environment(
        loader=FileSystemLoader(Path(__file__).parent),
        undefined=StrictUndefined,
        trim_blocks=True,
        keep_trailing_newline=True,
        autoescape=False,  # Markdown; `_received` escapes recorded strings
    )
    jinja.filters |= {"number": number, "comma": "{:,}".format, "settings": _settings}
    return jinja.get_template("card.md").render(
        front=_front_matter(name, base, causal, experiment, evaluated, measured),
        name=name,
        base=base,
        path=run,
        auto=f"AutoModelFor{'CausalLM' if causal else 'MaskedLM'}",
        causal=causal,
        has_code="auto_map" in written,
        in_library="architectures" in written,  # otherwise, it is in the format of other code
        origin=origin,
        whose=f"`{origin.get('model')}`{f' at revision `{revision}`' if revision else ''}",
        objective=objective,
        sampler=experiment.parts["sampler"],
        optimizer=experiment.parts["optimizer"].name,
        schedule=experiment.parts["schedule"].name,
        data=experiment.data,
        train=experiment.train,
        seed=experiment.seed,
        length=experiment.data.length,
        vocabulary=model.context.vocabulary_size,
        parameters=weights.pop("backbone"),
        left_out={name: n for name, n in weights.items() if n},
        step=step,
        seen=step * experiment.train.batch_size * experiment.data.length,
        took=took if began else "",
        corpora=list(_corpora(experiment)),
        sizes="" if origin else _sizes(experiment),
        parts="\n".join(
            markdown(
                ["kind", "component", "parameters"],
                [[kind, f"`{part.name}`", _settings(part)] for kind, part in parts],
            )
        ),
        sha256=sha256_of(kept.resolved),
        evaluated=evaluated,
        exact=exact,
        size=size(evaluated["sequences"], evaluated["draws"]) if measured else "",
        bounds="\n".join(markdown(["quantity", "value", "definition"], rows)) if rows else "",
        prices="\n".join(markdown(["sampler", "parameters", "network evaluations", "quantity", "value"], prices))
        if prices
        else "",
        environment=environment | {"python": environment.get("python")},
        again=shlex.join(again),
        begun=report_data.command(environment),
        at=f", at commit `{git['commit']}`{' with uncommitted changes' * bool(git.get('changed'))}"
        if isinstance(git, dict) and git.get("commit")
        else "",
        packages=", ".join(f"{name} {version}" for name, version in packages.items() if version)
        if isinstance(packages, dict)
        else None,
        version=__version__,
        papers=", ".join(link for ref in refs if (link := _link(ref))),
    )


def _front_matter(
    name: str,
    base: Base | None,
    causal: bool,
    experiment: Experiment,
    evaluated: Mapping[str, Any],
    measured: list[RecordedBound],
) -> str:
    """Return the metadata that the hub reads from a card, as YAML."""
    from huggingface_hub import EvalResult, ModelCardData

    corpus = evaluated.get("corpus") or experiment.parts["corpus"].name
    task = "text-generation" if causal else "fill-mask"
    results = [
        EvalResult(
            task_type=task,
            dataset_type=corpus,
            dataset_name=f"{corpus}, {evaluated['split']}",
            metric_type=bound.quantity.replace(" ", "_"),
            metric_name=bound.quantity,
            metric_value=bound.value,
        )
        for bound in measured
    ]
    tags = ["atat-zoo", "causal-lm" if causal else "masked-diffusion", experiment.parts["objective"].name]
    how: dict[str, Any] = {"model_name": name, "eval_results": results} if results else {}
    if base is not None and HUB_NAME.fullmatch(base.name):
        how["base_model"] = base.name
    library = "transformers" if base is None else "peft"
    return ModelCardData(library_name=library, pipeline_tag=task, tags=tags, **how).to_yaml()


def _corpora(experiment: Experiment) -> Iterator[dict[str, Any]]:
    """Yield a dict for each corpus: its component, licence, summary, and the text source that provides it, if known."""
    corpus: Any = experiment.parts["corpus"]
    for part in (corpus, *(inner for kind, inner in components_in(corpus) if kind == "corpus")):
        known = next((text_source.read(each) for each in recipes() if recipe(each) == part), None)
        licence = known.source.licence if known else _received(part.licence)
        summary = Zoo.load().describe("corpus", part.name).summary
        yield {"part": part, "known": known, "licence": licence, "summary": summary}


def _sizes(experiment: Experiment) -> str:
    """Return the amount of text in each split, or how to find it if the shards are not on this machine."""
    with suppress(UserError, OSError, ValueError):
        build = Build(experiment, ShardSource.now(experiment), lambda *_: None)
        splits = shard_manifest.load(build.folder).splits.items()
        return "; ".join(
            f"{name}: {number(split.documents, 'document')}, {number(split.tokens, 'token')}, {split.bytes:,} bytes"
            for name, split in splits
        )
    return "To see the size of the text, run `atat data build experiment.toml` on a machine that has the text."


def _prices(tables: list[dict[str, Any]], step: int) -> Iterator[list[str]]:
    """Yield a table row for each sampler, with the perplexity of held-out text under it."""
    for each in run_records.policy_nll(tables):
        if each["step"] == step:
            yield _price(each["sampler"], each["settings"], each["evaluations"], each)
    for table in tables:
        with suppress(KeyError, TypeError, ValueError, AttributeError):  # an unknown format, or damaged
            if table["step"] == step and not table["corpus"]:
                yield _price(table["sampler"]["use"], table["sampler"], table["nfe"], table)


def _price(name: str, parameters: Any, nfe: float, of: Mapping[str, Any]) -> list[str]:
    value = uncertain(run_records.figure(of["value"]), run_records.figure(of["stderr"]))
    return [name, settings(parameters), f"{nfe:.1f}", of["quantity"], value]


def _received(value: Any) -> Any:
    """Return recorded values with every string on one line and without Markdown links, HTML tags or code."""
    if isinstance(value, dict):
        return {_received(key): _received(each) for key, each in value.items()}
    if isinstance(value, list):
        return [_received(each) for each in value]
    if not isinstance(value, str):
        return value
    line = "".join(c if c.isprintable() else " " for c in value)
    return " ".join(line.split()).replace("<", "&lt;").replace("](", "]\\(").replace("`", "'")


def _settings(part: Any) -> str:
    said: str = _received(settings(unstructure(part)))
    return said or "no parameters"


def _of_what(bound: RecordedBound, exact: bool) -> str:
    if bound.quantity != PERPLEXITY:
        return "exp(NLL per token, or a bound on it) under the objective's own process, not a perplexity"
    if exact:
        return "exp(NLL per token), exact likelihood"
    return "exp(NELBO per token) under uniform masking: an upper bound, averaged over all orders"


def _link(ref: str) -> str:
    """Return a reference as a Markdown link, or an empty string if it has no URL."""
    kind, _, rest = ref.partition(":")
    addresses = {"arXiv": f"https://arxiv.org/abs/{rest}", "doi": f"https://doi.org/{rest}"}
    if kind in addresses:
        return f"[{ref}]({addresses[kind]})"
    return f"<{ref}>" if ref.startswith("http") else ""
