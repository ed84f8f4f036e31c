"""Generated and inpainted sounds, bits per sample, spectrograms and the report."""

import base64
import json
from io import BytesIO

import numpy as np
import pytest
import torch
from atat_zoo_audio.__main__ import main, table
from atat_zoo_audio.mu_law import levels_of, text_of
from atat_zoo_audio.recordings import SCALE, read_wav, write_wav
from atat_zoo_audio.sound_models import bits_per_sample, inpainted, load_run, sound_at, sounds_of
from atat_zoo_audio.spectrogram import GAP_COLOUR, drawn, spectrogram
from hypothesis import given, settings
from hypothesis import strategies as st
from PIL import Image
from sounds import EXPERIMENTS, NAMES, NETWORK, experiment, tone, untrained

from atat_zoo.evaluation.held_out_text import held_out_text
from atat_zoo.evaluation.likelihood import measure
from atat_zoo.experiment import load
from atat_zoo.reports.report_records import compute
from atat_zoo.system.errors import UserError
from atat_zoo.testing import untrained_models
from atat_zoo.testing.invoked_commands import invoke

MODEL = untrained()


def spectrogram_of(ids):
    said, png = MODEL.tokenizer.image(ids)
    assert said.startswith("Spectrogram")
    with Image.open(BytesIO(png)) as image:
        return image.convert("RGB")


def test_the_experiments_have_the_same_size_and_the_same_training():
    def shared(experiment):
        parts = experiment.parts
        of_parts = (parts["backbone"].weights(64), parts["corpus"], parts["optimizer"], parts["schedule"])
        return (*of_parts, experiment.train, experiment.data, experiment.evaluation, experiment.seed)

    first, *others = (shared(experiment(name)) for name in NAMES)
    assert others == [first, first]


def test_generated_sounds_are_wav_files_with_samples_of_the_levels(run, tmp_path):
    said = invoke(main, "generate", run, "--num-samples", 3, "--out", tmp_path / "new")
    assert said == f"wrote {tmp_path / 'new'}: 1.wav, 2.wav, 3.wav and spectrograms.png\n"
    model, rate = load_run(run)
    assert rate == 2000
    made = model.sample(3, seed=17).sample.tokens
    for i, ids in enumerate(made.tolist()):
        sound = read_wav(tmp_path / "new" / f"{i + 1}.wav", 2000)
        assert levels_of(sound / SCALE, 64).tolist() == ids
    with Image.open(tmp_path / "new" / "spectrograms.png") as image:
        assert image.size == (3 * (65 + 8), 129 + 4 + 8)


@settings(deadline=None, max_examples=20)
@given(st.data(), st.integers(64, 90), st.integers(0, 2**20))
def test_a_gap_is_filled_and_given_samples_are_kept_to_the_bit(data, length, seed):
    start = data.draw(st.integers(0, length - 1))
    end = data.draw(st.integers(start + 1, min(length, start + 64)))
    sound = np.random.default_rng(seed).integers(-32768, 32768, length, np.int16)
    found = inpainted(MODEL, sound, (start, end), 2, seed=seed)
    assert found.dtype == np.int16
    assert np.array_equal(found[:, :start], sound[None, :start].repeat(2, 0))
    assert np.array_equal(found[:, end:], sound[None, end:].repeat(2, 0))
    assert np.isin(found[:, start:end], sounds_of(MODEL, torch.arange(64))).all()
    assert end - start < 16 or len({each.tobytes() for each in found[:, start:end]}) == 2


def test_the_model_reads_the_samples_around_the_gap(monkeypatch):
    sound, read = tone(200), []
    monkeypatch.setattr(type(MODEL.text_generator()), "fill", lambda _, sampler, ids, seed: read.append(ids) or Filled)

    class Filled:
        tokens = torch.zeros(1, 64, dtype=torch.int64)

    for gap, first in (((0, 5), 0), ((100, 110), 73), ((190, 200), 136)):
        inpainted(MODEL, sound, gap, 1)
        wanted = MODEL.tokenizer.encode(text_of(sound[first : first + 64] / SCALE))
        wanted[gap[0] - first : gap[1] - first] = [64] * (gap[1] - gap[0])
        assert read.pop().tolist() == [wanted]


def test_the_seed_chooses_the_fill_and_a_sample_is_the_centre_of_its_level():
    first, again, other = (inpainted(MODEL, tone(64), (0, 64), 1, seed=seed) for seed in (1, 1, 2))
    assert np.array_equal(first, again)
    assert not np.array_equal(first, other)
    found = sounds_of(MODEL, torch.arange(64)).astype(float)
    assert np.abs(found - 32768 * MODEL.tokenizer.samples).max() <= 0.5


