"""What the corpora read, how they divide it, and what they refuse."""

from collections import Counter

import numpy as np
import pytest
from atat_zoo_images.picture_corpora import DigitsCorpus, PicturesCorpus
from atat_zoo_images.pixel_tokenizer import GREYS, PixelsTokenizer, colour_of, symbols_of
from pictures import write_pictures
from PIL import Image
from sklearn.datasets import load_digits

from atat_zoo.data import SPLITS
from atat_zoo.system.errors import UserError


def documents(corpus):
    return {split: list(corpus.documents(split)) for split in SPLITS}


def test_the_digits_are_those_of_scikit_learn_in_fixed_splits():
    found, digits = documents(DigitsCorpus()), load_digits()
    assert {split: len(texts) for split, texts in found.items()} == {"train": 1437, "validation": 180, "test": 180}
    grey = {GREYS[round(level * 255 / 16)]: level for level in range(17)}
    read = Counter()
    for text in (text for texts in found.values() for text in texts):
        label, *pixels = symbols_of(text)
        read[label[1:-1], bytes(grey[each] for each in pixels)] += 1
    wanted = zip(digits.target, digits.data.astype(np.uint8), strict=True)
    assert read == Counter((str(label), bytes(pixels)) for label, pixels in wanted)
    # The split never changes, because results depend on it.
    assert [text[1] for text in found["test"][:20]] == list("06995056491681258968")
    assert all(min(Counter(text[1] for text in texts).values()) >= 8 for texts in found.values())
    assert list(DigitsCorpus(label=False).documents("test")) == [text[3:] for text in found["test"]]


def test_grey_pictures_are_cropped_reduced_and_labelled_by_their_folder(tmp_path):
    (tmp_path / "wide").mkdir()
    picture = np.zeros((8, 16, 3), np.uint8)
    picture[:, 4:8], picture[:4, 8:12], picture[:, 12:] = 90, 255, 200  # the middle square: columns 4 to 11
    for name in ("a.png", "b.PNG"):
        Image.fromarray(picture).save(tmp_path / "wide" / name)
    (tmp_path / "wide" / "notes.txt").write_text("not a picture")
    corpus = PicturesCorpus(path=str(tmp_path), side=2, greys=4, validation=0, test=0)
    # 90 becomes 85, the nearest of 0, 85, 170 and 255.
    assert documents(corpus) == {
        "train": [f"<wide>{GREYS[85]}{GREYS[255]}{GREYS[85]}{GREYS[0]}"] * 2,
        "validation": [],
        "test": [],
    }


@pytest.mark.parametrize("changes", [{"palette": 4}, {"greys": 5}, {"palette": 3, "label": False}])
def test_held_out_pictures_have_the_colours_of_the_training_pictures(tmp_path, changes):
    corpus = PicturesCorpus(path=str(write_pictures(tmp_path)), side=4, validation=0.25, test=0.25, **changes)
    found = documents(corpus)
    assert {split: len(texts) for split, texts in found.items()} == {"train": 10, "validation": 5, "test": 5}
    model = PixelsTokenizer().train(lambda: iter(found["train"]))
    assert all(model.decode(model.encode(text)) == text for texts in found.values() for text in texts)
    colours = {colour_of(symbol) for symbol in model.symbols} - {None}
    assert len(colours) <= changes.get("palette", changes.get("greys"))
    assert (set(model.labels) == {"red", "blue"}) == changes.get("label", True)
    every = sorted(path for paths in corpus.files().values() for path in paths)
    assert every == sorted(path for path in tmp_path.rglob("*.*"))
    again = PicturesCorpus(path=str(tmp_path), side=4, validation=0.25, test=0.25, seed=1, **changes)
    assert again.files() != corpus.files()


def test_a_palette_finds_the_colours_of_the_pictures(tmp_path):
    for i in range(10):
        image = Image.new("RGB", (4, 4), "#204060")
        image.paste("#ff8000", (0, 0, 2, 4))
        image.save(tmp_path / f"{i}.png")
    corpus = PicturesCorpus(path=str(tmp_path), side=4, palette=2, label=False)
    assert {text for texts in documents(corpus).values() for text in texts} == {("#ff8000" * 2 + "#204060" * 2) * 4}


def test_the_fingerprint_and_the_stamp_change_with_the_files_and_their_classes(tmp_path):
    write_pictures(tmp_path)
    corpus = PicturesCorpus(path=str(tmp_path), side=4)
    before, stamp = corpus.fingerprint(), corpus.stamp()
    assert before["pictures"] == 20
    (tmp_path / "red" / "0.png").rename(tmp_path / "blue" / "0.png")
    moved = corpus.fingerprint()
    assert moved != before
    Image.new("RGB", (8, 8), "green").save(tmp_path / "blue" / "0.png")
    assert corpus.fingerprint() not in (before, moved)
    assert corpus.stamp() != stamp
    assert "#008000" in "".join(
        t for texts in documents(PicturesCorpus(path=str(tmp_path), palette=9)).values() for t in texts
    )


def test_mistakes(tmp_path):
    with pytest.raises(UserError, match=r"corpus.path: .* has no pictures for training \(.bmp, .gif, .*name another"):
        list(PicturesCorpus(path=str(tmp_path)).documents("train"))
    (tmp_path / "a.png").write_bytes(b"not a picture")
    with pytest.raises(UserError, match=r"a\.png cannot be read as a picture"):
        list(PicturesCorpus(path=str(tmp_path)).documents("train"))
    with pytest.raises(ValueError, match="must add up to less than 1"):
        PicturesCorpus(validation=0.5, test=0.5)
    with pytest.raises(ValueError, match="greys has no effect with a palette"):
        PicturesCorpus(palette=4, greys=8)
