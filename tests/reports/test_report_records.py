"""What a report needs beyond what a training records: of every objective, without a training."""

import base64
import json
import math
import shutil
from collections import Counter
from string import ascii_lowercase

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from atat_zoo.data.tokenizers.tokenizer_models import CharactersModel
from atat_zoo.diffusion.randomness import fold, sequence_keys
from atat_zoo.evaluation.held_out_text import held_out_text
from atat_zoo.generation.model import Model
from atat_zoo.generation.text_generator import TextGenerator
from atat_zoo.registry import Zoo
from atat_zoo.reports import report_records, text_views
from atat_zoo.reports.report_records import compute, missing, side_by_side
from atat_zoo.reports.run_records import FORMAT
from atat_zoo.reports.text_views import DRAWS, RATES, entropies, masks_of, replay_table, shown
from atat_zoo.system.errors import OmissionNote, UnsavedNote, UserError
from atat_zoo.testing.toys import Hashed, hashed_importance
from tests.evaluation.making import make_run

pytestmark = pytest.mark.slow

LEARNED = {"use": "transformer", "layers": 1, "width": 8, "heads": 2}
TIMED = {"use": "dit", "layers": 1, "width": 16, "heads": 2, "time_conditioning": True}
OBJECTIVES = {
    "timed": {
        "objective": "mdlm",
        "backbone": TIMED,
        "estimator": {**LEARNED, "time_conditioning": True},
        "data": {"special_tokens": "sequence"},
    },
    "reads_z": {"objective": "mdlm", "estimator": {**LEARNED, "reads": "z"}},
    "frequency": {"objective": "mdlm", "estimator": "frequency"},
    "sedd": {"objective": "sedd"},
    "adaptive": {"objective": "adaptive", "estimator": LEARNED, "sampler": "learned_order"},
    "block": {"objective": {"use": "block", "block_size": 4}, "sampler": "semi_autoregressive"},
    "strided": {"objective": {"use": "strided_causal", "stride": 4}, "sampler": {"use": "strided", "stride": 4}},
    "autoregressive": {"objective": "autoregressive"},
}
EXACT = ("strided", "autoregressive")
WEIGHED = {"timed": True, "reads_z": True, "frequency": False, "adaptive": False}  # whether it depends on the rate


@pytest.fixture(scope="module")
def root(tmp_path_factory):
    return tmp_path_factory.mktemp("recording")


@pytest.fixture(scope="module", params=OBJECTIVES)
def made(request, root):
    """A run of each objective with random weights, and what `compute` said."""
    run = make_run(root, request.param, **OBJECTIVES[request.param])
    lacked = missing(run)
    return request.param, run, lacked, compute(run)


def table_of(run, name):
    return json.loads((run / "report" / f"{name}.json").read_text(encoding="utf-8"))


def test_what_is_missing_is_computed_once(made):
    name, run, lacked, seconds = made
    assert lacked == ["text", "replay", *(["importance"] if name in WEIGHED else []), "frontier"]
    assert list(seconds) == lacked[:-1]
    assert all(each > 0 for each in seconds.values())
    assert missing(run) == ["frontier"]
    assert compute(run) == {}
    assert len(list((run / "evaluations").glob("importance-*"))) == (name in WEIGHED)


def loss_by_denoiser(denoiser, hidden, x, turn=None):
    """−log p_θ(x_i | z) from the denoiser alone, which is asked turn by turn where it has turns, NaN elsewhere."""
    turn = denoiser.step_of(torch.arange(x.shape[1])) if turn is None else turn
    turned = turn is not None
    turn = turn if turned else torch.zeros(x.shape[1], dtype=torch.int64)
    denoiser = denoiser.begin_generation(torch.full_like(x, denoiser.mask_id))
    found = torch.full(x.shape, torch.nan, dtype=torch.float64)
    for number in turn.unique():
        z = torch.where((hidden & (turn == number)) | (turn > number), denoiser.mask_id, x)
        where = hidden & (turn == number)
        if not turned:
            z, where = torch.where(hidden, denoiser.mask_id, x), hidden
        log_probs = denoiser(z, denoiser.time_at(hidden.sum(1) / x.shape[1]), where)
        found[where] = -log_probs.double().gather(1, x[where].unsqueeze(1)).squeeze(1)
    return found


