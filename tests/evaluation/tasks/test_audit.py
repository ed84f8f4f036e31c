"""The tasks of an audit: numbers by hand, a protocol term by term, and models side by side."""

import json
import math

import attrs
import pytest
import torch

from atat_zoo.data.sequences import corpus_sequences
from atat_zoo.diffusion.likelihood_bounds import clipped_t
from atat_zoo.diffusion.randomness import sequence_keys
from atat_zoo.evaluation.held_out_text import held_out_text
from atat_zoo.evaluation.likelihood import measure
from atat_zoo.evaluation.policy import measure_policy
from atat_zoo.evaluation.tasks.held_out import BracketTask, HeldOutTask, PricesTask
from atat_zoo.evaluation.tasks.protocol import PROTOCOLS, ProtocolTask
from atat_zoo.evaluation.tasks.zero_shot import TABLE, published_of
from atat_zoo.experiment import from_table, recipe
from atat_zoo.generation.model import Model
from atat_zoo.modeling.bounds import ClippedTBound
from atat_zoo.modeling.noise import LinearNoise
from atat_zoo.registry import Zoo
from tests.evaluation.making import make_run, runs

BOTH = {"data": {"special_tokens": "both"}}
root = runs(**{name: BOTH | {"objective": name} for name in ("mdlm", "sedd", "autoregressive")})


@pytest.fixture
def model(root):
    return Model.from_run(root / "mdlm")


def exp_of(nats, n):
    return math.exp(float(nats.sum() / n.sum()))


def test_the_bound_is_that_of_the_evaluation(root, model, monkeypatch):
    told = []
    task = HeldOutTask(sequences=12, mask_samples=2)
    scores = task.measure(model, root / "mdlm", seed=3, progress=lambda *done: told.append(done))
    assert told == [(done, 24) for done in range(4, 25, 4)]  # over both estimators
    text = held_out_text(model, root / "mdlm", "validation", 12)
    spec = attrs.evolve(model.experiment.evaluation, mask_samples=2)
    nats = measure(model.module, text.tokens, text.maskable, spec, seed=3).contribution["nelbo"]
    assert scores["bound"].value == pytest.approx(exp_of(nats, text.maskable))
    assert scores["bound"].quantity == scores["by continuous_t"].quantity
    assert scores["by continuous_t"].value != scores["bound"].value
    assert scores["by continuous_t"].value == pytest.approx(scores["bound"].value, rel=0.5)
    assert scores["per byte"].value == pytest.approx(float(nats.sum()) / math.log(2) / sum(scores["per byte"].weights))
    special = torch.isin(text.tokens, torch.tensor([model.tokenizer.bos, model.tokenizer.eos]))
    counted = text.maskable & ~special
    assert scores["without BOS and EOS"].value == pytest.approx(exp_of(nats[counted], counted))
    assert 0 < scores["calibration error"].value < 1
    assert scores["calibration error"].quantity == "error"
    assert f"{int(special.sum())} tokens are BOS or EOS" in scores["text"]
    few = attrs.evolve(text, counted=text.maskable & (torch.arange(text.tokens.shape[1]) < 4))
    monkeypatch.setattr(HeldOutTask, "text", lambda *of: few)
    first = next(iter(task._specs(model.experiment)))
    found = measure(model.module, few.tokens, few.maskable, first, seed=3, counted=few.counted)
    (error,) = found.metrics.values()
    assert task.measure(model, root / "mdlm", seed=3)["calibration error"].value == error.value
    assert error.value != scores["calibration error"].value
    monkeypatch.undo()
    exact = HeldOutTask(sequences=4).measure(Model.from_run(root / "autoregressive"), root / "autoregressive", seed=3)
    assert "by continuous_t" not in exact
    incomplete = from_table({"name": "x", "noise": "geometric"})  # whose times give no bound
    assert [spec.bound.name for spec in task._specs(incomplete)] == ["exact_k"]


