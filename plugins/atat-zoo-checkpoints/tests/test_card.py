"""The model card: what was recorded with its error, what was not with its command, and nothing empty."""

import json
import re
import tempfile
from pathlib import Path

import pytest
import yaml
from atat_zoo_checkpoints.card import card_of
from atat_zoo_checkpoints.model_export import export_run
from huggingface_hub import ModelCard
from hypothesis import given, settings
from hypothesis import strategies as st
from markdown_it import MarkdownIt

from atat_zoo import Model
from atat_zoo.experiment.runs import write_json
from tests.generation.forms import model_of, run_of

EVALUATION = {
    **{"corpus": "", "split": "validation", "step": 0, "method": "exact_k", "sequences": 1024, "draws": 4, "seed": 17},
    **{"tokens": 9000, "bytes": 30000, "words": 5000, "ngram_prior": None, "metrics": {}},
}
POLICY = {
    **{"quantity": "policy likelihood", "sampler": {"use": "strided", "stride": 4}, "corpus": "", "step": 0},
    **{"nfe": 4.0, "value": 51.25, "stderr": 1.5},
}


def card_of_export(run, out):
    """Return the card of an export, as the hub's own library reads it."""
    export_run(run.path, out)
    card = ModelCard.load(out / "README.md")
    sections = re.split(r"^## (.+)$", card.text, flags=re.MULTILINE)
    titles = dict(zip(sections[1::2], sections[2::2], strict=True))
    assert all(len(text.split()) > 4 for text in titles.values()), "no section is empty"
    assert not re.search(r"\bNone\b|\bnan\b|\| *\||``", card.text.replace("```", ""), re.MULTILINE)
    return card, titles


@pytest.mark.parametrize("form", ["mdlm", "sets", "autoregressive"])
def test_what_was_not_measured_is_said_with_its_command(form, tmp_path):
    run = run_of(model_of(form), tmp_path / "run")
    card, said = card_of_export(run, tmp_path / "out")
    task = "text-generation" if form == "autoregressive" else "fill-mask"
    assert (card.data.library_name, card.data.pipeline_tag, card.data.eval_results) == ("transformers", task, None)
    assert f"not been evaluated on held-out text; run `atat eval {run.path}`" in said["Evaluation"]
    assert f"No sampler has been evaluated on held-out text. `atat bench samplers {run.path}`" in said["Samplers"]
    assert "State of the Union" in said["Training data"]
    assert "Licence of the text: public domain." in said["Training data"]
    assert "perplexity" not in card.text.replace("generative perplexity", "")
    assert f"| objective | `{'set_causal' if form == 'sets' else form}` |" in said["Training"]
    assert ("estimator (" in said["Training"]) == (form == "mdlm")
    assert "$ atat train experiment.toml" in said["Reproduction"]
    if form == "autoregressive":
        exact = EVALUATION | {"method": "likelihood", "draws": 0, "bounds": {"nelbo": {"value": 40.0, "stderr": 0.5}}}
        write_json(run.evaluations / "a.json", exact)
        said = card_of_export(run, tmp_path / "exact")[1]["Evaluation"]
        assert "| perplexity | 40.0 ± 0.5 | exp(NLL per token), exact likelihood |" in said
        assert "masks from" not in said


def test_a_bound_is_said_by_its_name_with_its_error_and_prices_at_their_evaluations(tmp_path):
    run = run_of(model_of("sets"), tmp_path / "run")
    bounds = {"nelbo": {"value": 61.4946, "stderr": 1.2714}, "sets": {"value": 53.8239, "stderr": 0.8197}}
    write_json(run.evaluations / "a.json", EVALUATION | {"bounds": bounds})
    write_json(run.evaluations / "b.json", EVALUATION | {"bounds": {"nelbo": {"value": 1.0}}, "step": 9})
    write_json(run.evaluations / "c.json", POLICY)
    command = ["/usr/bin/atat", "train", "sets", "--overwrite"]
    git, packages = {"commit": "abc", "changed": True}, {"torch": "2.7.0", "absent": None}
    began = {"device": "cpu", "precision": "fp32", "ranks": 2}
    environment = {"command": command, "git": git, "packages": packages, "python": "3.11", "computes": began}
    write_json(run.environment, environment)
    run.metrics.write_text(json.dumps({"step": 0, "seconds": 90.0}) + "\n")
    card, said = card_of_export(run, tmp_path / "out")
    assert [(each.metric_name, each.metric_value) for each in card.data.eval_results] == [
        ("perplexity", 61.4946),
        ("sets bound", 53.8239),
    ]
    assert "| perplexity | 61.5 ± 1.3 | exp(NELBO per token) under uniform masking: an upper bound" in card.text
    assert "| sets bound | 53.8 ± 0.8 | exp(NLL per token, or a bound on it) under" in card.text
    assert "on validation text: 1,024 sequences, 4 masks each, 9,000 tokens, masks from `exact_k`, seed 17" in card.text
    assert "| strided | stride = 4 | 4.0 | policy likelihood | 51.2 ± 1.5 |" in said["Samplers"]
    assert "Training took 1 min on cpu in fp32 with 2 ranks." in said["Training"]
    assert "started with `atat train sets --overwrite`, at commit `abc` with uncommitted" in said["Reproduction"]
    assert "with Python 3.11, torch 2.7.0." in said["Reproduction"]
    told = [(each.metric_type, each.dataset_type, each.dataset_name, each.task_type) for each in card.data.eval_results]
    assert told == [(kind, "sotu", "sotu, validation", "fill-mask") for kind in ("perplexity", "sets_bound")]
    assert card.data.tags == ["atat-zoo", "masked-diffusion", "set_causal"]