@torch.no_grad()
def test_the_loss_of_a_token_is_that_of_the_denoiser(made):
    name, run, *_ = made
    model, found = Model.from_run(run), table_of(run, "text")
    assert (found["format"], found["step"], found["split"], found["seed"]) == (FORMAT, 3, "validation", 4)
    held_out = held_out_text(model, run, "validation", 6)
    tokens, maskable = held_out.tokens, held_out.maskable
    assert [text["tokens"] for text in found["texts"]] == [shown(model.tokenizer, row) for row in tokens.tolist()]
    assert [text["maskable"] for text in found["texts"]] == maskable.tolist()
    assert found["rates"] == ([] if name in EXACT else list(RATES))
    keys = sequence_keys(4, "report", torch.arange(len(tokens)))
    levels = [maskable[None]] if name in EXACT else None
    for level in [0] if name in EXACT else [0, 4, 8]:
        masks = levels[level] if levels else list(masks_of(maskable, fold(keys, level), RATES[level], DRAWS))
        turn = torch.arange(tokens.shape[1]) % 4 if name == "strided" else None
        losses = [loss_by_denoiser(model.module.denoiser(), mask, tokens, turn) for mask in masks]
        expected = torch.stack(losses).nanmean(0)
        for text, row in zip(found["texts"], expected.tolist(), strict=True):
            assert text["loss"][level] == pytest.approx(row, abs=2e-4)
    assert all(len(text["loss"]) == (1 if name in EXACT else len(RATES)) for text in found["texts"])


@torch.no_grad()
def test_the_importance_is_that_of_the_estimator_at_the_rate(made):
    name, run, *_ = made
    model, found = Model.from_run(run), table_of(run, "text")
    assert (found["estimator"] is not None) == (name in WEIGHED)
    assert found["importance_depends_on_rate"] == WEIGHED.get(name, False)
    if name not in WEIGHED:
        assert all(text["importance"] is None for text in found["texts"])
        return
    held_out = held_out_text(model, run, "validation", 6)
    x, maskable = held_out.tokens, held_out.maskable
    keys = sequence_keys(4, "report", torch.arange(len(x)))
    for level in (0, 8):
        at = []
        for mask in masks_of(maskable, fold(keys, level), RATES[level], DRAWS):
            reads = x if model.module.estimator.reads == "x" else x.masked_fill(mask, model.context.mask_id)
            importance = model.module.importance(reads, maskable, (mask.sum(1) / maskable.sum(1)).float())
            at.append(torch.where(mask, importance.double(), torch.nan))
        expected = torch.stack(at).nanmean(0).tolist()
        for text, row in zip(found["texts"], expected, strict=True):
            assert text["importance"][level] == pytest.approx(row, abs=2e-4)
    told = found["texts"][0]["importance"]
    assert (told[0] != told[8]) == WEIGHED[name]


def test_the_surprisal_is_by_the_counts_of_the_training_text(made, root):
    counts = Counter((root / "texts" / "train.txt").read_text())
    text = table_of(made[1], "text")["texts"][0]
    surprisal = {token: nats for token, nats in zip(text["tokens"], text["surprisal"], strict=True) if token in counts}
    common = min(surprisal, key=surprisal.get)
    for token, nats in surprisal.items():
        # Less likely by as much as it occurs less often; one is added to every count. Some text is in no sequence.
        assert nats - surprisal[common] == pytest.approx(math.log((counts[common] + 1) / (counts[token] + 1)), abs=0.1)