def test_a_bracket_is_that_of_its_orders_per_token(root, model):
    task = BracketTask(sequences=6, orders=4)
    scores = task.measure(model, root / "mdlm", seed=1)
    text = held_out_text(model, root / "mdlm", "validation", 6)
    found = measure_policy(model.text_generator("fp32"), task.sampler, text.tokens, text.maskable, seed=1, orders=4)
    ends = {"bound": found.nats, "one order": found.contribution, "truth above": found.lower}
    for name, nats in ends.items():
        if name in scores:  # the truth is a sentence where the bracket says nothing
            assert scores[name].value == pytest.approx(exp_of(nats, text.maskable)), name
    assert ("truth" in scores) != ("truth above" in scores)
    assert scores["bound"].value < scores["one order"].value
    effective = scores["effective orders"]
    assert (effective.value, effective.quantity) == (pytest.approx(float(found.effective.mean())), "of 4")
    fixed = BracketTask(sequences=6, sampler="strided").measure(model, root / "mdlm", seed=1)
    assert [score.quantity for score in fixed.values()] == ["policy likelihood"]


def test_samplers_are_priced_by_their_own_steps(root, model):
    sampler = Zoo.load().spec("sampler", {"use": "ancestral", "steps": 4})
    many = [sampler, {"use": "ancestral", "steps": 8}]
    scores = PricesTask(samplers=many, sequences=6, texts=2).measure(model, root / "mdlm", seed=1)
    text = held_out_text(model, root / "mdlm", "validation", 6)
    found = measure_policy(model.text_generator("fp32"), sampler, text.tokens, text.maskable, seed=1)
    four, eight = (f"ancestral (temperature = 1.0, steps = {steps})" for steps in (4, 8))
    assert scores[f"{four}, price"].value == pytest.approx(exp_of(found.nats, text.maskable))
    assert scores[f"{four}, evaluations"].value <= 4 < scores[f"{eight}, evaluations"].value
    assert "tokens per second" in scores[f"{eight}, speed"]
    assert scores[f"{eight}, entropy"].items == 2


@pytest.mark.parametrize(("split", "held_out", "lines"), [("validation", 0.3, 12), ("all", 0.3, 40), ("test", 0.0, 40)])
def test_all_of_a_corpus_includes_what_is_held_out_of_it(root, model, tmp_path, split, held_out, lines):
    (tmp_path / "a.txt").write_text("".join(f"line {i:02d}\n" for i in range(40)))
    files = {"use": "files", "train": [str(tmp_path / "a.txt")], "document": "line"}
    corpus = Zoo.load().spec("corpus", files | {"validation_share": held_out, "test_share": held_out})
    text = HeldOutTask(corpus=corpus, split=split, sequences=0).text(model, root / "mdlm")
    assert text.split == ("all" if lines == 40 else split)
    assert model.tokenizer.decode(text.tokens[text.maskable].tolist()).count("line") == lines


# What the code of each does: special tokens, share that is masked at t = 1, rows that share strata, tokens given.
CODE = {"mdlm": ("both", 0.999, 16, 0), "sedd": ("document", 0.999, 1, 0), "bd3lms": ("sequence", 1.0, 16, 1)}