def test_a_damaged_record_is_one_that_is_not_there(tmp_path):
    run = run_of(model_of("mdlm"), tmp_path / "run")
    for name, content in {"a": [1], "b": POLICY | {"nfe": "many"}, "c": EVALUATION | {"bounds": 3}}.items():
        write_json(run.evaluations / f"{name}.json", content)
    write_json(run.environment, {"command": 5, "git": "main", "packages": [], "computes": 7})
    run.metrics.write_text("{")
    _, said = card_of_export(run, tmp_path / "out")
    assert "The model has not been evaluated on held-out text" in said["Evaluation"]
    assert "No sampler has been evaluated on held-out text. `atat bench samplers" in said["Samplers"]
    assert "The duration of training is not recorded" in said["Training"]


def test_the_card_of_an_import_says_whose_weights_these_are_and_that_nothing_was_trained(tmp_path):
    run = run_of(model_of("mdlm"), tmp_path / "run")
    origin = {"model": "author/model", "revision": "v1", "corpus": None}
    packages = {"python": "3.11", "packages": {"torch": "2.7.0"}}
    write_json(run.environment, {"imported": origin, "command": ["atat", "import", "author/model", "run"], **packages})
    bounds = {"nelbo": {"value": 61.4946, "stderr": 1.2714}}
    write_json(run.evaluations / "a.json", EVALUATION | {"bounds": bounds, "corpus": "ptb"})
    card, said = card_of_export(run, tmp_path / "out")
    whose = "`author/model` at revision `v1`"
    assert f"parameters, imported by atat_zoo from {whose} without further training. It is used" in card.text
    assert said["Training data"].strip() == f"The training data are not recorded here; see the model card of {whose}."
    assert f"The weights are those of {whose}, without further training." in said["Training"]
    assert "| objective | `mdlm` |" in said["Training"]
    assert f"Its limitations are those of {whose};" in said["Limitations"]
    assert "$ atat import author/model RUN\n" in said["Reproduction"]
    assert "It was imported with Python 3.11, torch 2.7.0." in said["Reproduction"]
    assert not any(false in card.text for false in ("sotu", "public domain", "0 steps", "atat train", "trained with"))


texts = st.text(max_size=60) | st.sampled_from(
    ["a\nb: c\n---\n", "<script>alert(1)</script>", "![x](http://y)", "`a`<b>", "a\u2028# b", "| c |", "\u202ex"]
)


@given(split=texts, sampler=texts, command=texts, package=texts, device=texts, source=texts)
@settings(max_examples=10)
def test_what_a_received_run_has_recorded_is_text_of_the_card(split, sampler, command, package, device, source):
    with tempfile.TemporaryDirectory() as folder:
        files = {"use": "files", "train": [f"{source}x.txt"], "validation": [source]}
        run = run_of(model_of("mdlm", corpus=files), Path(folder) / "run")
        bounds = {"nelbo": {"value": 61.4946, "stderr": 1.2714}}
        write_json(run.evaluations / "a.json", EVALUATION | {"bounds": bounds, "split": split, "method": split})
        write_json(run.evaluations / "b.json", POLICY | {"sampler": {"use": sampler, "x": sampler}})
        began = {"device": device, "precision": device}
        environment = {"command": ["atat", command], "packages": {package: package}, "python": package}
        write_json(run.environment, environment | {"computes": began, "git": {"commit": command}})
        run.metrics.write_text(json.dumps({"step": 0, "seconds": 90.0}) + "\n")
        model = Model.from_run(run.path)
        (Path(folder) / "config.json").write_text("{}")
        text = card_of(model, run.path, Path(folder), "name")
    _, front, body = text.split("---\n", 2)
    head = yaml.safe_load(front)
    assert head["library_name"] == "transformers"
    assert [line for line in body.splitlines() if line.startswith("#")] == [
        "# name",
        *(f"## {title}" for title in ("Usage", "Training data", "Training", "Evaluation")),
        *(f"## {title}" for title in ("Samplers", "Limitations", "Reproduction", "Citation")),
    ]
    parsed = MarkdownIt("commonmark").parse(body)
    inline = [token for block in parsed for token in block.children or ()]
    assert not [token for token in (*parsed, *inline) if token.type in ("html_block", "html_inline", "image")]
    links = [token.attrs["href"] for token in inline if token.type == "link_open"]
    assert all(link.startswith(("experiment.toml", "https://arxiv.org/abs/", "https://doi.org/")) for link in links)


def test_the_licence_of_a_recipe_is_its_own(tmp_path):
    corpus = {
        **{"use": "files", "document": "line", "detokenizer": "ptb", "source": "run `atat data get ptb`"},
        **{split: [f"corpora/ptb/ptb.{name}.txt*"] for split, name in (("train", "train"), ("validation", "valid"))},
        "test": ["corpora/ptb/ptb.test.txt*"],
    }
    _, said = card_of_export(run_of(model_of("mdlm", corpus=corpus), tmp_path / "run"), tmp_path / "out")
    text = said["Training data"]
    assert "Licence of the text: of the Linguistic Data Consortium; for research. Cite Marcus et al., 1993" in text
    assert "`atat data get ptb` downloads it." in text
    corpus |= {"source": "mine"}
    _, said = card_of_export(run_of(model_of("mdlm", corpus=corpus), tmp_path / "other"), tmp_path / "again")
    assert "The run does not record the licence of the text" in said["Training data"]
