"""Log-likelihoods: valid bounds, exact where they say so, and functions of the seed and the request."""

import functools
import itertools
import math
from types import SimpleNamespace

import pytest
import torch
from atat_zoo_lm_eval import RunLM
from conftest import L, made
from lm_eval.api.instance import Instance

from atat_zoo.modeling.bounds import ExactKBound
from atat_zoo.system.errors import UserError

OBJECTIVES = {
    "mdlm": "confidence_threshold",
    "mdlm, timed": "confidence_threshold",
    "block": "semi_autoregressive",
    "autoregressive": "left_to_right",
    "strided_causal": {"use": "strided", "stride": 3},
}
LETTERS = " abcdefghijklmnopqrstuvwxyz"


def asked(*requests, kind="loglikelihood"):
    return [Instance(kind, {}, each, i) for i, each in enumerate(requests)]


def nats(lm, *pairs):
    return [-value for value, _ in lm.loglikelihood(asked(*pairs), disable_tqdm=True)]


@functools.cache
def model_of(objective):
    sampler, timed = OBJECTIVES[objective], objective == "mdlm, timed"
    own = {"block": {"block_size": 4}, "strided_causal": {"stride": 3}}
    table = {"use": objective.removesuffix(", timed"), **own.get(objective, {})}
    return made(table, sampler, timed=timed)


def small(objective="mdlm", **options):
    return RunLM(model_of(objective), **{"batch_size": 1000, **options})


def log_p(lm, context, letters, position):
    """Return log p of a letter at a position, given those that are not None, by the model's denoiser."""
    ids = [lm.mask_id if each is None else lm.model.tokenizer.encode(each)[0] for each in letters]
    row = torch.tensor([[*lm.first, *lm.model.tokenizer.encode(context), *ids, *lm.last]])
    where = torch.zeros_like(row, dtype=torch.bool)
    where[0, len(lm.first) + len(context) + position] = True
    with torch.no_grad():
        return lm.text_generator.denoiser(row, None, where)[0].double()


def by_orders(lm, context, continuation):
    """Return −log p of a continuation for each order of its positions, nats: the bound is their mean."""
    found = []
    for order in itertools.permutations(range(len(continuation))):
        seen, total = [None] * len(continuation), 0.0
        for position in order:
            (token,) = lm.model.tokenizer.encode(continuation[position])
            total -= float(log_p(lm, context, seen, position)[token])
            seen[position] = continuation[position]
        found.append(total)
    return torch.tensor(found, dtype=torch.float64)


@pytest.mark.parametrize("objective", OBJECTIVES)
def test_one_token_is_exact(objective):
    lm = small(objective)
    found = nats(lm, *(("the", letter) for letter in LETTERS))
    # A row of blocks is filled up with masks, before its end.
    every = log_p(lm, "the", [None] * (3 if objective == "block" else 1), 0)
    assert float(every.exp().sum()) == pytest.approx(1, abs=1e-5)
    assert found == pytest.approx((-every[: len(LETTERS)]).tolist(), abs=1e-4)


@pytest.mark.parametrize("objective", ["mdlm", "mdlm, timed"])
def test_the_bound_is_the_mean_over_all_orders_and_above_the_likelihood(objective):
    lm = small(objective)
    for continuation in ("at", "dog"):
        orders = by_orders(lm, "the", continuation)
        (found,) = nats(lm, ("the", continuation))
        assert found == pytest.approx(float(orders.mean()), abs=1e-4)
        likelihood = -float((-orders).logsumexp(0)) + math.log(len(orders))
        assert found > likelihood + 1e-3  # random weights: the orders differ


def test_no_more_than_one_is_given_to_all_continuations_together():
    lm = small()
    found = nats(lm, *(("the", a + b) for a in LETTERS for b in LETTERS))
    assert 0.2 < math.fsum(math.exp(-each) for each in found) < 1


@pytest.mark.parametrize("objective", ["mdlm", "mdlm, timed"])
def test_drawn_masks_estimate_what_all_masks_give(objective):
    (wanted,) = nats(small(objective, mask_samples=7), ("the", "dog"))
    lm, found = small(objective, mask_samples=3), []
    for lm.seed in range(60):
        found += nats(lm, ("the", "dog"))
    found = torch.tensor(found)
    error = float(found.std()) / math.sqrt(len(found))
    assert 0 < error < 0.1 * wanted
    assert abs(float(found.mean()) - wanted) < 4 * error


