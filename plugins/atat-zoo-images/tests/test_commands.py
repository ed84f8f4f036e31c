"""Class-conditional pictures, inpainting and the evaluation, of small models."""

import numpy as np
import pytest
import torch
from atat_zoo_images.__main__ import main
from atat_zoo_images.picture_files import MASKED, hidden_pixels, ids_of_file, rgb, write_grid
from atat_zoo_images.picture_models import inpainted, picture_ids, samples_of
from atat_zoo_images.picture_quality import Bits, Quality, bits_per_dimension, classifier, quality, tables
from atat_zoo_images.pixel_tokenizer import GREYS, PixelsModel
from hypothesis import given, settings
from hypothesis import strategies as st
from pictures import untrained, write_pictures
from PIL import Image

from atat_zoo import Model
from atat_zoo.system.errors import UserError
from atat_zoo.testing.backbone_checks import randomised
from atat_zoo.testing.invoked_commands import invoke

GREY = PixelsModel([GREYS[0], GREYS[100], GREYS[255], "<a>"])


@pytest.fixture(scope="module")
def run(tmp_path_factory):
    folder = tmp_path_factory.mktemp("runs")
    with pytest.MonkeyPatch.context() as patch:
        patch.chdir(folder)  # where the shards are built
        untrained(folder=folder / "digits")
        untrained(folder=folder / "rows", name="digits_autoregressive")
        yield folder


@pytest.fixture
def half(tmp_path):
    """A mask picture whose lower half is white."""
    mask = Image.new("L", (16, 16))
    mask.paste(255, (0, 8, 16, 16))
    mask.save(tmp_path / "mask.png")
    return tmp_path / "mask.png"


def test_a_grid_has_a_row_for_each_class(run, tmp_path):
    out = tmp_path / "new" / "a.png"
    assert "3 pictures of each of 10 classes" in invoke(
        main, "generate", run / "digits", "--num-samples", 3, "--out", out
    )
    with Image.open(out) as image:
        assert image.size == (3 * 68 + 4, 10 * 68 + 4)
    words = ("generate", run / "rows", "--num-samples", 2, "--class", 7, "--class", 3, "--guidance", 1, "--out", out)
    assert "2 pictures of each of 2 classes" in invoke(main, *words)
    with Image.open(out) as image:
        assert image.size == (2 * 68 + 4, 2 * 68 + 4)


def test_a_grid_has_the_colours_of_its_pixels(tmp_path):
    write_grid(tmp_path / "a.png", [[[["#102030", None], ["#ffffff", "#000000"]]]])
    with Image.open(tmp_path / "a.png") as image:
        found = np.asarray(image)
    assert found.shape == (72, 72, 3)
    assert (found[4:36, 4:36] == (16, 32, 48)).all()
    assert (found[4:36, 36:68] == rgb([MASKED])[0]).all()
    assert (found[36:68, 36:68] == 0).all()
    assert (found[:4] == 255).all()


@pytest.mark.parametrize("name", ["digits", "rows"])
def test_samples_of_a_class_begin_with_its_label(name):
    model = untrained(name={"digits": "digits", "rows": "digits_autoregressive"}[name])
    labels = model.tokenizer.labels
    for guidance in (0.0, 2.0):
        made = samples_of(model, "7", 2, seed=3, guidance=guidance)
        assert made.shape == (2, 65)
        assert made[:, 0].tolist() == [labels["7"]] * 2
        assert (made[:, 1:] < 17).all()  # pixels, although the model has learned nothing


def test_guidance_changes_the_samples():
    model = untrained()
    randomised(model.module)
    plain, guided, again = (samples_of(model, "7", 2, seed=3, guidance=scale) for scale in (0.0, 5.0, 5.0))
    assert torch.equal(guided, again)
    assert not torch.equal(plain, guided)
    free = {"use": "classifier_free", "condition": "<7>", "strength": 5.0, "empty": "masked"}
    guidance = {"use": "combined", "first": free, "second": "pixels"}
    assert torch.equal(guided, model.sample(2, prompt="<7>", seed=3, guidance=guidance).sample.tokens)