def test_a_replay_is_what_the_model_writes(made):
    name, run, *_ = made
    model, found = Model.from_run(run), table_of(run, "replay")
    about = {"format": FORMAT, "step": 3, "seed": 4, "length": 16, "uncertainty": "entropy", "unit": "nats"}
    assert {key: found[key] for key in about} == about
    samplers = side_by_side(model.experiment)
    assert [table["name"] for table in found["samplers"]] == [sampler.name for sampler in samplers]
    assert len(samplers) == (1 if name in EXACT else 2)
    for table, sampler in zip(found["samplers"], samplers, strict=True):
        sample = model.sample(3, sampler=sampler, seed=4).sample
        assert table["evaluations"] == sample.nfe.tolist()
        written = [shown(model.tokenizer, row) for row in sample.tokens.tolist()]
        assert [played(text) for text in table["texts"]] == written


@given(st.lists(st.lists(st.booleans(), min_size=9, max_size=9), min_size=1, max_size=4), st.sampled_from(RATES))
def test_each_token_is_hidden_once_a_draw_or_twice(rows, rate):
    maskable = torch.tensor(rows)
    keys = fold(torch.arange(len(rows)), 5)
    masks = torch.stack([*masks_of(maskable, keys, rate, 2), torch.zeros_like(maskable)])
    n = maskable.sum(1)
    k = (n * rate).round().clamp(min=1).minimum(n)
    size = masks.sum(2)
    assert bool(((size == k) | (size == 0)).all())
    hidden = masks.sum(0)
    assert bool(((hidden >= 2) & (hidden <= 4) == maskable).all())
    assert bool((hidden[~maskable] == 0).all())
    # A text by itself has the masks that it has among others.
    alone = torch.stack([*masks_of(maskable[:1], keys[:1], rate, 2), torch.zeros_like(maskable[:1])])
    assert [mask for mask in masks[:, :1].tolist() if any(mask[0])] == [mask for mask in alone.tolist() if any(mask[0])]


def test_masks_are_uniform():
    maskable = torch.ones(4000, 5, dtype=torch.bool)
    first = next(masks_of(maskable, sequence_keys(0, "report", torch.arange(4000)), 0.4, 1))
    assert bool((first.sum(1) == 2).all())
    assert torch.allclose(first.double().mean(0), torch.tensor(0.4).double(), atol=6 * (0.24 / 4000) ** 0.5)
    pairs = (first[:, :, None] & first[:, None]).double().mean(0)[~torch.eye(5, dtype=torch.bool)]
    assert torch.allclose(pairs, torch.tensor(0.1).double(), atol=6 * (0.09 / 4000) ** 0.5)


@pytest.fixture(scope="module")
def plain(root):
    """A run that later tests change, each in its own way."""
    run = make_run(root, "plain", "autoregressive")
    compute(run)
    return run


COLOURS = {letter: f"#0000{ord(letter):02x}" for letter in ascii_lowercase}


def test_a_picture_has_a_grid_with_its_colours_and_is_recorded_whole(plain, tmp_path, monkeypatch):
    run = shutil.copytree(plain, tmp_path / "picture")
    monkeypatch.setattr(text_views, "SHOWN", 5)
    monkeypatch.setattr(report_records, "LONGEST", 6)

    def recorded():
        shutil.rmtree(run / "report")
        compute(run)
        text, replay = (table_of(run, name) for name in ("text", "replay"))
        first = text["texts"][0]
        lists = [first["tokens"], first["maskable"], first["surprisal"], *first["loss"]]
        return text["picture"], replay["picture"], {*map(len, lists)}, len(replay["samplers"][0]["texts"][0]["start"])

    assert recorded() == (None, None, {5}, 6)

    def picture(self, ids):  # rows of three, after a first token or more; only small letters have a colour
        pixels = [COLOURS.get(self.decode([i])) for i in ids[len(ids) % 3 if len(ids) > 1 else 0 :]]
        return [pixels[i : i + 3] for i in range(0, len(pixels), 3)]

    model = Model.from_run(run)
    monkeypatch.setattr(type(model.tokenizer), "picture", picture)
    assert model.context.length == 16
    grid = {"first": 1, "columns": 3, "colours": COLOURS}
    assert recorded() == (grid, grid, {16}, 16)