def test_an_inpainted_file_keeps_its_samples(run, tmp_path):
    write_wav(tmp_path / "a.wav", tone(100), 2000)
    words = ("--gap", 40, 60, "--num-samples", 2, "--out", tmp_path)
    assert "original.wav, gap.wav, 1.wav, 2.wav and" in invoke(main, "inpaint", run, tmp_path / "a.wav", *words)
    original, gap, *fills = (read_wav(tmp_path / f"{name}.wav", 2000) for name in ("original", "gap", "1", "2"))
    assert np.array_equal(original, tone(100))
    assert (gap[40:60] == 0).all()
    for each in (gap, *fills):
        assert np.array_equal(np.delete(each, slice(40, 60)), np.delete(original, slice(40, 60)))
    assert len({each.tobytes() for each in (original, gap, *fills)}) == 4
    with Image.open(tmp_path / "spectrograms.png") as image:
        assert (np.asarray(image) == GAP_COLOUR).all(2).any()


def test_a_number_names_a_sound_of_the_test_split(run, tmp_path):
    model, rate = load_run(run)
    texts = list(model.experiment.parts["corpus"].documents("test"))
    assert levels_of(sound_at(model, run, "4", rate) / SCALE, 64).tolist() == model.tokenizer.encode(texts[4])


@pytest.mark.parametrize("name", NAMES)
def test_uniform_predictions_have_the_bits_of_the_tokenizer(name, run, tmp_path):
    model = untrained(name, "backbone.output_bias=none", folder=tmp_path)
    for gap in (False, True):
        found = bits_per_sample(model, tmp_path, split="test", gap=gap, mask_samples=2, seed=3)
        assert len(found) == 1 + (name == "melodies_sets")
        for each in found.values():
            torch.testing.assert_close(each, torch.full((6,), 6.0, dtype=torch.float64))


def test_bits_are_those_of_the_split_the_gap_and_the_masks(run):
    model, _ = load_run(run)

    def bits(gap, split="test", mask_samples=1):
        found = bits_per_sample(model, run, gap=gap, split=split, mask_samples=mask_samples, seed=3)
        return sorted(found.items(), key=lambda item: "exact" not in item[0])  # the exact one first

    tokens = held_out_text(model, run, "test", 0).tokens
    quarter = torch.zeros_like(tokens, dtype=torch.bool)
    quarter[:, 24:40] = True
    names = model.experiment.parts["objective"].factorisations(model.experiment)
    nats = measure(model.module, tokens, quarter, model.experiment.evaluation, seed=3).contribution
    wanted = {names[name]: each.sum(1) / np.log(2) / 16 for name, each in nats.items()}
    torch.testing.assert_close(bits(True)[0][1], wanted[bits(True)[0][0]])
    whole, elbo = bits(False)
    assert "exact" in whole[0]
    assert "ELBO" in elbo[0]
    for other in (bits(False, split="validation"), bits(True)):
        assert not torch.allclose(other[0][1], whole[1])
    again, more = bits(False, mask_samples=1), bits(False, mask_samples=2)
    assert torch.equal(again[1][1], elbo[1])
    assert not torch.equal(more[1][1], elbo[1])
    torch.testing.assert_close(more[0][1], whole[1])


def test_the_table_by_hand():
    def bits(*values):
        return torch.tensor(values, dtype=torch.float64)

    found = {
        ("x", "exact"): (bits(1, 2, 3), bits(2, 2, 2)),
        ("x", "ELBO"): (bits(1, 2, 3), None),
        ("y", "exact"): (bits(2, 3, 4.5), bits(1, 2, 3)),
    }
    # The differences are 1, 1 and 1.5: more than 2.5 % of the resamples have only the first two, or only the last.
    assert table(found).splitlines() == [
        "| run | factorisation | bits per sample | against x | in a gap |",
        "| --- | --- | --- | --- | --- |",
        "| x | exact | 2.000 ± 0.577 |  | 2.000 ± 0.000 |",
        "| x | ELBO | 2.000 ± 0.577 | +0.000 [+0.000, +0.000] | — |",
        "| y | exact | 3.167 ± 0.726 | +1.167 [+1.000, +1.500] | 2.000 ± 0.577 |",
    ]


def test_the_evaluation_compares_runs_with_the_noise(run, tmp_path):
    rows = tmp_path / "rows"
    untrained("melodies_autoregressive", folder=rows)
    found = {}
    for each in (run, rows):
        settings = {"split": "validation", "mask_samples": 1, "seed": 17}
        whole, gap = (bits_per_sample(load_run(each)[0], each, gap=part, **settings) for part in (False, True))
        found |= {(str(each), name): (whole[name], gap[name]) for name in whole}
    said = invoke(main, "evaluate", run, rows, "--mask-samples", 1, "--split", "validation")
    assert said.startswith(table(found))
    assert "| left to right, exact |" in said
    noise = experiment().parts["corpus"].noise_bits("validation", 64).mean()
    assert f"The noise has {noise:.3f} bits per sample" in said