@pytest.mark.parametrize("of", CODE)
@torch.no_grad()
def test_a_protocol_is_its_formula_term_by_term(root, model, of):
    """One time a row, in the stratum of its place in its batch; the loss of what is masked, over t, row by row."""
    special, most, batch, given_ = CODE[of]
    scores = ProtocolTask(protocol=of, sequences=40, mask_samples=3).measure(model, root / "mdlm", seed=5)
    corpus = model.experiment.parts["corpus"]
    x, maskable, _ = corpus_sequences(corpus, model.tokenizer, "validation", length=16, special=special, limit=40)
    x = x[maskable.all(1)]
    free, noise = torch.arange(16).expand(x.shape) >= given_, LinearNoise()
    n = int(free.sum())
    shuffled = torch.randperm(len(x), generator=torch.Generator().manual_seed(5))
    for name, order in (("as published", shuffled), ("in file order", torch.arange(len(x)))):
        if name not in scores:
            assert batch == 1
            continue
        nats = torch.zeros(len(x), dtype=torch.float64)
        for some in order.split(16):
            keys = sequence_keys(5, "evaluation", some)
            how = {"time_at": noise.time_at, "least": 1e-3, "most": most, "batch": batch}
            (mask,) = clipped_t(free[some], keys, 1, **how)
            z = x[some].masked_fill(mask.masked, model.context.mask_id)
            log_p = model.module.denoiser()(z, None, mask.masked)
            row, _ = mask.masked.nonzero(as_tuple=True)
            each = log_p.gather(1, x[some][mask.masked][:, None])[:, 0] * mask.weight[row]
            nats.index_add_(0, some[row], -each.double())
        assert scores[name].sums == pytest.approx(nats.tolist(), rel=1e-4), name
        assert scores[name].value == pytest.approx(math.exp(float(nats.sum()) / n), rel=1e-5), name
        assert scores[name].quantity == "t from 0.001 bound"
    assert batch == 1 or scores["as published"].value != scores["in file order"].value
    spec = attrs.evolve(model.experiment.evaluation, mask_samples=3)
    nats = measure(model.module, x, free, spec, seed=5).contribution["nelbo"]
    assert scores["framed so, by exact_k"].value == pytest.approx(math.exp(float(nats.sum()) / n))
    assert PROTOCOLS[of].source in scores["protocol"]
    text = free & ~torch.isin(x, torch.tensor([model.tokenizer.bos, model.tokenizer.eos]))
    if (text != free).any():
        without = scores["framed so, without BOS and EOS"]
        assert list(without.weights) == text.sum(1).tolist()
        assert without.sums == pytest.approx((nats * text).sum(1).tolist())


@pytest.mark.parametrize("of", list(PROTOCOLS))
def test_each_protocol_frames_and_counts_as_its_code_does(root, model, of):
    scores = ProtocolTask(protocol=of, sequences=20).measure(model, root / "mdlm", seed=5)
    rows = scores["as published"].items
    assert sum(scores["as published"].weights) == rows * (15 if of == "bd3lms" else 16)
    special = int(scores["text"].split(", ")[-1].split()[0].replace(",", ""))
    right = {"mdlm": special > 2 * rows, "sedd": special > 0, "bd3lms": special == rows, "llada": special == 0}
    assert right[of]
    assert ("in file order" in scores) == (of in ("mdlm", "bd3lms"))


def test_a_score_entropy_is_measured_as_its_code_does(root):
    told, task = [], ProtocolTask(protocol="sedd", sequences=20)
    how = {"seed": 5, "progress": lambda *done: told.append(done)}
    scores = task.measure(Model.from_run(root / "sedd"), root / "sedd", **how)
    assert scores["as published"].quantity == "sedd bound"
    assert scores["framed so, by exact_k"].quantity != "sedd bound"
    rows = scores["as published"].items
    assert (rows, 2 * rows) in told == sorted(told)
    assert told[-1] == (2 * rows, 2 * rows)


def test_published_figures_stand_beside_their_own_corpus(root, model, monkeypatch):
    assert published_of(recipe("ptb")) == TABLE["ptb"].published
    assert published_of(recipe("text8")) is published_of(None) is None
    monkeypatch.setattr("atat_zoo.evaluation.tasks.protocol.published_of", lambda corpus: (1.0, 2.0, 3.0))
    for of, figures in (("mdlm", {"AR": 1.0, "SEDD": 2.0, "MDLM": 3.0}), ("bd3lms", {})):
        scores = ProtocolTask(protocol=of, sequences=4).measure(model, root / "mdlm", seed=5)
        beside = {name: dict(each.published) for name, each in scores.items() if hasattr(each, "published")}
        assert beside == {name: figures if name == "as published" else {} for name in beside}


def test_strata_must_not_be_cut(model):
    evaluation = attrs.evolve(model.experiment.evaluation, batch_size=24, bound=ClippedTBound(batch=16))
    (problem,) = ClippedTBound(batch=16).check(attrs.evolve(model.experiment, evaluation=evaluation))
    assert "set it to 32" in problem.text