def test_the_images_of_texts_are_recorded(plain, tmp_path, monkeypatch):
    run = shutil.copytree(plain, tmp_path / "images")
    drawn = []

    def image(self, ids):
        drawn.append(shown(self, ids))
        return None if len(drawn) == 2 else ("An image.", b"\x89PNG\r\n\x1a\n" + bytes([len(drawn)]))

    monkeypatch.setattr(type(Model.from_run(run).tokenizer), "image", image)
    shutil.rmtree(run / "report")
    compute(run)
    text, replay = (table_of(run, name) for name in ("text", "replay"))
    images = [*text["images"], *(image for images in replay["images"] for image in images)]
    numbers = [each and base64.b64decode(each["png"])[-1] for each in images]
    assert numbers == [1, None, *range(3, len(drawn) + 1)]
    assert {each["said"] for each in images if each} == {"An image."}
    of_text = [each["tokens"] for each in text["texts"]]
    assert drawn[: len(of_text)] == of_text
    assert [*map(len, replay["images"])] == [3] * len(replay["samplers"])
    for number, sampler in enumerate(replay["samplers"]):
        assert [finished(each) for each in sampler["texts"]] == drawn[len(of_text) + 3 * number :][:3]


def finished(text):
    tokens = text["start"]
    for position, token in (each for frame in text["frames"] for each in frame["filled"]):
        tokens[position] = token
    return tokens


@pytest.mark.parametrize("damage", [b"{", b'{"format": 1, "step": 3, "samplers": 5}'])
def test_a_damaged_file_is_missing_and_is_computed_again(plain, damage):
    path = plain / "report" / "replay.json"
    whole = path.read_bytes()
    path.write_bytes(damage)
    with pytest.warns(OmissionNote, match=r"replay\.json .*, so it is ignored; run .*--compute` to compute"):
        assert missing(plain) == ["replay", "frontier"]
    with pytest.warns(OmissionNote):
        assert list(compute(plain)) == ["replay"]
    assert path.read_bytes() == whole


def test_the_frontier_is_every_sampler_that_fits(plain):
    assert list(compute(plain, frontier=True)) == ["frontier"]
    assert missing(plain) == []
    assert compute(plain, frontier=True) == {}
    (path,) = (plain / "evaluations").glob("samplers-*")
    table = json.loads(path.read_text())
    assert {row["name"] for row in table["measured"]} == {"left_to_right", "semi_autoregressive"}
    # One of fewer samplers is shown, and no reason not to measure the others.
    table["measured"] = table["measured"][:1]
    path.write_text(json.dumps(table))
    assert missing(plain) == []
    assert list(compute(plain, frontier=True)) == ["frontier"]


def test_without_its_text_a_run_has_a_replay(root):
    run = make_run(root / "gone", "gone", "mdlm")
    for folder in ("texts", "shards"):
        for path in sorted((root / "gone" / folder).rglob("*"), reverse=True):
            path.unlink() if path.is_file() else path.rmdir()
    with pytest.warns(UnsavedNote, match="no text in the report: "):
        assert list(compute(run)) == ["replay"]
    assert missing(run) == ["text", "frontier"]


def test_a_run_without_a_model_is_said(tmp_path):
    for function in (missing, compute):
        with pytest.raises(UserError, match="is not a run folder"):
            function(tmp_path)
    (tmp_path / "resolved.toml").touch()
    with pytest.warns(UnsavedNote, match=r"no results were computed for the report: .* has no final model yet; finish"):
        assert compute(tmp_path) == {}


# A replay is what the sampler did: every named sampler on a toy, whose predictions are known

L, SEED = 12, 3
TOKENIZER = CharactersModel(special=True, unknown="error")
V = TOKENIZER.vocabulary_size