def test_the_spectrogram_of_a_sine_wave():
    for amplitude, hertz in ((1.0, 500), (0.5, 250), (0.01, 750)):
        found = spectrogram(amplitude * np.sin(2 * np.pi * hertz * np.arange(512) / 2000))
        assert found.shape == (129, 257)
        middle = found[:, 40:-40]
        assert set(middle.argmax(0)) == {round(128 * hertz / 1000)}
        assert middle.max(0) == pytest.approx(np.full(middle.shape[1], 20 * np.log10(amplitude)), abs=0.1)
    assert (spectrogram(np.zeros(100)) == -60).all()
    assert spectrogram(np.zeros(100)).shape == (129, 101)
    click = np.zeros(200)
    click[100] = 1
    heard = np.flatnonzero((spectrogram(click) > -60).any(0))
    assert heard[[0, -1]].tolist() == [100 - 29, 100 + 29]  # the window is nearly 0 at its ends


def test_the_picture_has_low_frequencies_below_and_a_line_below_the_gap():
    low = np.sin(2 * np.pi * 125 * np.arange(256) / 2000)
    found = np.asarray(drawn([low] * 5 + [np.zeros(256)], (64, 128)))
    assert found.shape == (2 * (129 + 4 + 8), 4 * (257 + 8), 3)
    bright = found[4:133, 4:261].sum((1, 2))
    assert abs(int(bright.argmax()) - (128 - 16)) <= 1
    line = (found[133:137, 4:261] == GAP_COLOUR).all((0, 2))
    assert np.flatnonzero(line)[[0, -1]].tolist() == [64, 127]
    assert line.sum() == 64
    assert (found[145:274, 4 + 265 : 261 + 265] == (0, 0, 4)).all()  # the sixth, without sound
    assert (found[141:, 2 * 265 :] == 255).all()
    assert (found[:4] == 255).all()
    line = (np.asarray(drawn([np.zeros(1000)], (500, 501))) == GAP_COLOUR).all(2)  # a frame for four samples
    assert np.flatnonzero(line.any(0)).tolist() == [4 + 126]


def test_the_report_shows_samples_as_pictures_and_spectrograms(run):
    assert {"text", "replay"} <= set(compute(run))
    files = [json.loads((run / "report" / f"{file}.json").read_text(encoding="utf-8")) for file in ("text", "replay")]
    for picture in (file["picture"] for file in files):
        assert (picture["first"], picture["columns"], len(picture["colours"])) == (0, 32, 64)
    ids = [[MODEL.tokenizer.encode(token)[0] for token in text["tokens"]] for text in files[0]["texts"]]
    images = [Image.open(BytesIO(base64.b64decode(each["png"]))).convert("RGB") for each in files[0]["images"]]
    assert images == [*map(spectrogram_of, ids)]
    assert [*map(len, files[1]["images"])] == [3] * len(files[1]["samplers"])


def test_a_spectrogram_of_tokens_is_that_of_their_samples_with_silent_masks():
    samples = MODEL.tokenizer.samples[[*range(0, 64, 3), *range(64)]]
    samples[:3] = 0
    found = spectrogram_of([64] * 3 + [*range(9, 64, 3), *range(64)])
    assert np.abs(np.asarray(found, float) - drawn([samples])).max() < 30  # 64 of its colours


def test_mistakes(run, tmp_path):
    for words, message in (
        (("inpaint", run, 6, "--gap", 0, 9), "the test split has no sound 6; pass 0 to 5, or a WAV file"),
        (("inpaint", run, "x.wav", "--gap", 0, 9), "x.wav cannot be read as a WAV file"),
        *(
            (("inpaint", run, 5, "--gap", *gap), "--gap .*: the sound has 64 samples and the model reads 64")
            for gap in ((9, 9), (60, 65), (-1, 4), (9, 8))
        ),
        (("generate", run, "--out", run / "resolved.toml"), "cannot be written .* pass another folder to --out"),
    ):
        with pytest.raises(UserError, match=message):
            invoke(main, *words)
    for length, gap in ((63, (0, 9)), (90, (5, 70))):
        with pytest.raises(UserError, match="at most 64 apart, for a sound of 64 samples or more"):
            inpainted(MODEL, tone(length), gap, 1)
    (tmp_path / "spectrograms.png").mkdir()
    with pytest.raises(UserError, match=r"spectrograms.png cannot be written"):
        invoke(main, "generate", run, "--num-samples", 1, "--out", tmp_path)
    untrained("melodies", "tokenizer.use=bytes", folder=tmp_path / "bytes")
    text = load(str(EXPERIMENTS / "melodies.toml"), [*NETWORK, "corpus.use=sotu"])
    untrained_models.untrained(text, tmp_path / "text")
    for folder in ("bytes", "text"):
        with pytest.raises(UserError, match=r"is not a model of sounds; pass a run with tokenizer.use"):
            invoke(main, "generate", tmp_path / folder)