@pytest.mark.parametrize("objective", ["autoregressive", "strided_causal"])
def test_a_model_of_one_order_is_exact(objective):
    lm = small(objective, mask_samples=1)
    ids = lm.model.tokenizer.encode("the dog")
    row = torch.tensor([[*lm.first, *ids, *lm.last]])
    scored = torch.zeros_like(row, dtype=torch.bool)
    scored[0, 4:8] = True
    with torch.no_grad():
        wanted = lm.module.cross_entropy(row, None, scored, row).sum()
    assert nats(lm, ("the", " dog"))[0] == pytest.approx(float(wanted), abs=1e-5)
    seed = small(objective, mask_samples=99, seed=5)  # more than there are masks
    assert nats(seed, ("the", " dog")) == nats(lm, ("the", " dog"))
    if objective == "strided_causal":  # its order begins anew after each context
        return
    # By the chain rule; a bound has no such equality.
    one, rest, whole = nats(lm, ("the", " d"), ("the d", "og"), ("the", " dog"))
    assert one + rest == pytest.approx(whole, abs=1e-4)


@pytest.mark.parametrize("objective", OBJECTIVES)
def test_a_request_has_one_answer_whatever_stands_beside_it(objective):
    pairs = [("the", " dog barks"), ("a", "b"), ("", "house"), ("the", " cat"), ("one", "two"), ("the", "")]
    many = small(objective, batch_size=3).loglikelihood(asked(*pairs), disable_tqdm=True)
    for i in reversed(range(len(pairs))):
        (alone,) = small(objective, batch_size="1", mask_samples=32).loglikelihood(asked(pairs[i]), disable_tqdm=True)
        assert alone == (pytest.approx(many[i][0], abs=1e-4), many[i][1])
    assert many[-1] == (0.0, True)
    if objective == "mdlm":
        assert nats(small(objective, seed=1), pairs[0]) != nats(small(objective), pairs[0])


def test_a_continuation_of_which_no_token_is_left_takes_the_last_one():
    lm = small()
    lm.model = SimpleNamespace(tokenizer=SimpleNamespace(encode=lambda text: [*map(ord, text.replace("~", ""))]))
    pairs = {("ab", "~"): ([97], [98]), ("a", "~"): ([], [97]), ("", "~"): ([], []), ("ab", ""): ([97, 98], [])}
    assert {asked: lm._pair(*asked) for asked in pairs} == pairs
    assert lm._pair("ab ", "c") == ([97, 98], [32, 99])


def test_choices_of_one_question_have_masks_in_common():
    lm = small(mask_samples=4)
    seen = []
    masks = lm._masks
    lm._masks = lambda scored, keys: seen.extend(found := list(masks(scored, keys))) or found
    nats(lm, ("the", " dog"), ("the", " cat"), ("one", " cat"))
    assert all(torch.equal(mask.masked[0], mask.masked[1]) for mask in seen)
    assert any(not torch.equal(mask.masked[1], mask.masked[2]) for mask in seen)


@pytest.mark.parametrize(
    ("context", "continuation"),
    [("th", "e"), ("the c", "at"), ("do", "n't"), ("the", " cat"), ("", "the"), ("the ", "")],
)
def test_the_row_is_what_the_tokenizer_makes_of_the_whole_text(context, continuation):
    lm = RunLM(made(merged=["the cat ", "don't the cat "] * 50))
    before, after = lm._pair(context, continuation)
    tokenizer = lm.model.tokenizer
    assert before + after == tokenizer.encode(context + continuation)
    assert bool(after) == bool((context + continuation)[len(context.rstrip()) :])
    ((likelihood, _),) = lm.loglikelihood(asked((context, continuation)), disable_tqdm=True)
    assert (likelihood < 0) == bool(after)


def test_greedy_is_what_the_sampler_writes():
    lm = small()
    best = int(log_p(lm, "the", [None], 0).argmax())
    assert best < 27
    found = lm.loglikelihood(asked(*(("the", letter) for letter in LETTERS)), disable_tqdm=True)
    assert [greedy for _, greedy in found] == [i == best for i in range(27)]


def test_masks_after_a_continuation_leave_open_how_text_goes_on():
    lm = small(after=2)
    wanted = -float(log_p(lm, "the", [None, None, None], 0)[LETTERS.index("e")])
    assert nats(lm, ("the", "e")) == [pytest.approx(wanted, abs=1e-5)]
    assert nats(small(), ("the", "e")) != [pytest.approx(wanted, abs=1e-3)]


def test_long_contexts_are_cut_from_the_left(caplog):
    lm = small()
    assert nats(lm, ("the house and the", " dog")) == nats(lm, ("and the"[-(L - 2 - 4) :], " dog"))
    assert "truncated 1 of 1 contexts from the left" in caplog.text