@pytest.mark.slow
def test_models_stand_side_by_side_and_what_cannot_be_measured_is_said(root, atat, monkeypatch):
    monkeypatch.chdir(root)
    words = [
        "audit",
        "mdlm",
        "autoregressive",
        "--sequences",
        "8",
        "--bracket-sequences",
        "4",
        "--orders",
        "2",
        "--sampler-sequences",
        "4",
    ]
    words += ["--num-samples", "2", "--protocol", "mdlm", "--protocol", "llada"]
    code, out, err = atat(*words, "--json")
    assert code == 0, err
    runs = json.loads(out)["runs"]
    assert [each["run"] for each in runs] == ["mdlm", "autoregressive"]
    mine, theirs = ({task["task"].split()[0]: task for task in each["tasks"]} for each in runs)
    assert list(mine) == ["held_out", "protocol", "bracket", "prices"]
    assert "truth" in " ".join(mine["bracket"]["scores"]) or mine["bracket"]["notes"]
    assert not theirs["bracket"]["scores"]
    assert "no bracket (sequences = 4, orders = 2): " in theirs["bracket"]["notes"][0]
    # What is kept is read: nothing is measured again.
    monkeypatch.setattr("atat_zoo.evaluation.likelihood.measure", None)
    monkeypatch.setattr("atat_zoo.evaluation.policy.measure_policy", None)
    code, out, err = atat(*words, "--markdown")
    assert code == 0, err
    assert "| task |" in out
    assert "kuleshov-group/mdlm" in out


def test_what_only_the_model_tells_is_said_and_the_rest_is_measured(root, atat, monkeypatch):
    make_run(root, "plain", "mdlm", tokenizer={"use": "characters", "unknown": "space"})
    monkeypatch.chdir(root)
    words = [
        "--sequences",
        "6",
        "--bracket-sequences",
        "0",
        "--sampler-sequences",
        "0",
        "--protocol",
        "mdlm",
        "--protocol",
        "llada",
    ]
    code, out, err = atat("audit", "plain", *words, "--json")
    assert code == 0, err
    bound, mdlm, llada = json.loads(out)["runs"][0]["tasks"]
    assert bound["scores"]
    assert llada["scores"]
    assert not mdlm["scores"]
    assert (
        'no protocol (sequences = 6): data.special_tokens = "both" needs a tokenizer with BOS and EOS'
        in mdlm["notes"][0]
    )
    # Asked for by itself, it is refused.
    code, _, err = atat("eval", "plain", "--task", "protocol")
    assert (code, "needs a tokenizer with BOS and EOS" in err) == (2, True)


def test_another_text_and_a_judge(root, atat, monkeypatch):
    """All of a text of which nothing is held out; a part of one that is divided; and a judge of what is written."""
    monkeypatch.chdir(root)
    few = ["--bracket-sequences", "0", "--sequences", "6", "--sampler-sequences", "4", "--num-samples", "2", "--json"]

    def of(*words):
        code, out, err = atat("audit", "mdlm", *words, *few)
        assert code == 0, err
        return {task["task"].split()[0]: task for task in json.loads(out)["runs"][0]["tasks"]}

    found = of("--corpus", "texts/test.txt", "--protocol", "sedd", "--judge", "autoregressive", "--device", "spread")
    assert found["prices"]["scores"]["ancestral, generative perplexity"]["value"] > 1
    assert found["protocol"]["settings"]["task"]["split"] == "validation"
    own = of("--split", "test", "--sampler", "{use = 'ancestral', steps = 3}")
    assert own["held_out"]["settings"]["task"]["split"] == "test"
    digests = [each["held_out"]["scores"]["bound"]["of"] for each in (found, own)]
    assert digests[0] != digests[1]
    assert own["prices"]["scores"]["ancestral, evaluations"]["value"] <= 3


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (
            ["--orders", "3"],
            "--orders 3: a likelihood bracket compares two halves of the orders; pass an even number",
        ),
        (["--protocol", "theirs"], "'theirs' is not one of"),
        (
            ["--judge", "sedd"],
            "the run sedd has the objective 'sedd', which only bounds a text's likelihood; choose a run",
        ),
        (["--corpus", "nowhere.txt"], "no file or corpus has this name"),
    ],
)
def test_mistakes_are_refused_in_a_sentence(root, atat, monkeypatch, words, message):
    monkeypatch.chdir(root)
    code, _, err = atat("audit", "mdlm", *words)
    assert (code, message in err) == (2, True)
    with pytest.raises(ValueError, match="split = all includes the run's training text"):
        HeldOutTask(split="all")