@settings(deadline=None, max_examples=20)
@given(st.lists(st.booleans(), min_size=65, max_size=65), st.integers(0, 2**20))
def test_given_pixels_are_kept_and_masked_ones_filled(hidden, seed):
    model = SMALL_MODEL
    V = model.context.vocabulary_size
    ids = torch.randint(0, V, (65,), generator=torch.Generator().manual_seed(seed))
    masked = torch.tensor(hidden)
    found = inpainted(model, torch.where(masked, V, ids).tolist(), 3, seed=seed)
    assert torch.equal(found[:, ~masked], ids[~masked].expand(3, -1))
    made = found[:, masked]
    assert ((made < 17) == (torch.arange(65)[masked] > 0)).all()


SMALL_MODEL = untrained()


def test_the_inpainted_picture_keeps_the_given_half(run, half, tmp_path):
    out = tmp_path / "a.png"
    said = invoke(main, "inpaint", run / "digits", 5, "--mask", half, "--num-samples", 4, "--out", out)
    assert "its mask of 32 pixels, and 4 fills" in said
    with Image.open(out) as image:
        found = np.asarray(image)[4:68]
    pictures = [found[:, 68 * i + 4 : 68 * i + 68] for i in range(6)]
    assert all((each[:32] == pictures[0][:32]).all() for each in pictures)
    assert (pictures[1][32:] == rgb([MASKED])[0]).all()
    assert len({each[32:].tobytes() for each in pictures}) > 3
    wanted = untrained().tokenizer.picture(picture_ids(Model.from_run(run / "digits"), run / "digits", "5"))
    assert (pictures[0][4::8, 4::8] == rgb([each for row in wanted for each in row]).reshape(8, 8, 3)).all()


def test_a_file_is_inpainted_in_the_colours_of_the_run(tmp_path, half):
    write_pictures(tmp_path / "in")
    changes = ["corpus.use=pictures", f"corpus.path={tmp_path / 'in'}", "corpus.side=8", "corpus.palette=4"]
    model = untrained(*changes)
    ids = picture_ids(model, tmp_path, str(tmp_path / "in" / "red" / "0.png"))
    assert ids[0] == model.context.mask_id
    text = model.tokenizer.decode(ids[1:])
    corpus = model.experiment.parts["corpus"]
    assert text in {
        each.removeprefix("<red>") for split in ("train", "test", "validation") for each in corpus.documents(split)
    }
    labelled = picture_ids(model, tmp_path, str(tmp_path / "in" / "red" / "0.png"), "blue")
    assert labelled == [model.tokenizer.labels["blue"], *ids[1:]]
    assert hidden_pixels(half, 8) == [False] * 32 + [True] * 32


def test_a_grey_file_takes_the_nearest_grey(tmp_path):
    image = Image.new("L", (2, 2), 0)
    image.putpixel((1, 0), 60)
    image.putpixel((0, 1), 170)
    image.putpixel((1, 1), 200)
    image.save(tmp_path / "a.png")
    assert ids_of_file(tmp_path / "a.png", GREY, 2) == [0, 1, 1, 2]
    Image.new("RGB", (2, 2), "blue").save(tmp_path / "b.png")  # as dark as the grey value 29
    assert ids_of_file(tmp_path / "b.png", GREY, 2) == [0] * 4


def test_bits_per_dimension_of_uniform_predictions_do_not_count_the_label():
    for name in ("digits", "digits_autoregressive"):
        model = untrained("backbone.output_bias=none", name=name)
        V = model.context.vocabulary_size
        tokens = torch.randint(0, 17, (6, 65))
        tokens[:, 0] = model.tokenizer.labels["3"]
        (bits,) = bits_per_dimension(model, tokens, model.experiment.evaluation, 3)
        assert V == 27
        torch.testing.assert_close(bits.each, torch.full((6,), np.log2(V), dtype=torch.float64))
        assert bits.factorisation == {"digits": "any-order ELBO"}.get(name, "left to right, exact")


def test_the_classifier_recognises_digits_and_the_evaluation_counts_them(run):
    found = quality(untrained(), run / "digits", split="validation", samples=2, mask_samples=1, seed=0)
    assert float(found.right.double().mean()) >= 0.97
    assert len(found.label) == len(found.bits[0].each) == 180
    assert {label: len(right) for label, right in found.recognised.items()} == dict.fromkeys("0123456789", 2)
    assert sum(int(right.sum()) for right in found.recognised.values()) <= 10  # of 20, from a model without training


