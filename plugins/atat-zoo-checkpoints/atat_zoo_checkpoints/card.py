"""The model card of an export, written from what the run has recorded: no field of it is empty.

What was not measured is said with the command that measures it. Numbers have the names of `results.naming`. A run may
come from somebody else: what it has recorded as text is one line without tags and links, see `_received`.
"""

from __future__ import annotations

import json
import shlex
from collections.abc import Iterator, Mapping
from contextlib import suppress
from pathlib import Path
from typing import TYPE_CHECKING, Any

from atat_zoo import __version__
from atat_zoo.data import manifest
from atat_zoo.data.build import Build, ShardSource
from atat_zoo.data.corpora import source
from atat_zoo.errors import UserError
from atat_zoo.evaluation.results import store
from atat_zoo.evaluation.results.evaluation import LIKELIHOOD
from atat_zoo.evaluation.results.format import lasting, markdown, number, settings, size, uncertain
from atat_zoo.evaluation.results.naming import PERPLEXITY
from atat_zoo.experiment import recipe, recipes
from atat_zoo.experiment.runs import RunFolder, sha256_of
from atat_zoo.registry import Zoo
from atat_zoo.registry.spec import parts_in, unstructure
from atat_zoo.reports import recorded, reproduce
from atat_zoo.reports.runs import RecordedBound, bounds
from atat_zoo_checkpoints.exporting import HUB_NAME

if TYPE_CHECKING:
    from atat_zoo.generation.model import Model
    from atat_zoo_checkpoints.exporting import Base

# The kinds of which a card says the parts.
_SAID = ("objective", "backbone", "tokenizer", "noise", "rates", "masking", "curriculum", "estimator", "position_sets")