def test_rolling_text_is_priced_once_a_token(capsys):
    lm, text = small("autoregressive"), "the house and the dog"
    (found,) = lm.loglikelihood_rolling(asked((text,), kind="loglikelihood_rolling"))
    assert "100%" in capsys.readouterr().err  # a bar, as the harness asked for
    wanted = nats(lm, ("", text[:10]), ("", text[10:20]), (text[11:20], text[20:]))
    assert -found == pytest.approx(math.fsum(wanted), abs=1e-4)


def test_a_short_rolling_text_is_the_zoo_s_own_bound():
    """The bound of the objective under uniform masks, with the ends given."""
    lm, text = small(mask_samples=15), "word"
    (found,) = lm.loglikelihood_rolling(asked((text,), kind="loglikelihood_rolling"), disable_tqdm=True)
    rows = torch.tensor([[*lm.first, *lm.model.tokenizer.encode(text), *lm.last]]).expand(500, -1)
    inner = torch.ones_like(rows, dtype=torch.bool)
    inner[:, [0, -1]] = False
    with torch.no_grad():
        drawn = lm.module.bound(rows, inner, torch.arange(500), 4, ExactKBound())["nelbo"].nelbo
    assert abs(float(drawn.mean()) + found) < 4 * float(drawn.std()) / math.sqrt(500)


def test_wrong_arguments_are_said_in_a_sentence(tmp_path, run, monkeypatch):
    for options, message in (
        ({"mask_sample": 3}, "unknown argument 'mask_sample'; did you mean 'mask_samples'"),
        ({"sed": 3}, "unknown argument 'sed'; did you mean 'seed'"),
        ({"mask_samples": 0}, "model_args: mask_samples = 0 is not an integer of at least 1"),
        ({"mask_samples": "many"}, "mask_samples = 'many' is not an integer"),
        ({"batch_size": "auto"}, "batch_size = 'auto' is not an integer"),
        ({"max_gen_toks": 11}, "max_gen_toks = 11 is more than the 10 tokens that fit; reduce it"),
        ({"after": 9}, "after = 9 leaves fewer than 2 of the model's 12 tokens"),
        ({"sampler": "klas"}, "did you mean 'klass'"),
        ({"objective": "autoregressive", "sampler": "klass"}, "generates from left to right"),
    ):
        with pytest.raises(UserError, match=message):
            small(**options)
    for options, message in (
        ({"run": run, "device": "foo"}, "unknown device 'foo'"),
        ({"run": tmp_path / "nowhere"}, "nowhere"),
        ({"mask_samples": 8}, "model_args: run is missing; pass a run folder"),
    ):
        with pytest.raises(UserError, match=message):
            RunLM(**options)
    with pytest.raises(UserError, match="has 11 tokens after its context, more than the 10 that fit"):
        nats(small(), ("the", "abcdefghijk"))
    monkeypatch.setenv("WORLD_SIZE", "2")
    with pytest.raises(UserError, match="WORLD_SIZE is above 1"):
        small()


def test_what_a_row_has_room_for_is_between_its_ends_and_the_masks_after():
    assert (small().room, small().max_gen_toks) == (L - 2, (L - 2) // 2)
    assert small(max_gen_toks=L - 2).max_gen_toks == L - 2
    assert (small(after=L - 4).room, small(after=L - 4).after) == (2, L - 4)
    assert small(max_gen_toks="1", mask_samples="1", seed="0", after="0").max_gen_toks == 1
    said = small(after=3).get_model_info()["atat_zoo"]
    assert (said["step"], said["after"]) == (0, 3)
    assert "lower bounds, estimated with up to 32 masks (seed 0), and exact for continuations of one" in said["note"]
    assert small("autoregressive").note.endswith("log-likelihoods are exact")


@pytest.mark.skipif(torch.cuda.is_available(), reason="has the GPU that the harness names")
def test_the_gpu_that_the_harness_names_unasked_is_the_cpu_where_there_is_none(run):
    lm = RunLM(run, device="cuda:0")
    assert lm.model.device.type == "cpu"
    assert lm.title == f"atat_zoo, {run}"
    assert small().title == "atat_zoo"


def test_texts_that_the_tokenizer_changes_are_counted(caplog):
    requests = [Instance("loglikelihood_rolling", {}, (text,), 0) for text in ("abc", "a?c")]
    for some, told in ((requests, True), (requests[:1], False)):
        lm = small()
        lm.loglikelihood_rolling(some, disable_tqdm=True)
        assert ("the tokenizer does not reproduce 1 of 2 texts" in lm.note) == told
    assert "the tokenizer does not reproduce 1 of 2 texts" in caplog.text
    assert any("1 of 2 texts" in note for note in RunLM.notes)