def text_generator(special="none", cost=1):
    denoiser = Hashed(V, sharpness=6.0, importance=hashed_importance)
    return TextGenerator(denoiser=denoiser, tokenizer=TOKENIZER, length=L, special=special, cost=cost)


def played(text, until=None):
    """Return the tokens after some frames, None for a mask."""
    z = list(text["start"])
    for frame in text["frames"][:until]:
        for position, token in frame["filled"]:
            assert z[position] is None, "a visible token is not drawn again"
            z[position] = token
        for position in frame["hidden"]:
            assert z[position] is not None, "a mask is not hidden again"
            z[position] = None
    return z


SAMPLERS = Zoo.load().names("sampler")
REMASKING = [name for name in SAMPLERS if name.startswith("remdm") or name == "p2"]


@pytest.mark.parametrize(("name", "special"), [("ancestral", "none"), *((name, "sequence") for name in SAMPLERS)])
def test_the_frames_end_at_what_the_sampler_writes(name, special):
    sampler = Zoo.load().spec("sampler", name)
    written = text_generator(special).write(sampler, number=2, seed=SEED).sample
    found = replay_table(text_generator(special, cost=2), sampler, number=2, length=L, seed=SEED)
    assert (found["name"], found["settings"]["use"]) == (name, name)
    assert found["evaluations"] == (2 * written.nfe).tolist()
    for text, row, nfe in zip(found["texts"], written.tokens.tolist(), written.nfe.tolist(), strict=True):
        assert played(text) == shown(TOKENIZER, row)
        ends = ["<bos>", "<eos>"] if special == "sequence" else []
        assert [token for token in text["start"] if token is not None] == ends
        assert [frame["evaluation"] for frame in text["frames"]] == [2 * (i + 1) for i in range(nfe)]
        for number, frame in enumerate(text["frames"]):
            before = played(text, number)
            assert [position for position, _ in frame["open"]] == [i for i in range(L) if before[i] is None]
            assert all(0 <= nats <= math.log(V) for _, nats in frame["open"])
            assert {position for position, _ in frame["filled"]} <= {position for position, _ in frame["open"]}
    if name in REMASKING:
        assert any(frame["hidden"] for text in found["texts"] for frame in text["frames"])


def test_the_entropy_is_that_of_the_prediction_at_this_state():
    found = replay_table(text_generator(), Zoo.load().spec("sampler", "margin"), number=1, length=L, seed=SEED)
    (text,) = found["texts"]
    ids = {token: i for i, token in enumerate(shown(TOKENIZER, range(V)))} | {None: V}
    for number, frame in enumerate(text["frames"]):
        z = torch.tensor([[ids[token] for token in played(text, number)]])
        p = Hashed(V, sharpness=6.0)(z, None, z == V).exp()
        expected = torch.special.entr(p).sum(1).tolist()
        assert [nats for _, nats in frame["open"]] == pytest.approx(expected, abs=6e-4)


class InTurns(Hashed):
    """Of a text that is written it reads only what was visible one step ago."""

    seen = None

    def begin_generation(self, tokens):
        other = InTurns(self.mask_id)
        other.seen = tokens
        return other

    def __call__(self, tokens, t, where):
        read, self.seen = (tokens, None) if self.seen is None else (self.seen, tokens)
        return super().__call__(read, t, where)


def test_a_model_that_reads_tokens_in_their_turns_is_shown_them_so():
    z = torch.tensor([[9, 9, 9], [9, 4, 9], [3, 4, 9]])
    expected = [entropies(Hashed(9), z[[frame]])[0] for frame in (0, 0, 1)]
    found = entropies(InTurns(9), z)
    assert [[pair for pair in row if pair[0] == 2] for row in found] == [[row[-1]] for row in expected]
    # What is masked again has no turn.
    assert entropies(InTurns(9), z.flip(0)) == entropies(Hashed(9), z.flip(0))