class Card:
    """The card of a model of a run that has been written into a folder, by sections of paragraphs."""

    def __init__(self, model: Model, run: Path, folder: Path, name: str, base: Base | None = None) -> None:
        self.model, self.run, self.name, self.path = model, RunFolder(run), name, run
        self.experiment, module = model.experiment, model.module
        self.parts = [(kind, self.experiment.parts[kind]) for kind in _SAID if kind in self.experiment.kinds]
        self.base = base  # of an adapter
        written: dict[str, Any] = {}
        if base is None:
            written = json.loads((folder / "config.json").read_text(encoding="utf-8"))
            self.causal = not str((written.get("architectures") or ["MaskedLM"])[0]).endswith("MaskedLM")
        else:
            form = self.experiment.parts["objective"].hub_form
            self.causal = bool(getattr(module.backbone, "causal", form == "causal"))
        self.has_code, self.in_library = "auto_map" in written, "architectures" in written
        self.environment = _received(recorded.environment(self.run))
        self.tables = _received(list(store.tables(self.run, warn=False)))
        # Whose weights these are, of a model that was not trained here.
        self.origin = _received(self.run.imported()) if model.step == 0 else {}
        found = recorded.evaluated(table for table in self.tables if table["step"] == model.step)
        self.evaluated: Mapping[str, Any] = recorded.of_one_kind(found, self.run.table())[-1] if found else {}
        self.bounds: list[RecordedBound] = list(bounds(self.evaluated).values()) if found else []
        self.seen = model.step * self.experiment.train.batch_size * self.experiment.data.length
        weights = {name: sum(w.numel() for w in child.parameters()) for name, child in module.named_children()}
        self.parameters, self.left_out = weights.pop("backbone"), {name: n for name, n in weights.items() if n}

    def text(self) -> str:
        """Return README.md."""
        sections = {
            f"# {self.name}": self.opening(),
            "## Use": self.use(),
            "## What it was trained on": self.foreign_data() if self.origin else self.data(),
            "## How it was trained": self.foreign_training() if self.origin else self.training(),
            "## How good it is": self.quality(),
            "## What its samplers cost": self.prices(),
            "## Limits": self.limits(),
            "## To make it again": self.again(),
            "## To cite it": self.cite(),
        }
        body = "\n\n".join("\n\n".join([heading, *paragraphs]) for heading, paragraphs in sections.items())
        return f"---\n{self.front_matter()}\n---\n\n{body}\n"

    def front_matter(self) -> str:
        """Return what the hub reads of a card, as YAML."""
        from huggingface_hub import EvalResult, ModelCardData

        corpus = self.evaluated.get("corpus") or self.experiment.parts["corpus"].name
        task = "text-generation" if self.causal else "fill-mask"
        results = [
            EvalResult(
                task_type=task,
                dataset_type=corpus,
                dataset_name=f"{corpus}, {self.evaluated['split']}",
                metric_type=bound.quantity.replace(" ", "_"),
                metric_name=bound.quantity,
                metric_value=bound.value,
            )
            for bound in self.bounds
        ]
        tags = ["atat-zoo", "causal-lm" if self.causal else "masked-diffusion", self.experiment.parts["objective"].name]
        how: dict[str, Any] = {"model_name": self.name, "eval_results": results} if results else {}
        if self.base is not None and HUB_NAME.fullmatch(self.base.name):
            how["base_model"] = self.base.name
        library = "transformers" if self.base is None else "peft"
        return ModelCardData(library_name=library, pipeline_tag=task, tags=tags, **how).to_yaml()

    def opening(self) -> Iterator[str]:
        """Say what it is."""
        objective, whose = self.experiment.parts["objective"], "trained with atat_zoo by"
        if self.origin:
            whose = f"{self.published}, which atat_zoo has imported and not trained. It is read and evaluated by"
        if self.base is not None:
            yield f"A LoRA adapter for `{self.base.name}`, whose weights are not here. Both together are this model:"
        yield (
            f"A language model of {number(self.parameters, 'parameter')}, {whose} the objective "
            f"`{objective.name}`: {objective.summary}. It reads and writes texts of {self.experiment.data.length} "
            f"tokens, of a vocabulary of {self.model.context.vocabulary_size:,}."
        )

    @property
    def published(self) -> str:
        """The name of the model that was imported."""
        revision = self.origin.get("revision")
        return f"`{self.origin.get('model')}`{f' at revision `{revision}`' if revision else ''}"

    def foreign_data(self) -> Iterator[str]:
        """Say that the text which an imported model has learned is not known."""
        yield f"The text that it has learned is not recorded here: see the model card of {self.published}."

    def foreign_training(self) -> Iterator[str]:
        """Say that nothing was trained, and how the model is read."""
        yield f"Nothing was trained here: the weights are those of {self.published}. It is read with these parts:"
        yield from self.components()

    def use(self) -> Iterator[str]:
        """Say how it is loaded."""
        if self.base is not None:
            kind = f"AutoModelFor{'CausalLM' if self.causal else 'MaskedLM'}"
            where = f'"{self.base.name}"' + (f', revision="{self.base.revision}"' if self.base.revision else "")
            lines = ["from peft import PeftModel", f"from transformers import {kind}", ""]
            lines += [f"base = {kind}.from_pretrained({where}, trust_remote_code=True)"]
            lines += [f'model = PeftModel.from_pretrained(base, "{self.name}")']
            yield "\n".join(["```python", *lines, "```"])
            return
        if not self.in_library:  # it is in the form of others, whose code is not here
            yield f"The weights are in the form in which they were published: `atat import {self.name} RUN` reads them."
            return
        kind = f"AutoModelFor{'CausalLM' if self.causal else 'MaskedLM'}"
        where = f'"{self.name}"' + ", trust_remote_code=True" * self.has_code
        lines = [f"from transformers import {kind}, AutoTokenizer", ""]
        lines += [f"model = {kind}.from_pretrained({where})", f"tokenizer = AutoTokenizer.from_pretrained({where})"]
        lines += [f'begun = tokenizer("The{"" if self.causal else " {tokenizer.mask_token} of"}", return_tensors="pt")']
        if not self.causal:
            lines[-1] = lines[-1].replace('tokenizer("', 'tokenizer(f"')
        lines += ["print(model(**begun).logits.shape)"]
        options = ", do_sample=True, max_new_tokens=32" if self.causal else ""
        if self.causal or self.has_code:
            lines += [f"print(tokenizer.batch_decode(model.generate(**begun{options})))"]
        yield "\n".join(["```python", *lines, "```"])
        if self.has_code and not self.causal:
            own = self.experiment.parts["sampler"]
            same = "which `generate` does unless told otherwise" if own.for_hub else "which this code does not have"
            yield (
                "`generate` fills masks; without a text it writes one, and with `max_new_tokens` it goes on. What it "
                "writes ends with its first EOS if the training had EOS (`windows` says otherwise). Its "
                "`sampler` is `ancestral`, `confidence` or `strided`, and `steps` are the evaluations of the network. "
                f"The sampler of the run is `{own.name}` ({_settings(own)}), {same}. The logit of the mask is −∞; at a "
                "token that is visible, the logits are what the network says there, having seen it."
            )

    def data(self) -> Iterator[str]:
        """Say what text it has learned."""
        corpus, data = self.experiment.parts["corpus"], self.experiment.data
        for part in (corpus, *(inner for kind, inner in parts_in(corpus) if kind == "corpus")):
            known = next((source.read(each) for each in recipes() if recipe(each) == part), None)
            said = f"`{part.name}` ({_settings(part)}): {Zoo.load().describe('corpus', part.name).summary}."
            if licence := known.source.licence if known else _received(part.licence):
                said += f" Licence of the text: {licence}."
            else:
                said += " Under which licence its text may be used is not recorded in a run: whoever had it knows."
            yield said + (f" Cite {known.source.cite}. `{known.command}` fetches it." if known else "")
        yield (
            f"It was cut into sequences of {data.length} tokens; special tokens `{data.special}`, rows `{data.rows}`. "
            f"{self.sizes()}"
        )

    def sizes(self) -> str:
        """Say how much text each split has, if the shards are here."""
        with suppress(UserError, OSError, ValueError):
            build = Build(self.experiment, ShardSource.now(self.experiment), lambda *_: None)
            splits = manifest.load(build.folder).splits.items()
            return "; ".join(
                f"{name}: {number(split.documents, 'document')}, {number(split.tokens, 'token')}, {split.bytes:,} bytes"
                for name, split in splits
            )
        return "How much it is `atat data build experiment.toml` says where the text is."

    def training(self) -> Iterator[str]:
        """Say how it has learned."""
        train, parts = self.experiment.train, self.experiment.parts
        average = f"; the weights are a moving average, decay {train.ema:g}" if train.ema else ""
        yield (
            f"{number(self.model.step, 'step')} of {number(train.batch_size, 'sequence')}, {self.seen:,} tokens, "
            f"by `{parts['optimizer'].name}` with the schedule `{parts['schedule'].name}`, seed {self.experiment.seed}"
            f"{average}. {self.cost()}"
        )
        yield from self.components()
        if self.left_out:
            named = ", ".join(f"{name} ({number(count, 'parameter')})" for name, count in self.left_out.items())
            yield f"Not in these files, since predictions do not read it: {named}."

    def components(self) -> Iterator[str]:
        """Say of which parts it is made."""
        rows = [[kind, f"`{part.name}`", _settings(part)] for kind, part in self.parts]
        yield "\n".join(markdown(["kind of part", "part", "parameters"], rows))
        yield (
            "Every parameter is in [experiment.toml](experiment.toml). The SHA-256 of the run's resolved.toml is "
            f"`{sha256_of(self.run.resolved)}`."
        )

    def cost(self) -> str:
        """Say how long the training took, and on what."""
        began, seconds = _received(self.run.began_with()), recorded.figure(self.run.last_metrics().get("seconds"))
        if began and seconds:
            ranks = f" on each of {began['ranks']}" if began.get("ranks", 1) != 1 else ""
            return f"It took {lasting(seconds)} on {began.get('device')} in {began.get('precision')}{ranks}."
        return "How long it took is not recorded: `atat train` of the same experiment records it."

    def quality(self) -> Iterator[str]:
        """Say what held-out text costs it."""
        if not self.bounds:
            yield f"Not measured on held-out text: `atat eval {self.path}` does it, and another export says it here."
            return
        table, exact = self.evaluated, self.evaluated["method"] == LIKELIHOOD
        rows = [[b.quantity, uncertain(b.value, b.stderr), _of_what(b, exact)] for b in self.bounds]
        yield "\n".join(markdown(["number", "value", "what it is"], rows))
        masks = "" if exact else f", masks by `{table['method']}`"
        yield (
            f"On {size(table['sequences'], table['draws'])} of {table['split']} text, {table['tokens']:,} tokens{masks}"
            f", seed {table['seed']}; ± is one standard error over sequences. Numbers of another tokenizer, text or "
            "protocol are not comparable with it."
        )

    def prices(self) -> Iterator[str]:
        """Say what samplers pay for held-out text."""
        rows = [
            _price(each["sampler"], each["settings"], each["evaluations"], each)
            for each in recorded.policy_nll(self.tables)
            if each["step"] == self.model.step
        ]
        for table in self.tables:
            with suppress(KeyError, TypeError, ValueError, AttributeError):  # of another shape, or damaged
                if table["step"] == self.model.step and not table["corpus"]:
                    rows.append(_price(table["sampler"]["use"], table["sampler"], table["nfe"], table))
        if rows:
            yield "What held-out text costs a sampler, as e to the nats per token, and its evaluations for a text:"
            yield "\n".join(markdown(["sampler", "parameters", "evaluations", "number", "value"], rows))
        else:
            yield (
                f"Not measured: `atat bench samplers {self.path}` prices them at their evaluations of the network, and "
                f"`atat eval {self.path} --bound policy` prices one."
            )

    def limits(self) -> Iterator[str]:
        """Say what it cannot do."""
        form = self.experiment.parts["objective"].hub_form if self.has_code else ""
        said = [
            f"It has read {self.seen:,} tokens, and knows what they say, true or not; nothing was done for its writing "
            "to be safe, fair or correct. It has learned from no instructions.",
            f"It has learned texts of {self.experiment.data.length} tokens, and no longer ones.",
        ]
        if self.origin:
            said = [
                f"Its limits are those of {self.published}; nothing was done here for its writing to be safe, fair or "
                "correct.",
                f"Here it reads texts of {self.experiment.data.length} tokens, and no longer ones.",
            ]
        if form == "turns":
            said.append(
                "A prediction depends on the turns in which the other tokens came, which `generate` tells the network; "
                "without `turns` all that is visible counts as given."
            )
        if form == "causal":
            said.append("Keys and values are not cached: every token takes a pass over the text.")
        if not self.causal:
            said.append("Tokens that are drawn in one step are drawn apart: fewer `steps` are faster, and worse.")
        yield "\n".join(f"- {each}" for each in said)
        licence = f"that of {self.published} holds; " if self.origin else ""
        yield (
            f"No licence of the weights is declared: {licence}whoever publishes them says it, in the first lines of "
            "this file."
        )

    def again(self) -> Iterator[str]:
        """Say how it is made again."""
        again = "atat train experiment.toml"
        if self.origin:
            again = shlex.join(["atat", "import", str(self.origin.get("model")), "RUN"])
        yield f"```console\n$ {again}\n```"
        if command := reproduce.command(self.environment):
            at, git = "", self.environment.get("git")
            if isinstance(git, dict) and git.get("commit"):
                at = f", at commit `{git['commit']}`{' with changes' * bool(git.get('changed'))}"
            yield f"The run was begun by `{command}`{at}."
        packages = self.environment.get("packages")
        if isinstance(packages, dict):
            versions = ", ".join(f"{name} {version}" for name, version in packages.items() if version)
            made = "imported" if self.origin else "trained"
            yield f"It was {made} with Python {self.environment.get('python')}, {versions}."
        yield f"Written by `atat export` of atat-zoo {__version__}, of step {self.model.step:,}."

    def cite(self) -> Iterator[str]:
        """Say whom to cite."""
        title = "atat\\_zoo: interchangeable parts for masked diffusion language models"
        fields = {"title": title, "author": "{The atat\\_zoo authors}", "version": __version__}
        lines = [f"  {key} = {{{value}}}," for key, value in fields.items()]
        yield "\n".join(["```bibtex", "@software{atat_zoo,", *lines, "}", "```"])
        refs = dict.fromkeys(ref for _, part in self.parts for ref in part.refs)
        if known := [link for ref in refs if (link := _link(ref))]:
            yield f"and the papers of its parts: {', '.join(known)}."


def _received(value: Any) -> Any:
    """Return what a run has recorded, its texts as one line each in which Markdown finds no tags and no links."""
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
        return f"e to the nats per token of the objective's own process, which is no {PERPLEXITY}"
    if exact:
        return "e to the nats per token, of the exact likelihood"
    return "e to an upper bound on the nats per token, under uniform masking: the mean over all orders"


def _price(name: str, parameters: Any, nfe: float, of: Mapping[str, Any]) -> list[str]:
    value = uncertain(recorded.figure(of["value"]), recorded.figure(of["stderr"]))
    return [name, settings(parameters), f"{nfe:.1f}", of["quantity"], value]


def _link(ref: str) -> str:
    """Return a reference as a link, or an empty text for one that has none."""
    kind, _, rest = ref.partition(":")
    addresses = {"arXiv": f"https://arxiv.org/abs/{rest}", "doi": f"https://doi.org/{rest}"}
    if kind in addresses:
        return f"[{ref}]({addresses[kind]})"
    return f"<{ref}>" if ref.startswith("http") else ""