def test_the_classifier_reads_pixels_and_not_the_label():
    model = untrained()
    tokens = torch.tensor([[17 + i % 2, *[16 * (i % 2)] * 64] for i in range(10)])
    recognise = classifier(model, tokens)
    tokens[:, 0] = 26
    assert recognise(tokens).tolist() == [17, 18] * 5


def test_the_tables_by_hand():
    def one(bits, right):
        recognised = {"a": torch.tensor([True, right]), "b": torch.tensor([True, True])}
        label, real = torch.tensor([3, 3, 4]), torch.tensor([True, False, True])
        return Quality([Bits("exact", torch.tensor(bits).double())], label, real, recognised)

    found = {"x": one([1.0, 2.0, 3.0], True), "y": one([2.0, 3.0, 4.5], False)}
    # The differences are 1, 1 and 1.5: more than 2.5 % of the resamples have only the first two, or only the last.
    assert tables(found, {"a": 3, "b": 4}).splitlines() == [
        "| run | bits per dimension | factorisation | against x | samples recognised |",
        "| --- | --- | --- | --- | --- |",
        "| x | 2.000 ± 0.577 | exact |  | 100.0 % |",
        "| y | 3.167 ± 0.726 | exact | +1.167 [+1.000, +1.500] | 75.0 % |",
        "",
        "| class | pictures | of them recognised | x: bits | x: samples recognised | y: bits | y: samples recognised |",
        "| --- | --- | --- | --- | --- | --- | --- |",
        "| a | 2 | 50.0 % | 1.500 | 100.0 % | 2.500 | 50.0 % |",
        "| b | 1 | 100.0 % | 3.000 | 100.0 % | 4.500 | 100.0 % |",
        "",
        "The classifier recognises 66.7 % of 3 real pictures.",
    ]


def test_the_evaluation_compares_runs(run):
    said = invoke(
        main, "evaluate", run / "digits", run / "rows", "--num-samples", 1, "--mask-samples", 1, "--split", "test"
    )
    assert f"| {run / 'digits'} |" in said
    assert "| left to right, exact |" in said
    assert "of 180 real pictures" in said


def test_mistakes(run, half, tmp_path):
    for words, message in (
        (("generate", run / "digits", "--class", "seven"), r"--class: unknown class 'seven' \(classes: 0, 1, "),
        (("generate", run / "none"), "none"),
        (
            ("inpaint", run / "digits", 180, "--mask", half),
            "the test split has no picture 180; pass 0 to 179, or a file",
        ),
        (("inpaint", run / "digits", "x.png", "--mask", half), "x.png cannot be read as a picture"),
        (("inpaint", run / "digits", 3, "--mask", tmp_path / "no.png"), "no.png cannot be read as a picture"),
        (("inpaint", run / "digits", 3, "--mask", half, "--class", "x"), "--class: unknown class 'x'"),
        (
            ("inpaint", run / "rows", 3, "--mask", half, "--out", tmp_path / "a.docx"),
            "pass a file name that ends in .png",
        ),
    ):
        with pytest.raises(UserError, match=message):
            invoke(main, *words)
    Image.new("L", (8, 8), 128).save(tmp_path / "light.png")
    assert all(hidden_pixels(tmp_path / "light.png", 8))
    Image.new("L", (8, 8), 127).save(tmp_path / "dark.png")
    with pytest.raises(UserError, match="has no light pixels; paint the pixels to generate white"):
        hidden_pixels(tmp_path / "dark.png", 8)
    with pytest.raises(UserError, match=r"have no label; train with corpus.label = true"):
        invoke(main, "generate", unlabelled(tmp_path / "bare"))
    untrained("tokenizer.use=bytes", "corpus.use=sotu", folder=tmp_path / "text")
    with pytest.raises(UserError, match="is not a model of pictures; pass a run"):
        invoke(main, "generate", tmp_path / "text")


def unlabelled(folder):
    untrained("corpus.label=false", "data.length=64", folder=folder)
    return folder
