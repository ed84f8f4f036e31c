"""The text of a picture, and the tokenizer that reads it."""

import json

import numpy as np
import pytest
from atat_zoo_images.pixel_tokenizer import GREYS, PixelsModel, PixelsTokenizer, colour_of, picture_text, symbols_of
from hypothesis import given, settings
from hypothesis import strategies as st
from hypothesis.extra import numpy as arrays

from atat_zoo.system.errors import UserError

PICTURES = st.integers(1, 5).flatmap(
    lambda side: arrays.arrays(np.uint8, st.sampled_from([(side, side), (side, side, 3)]))
)
LABELS = st.text(st.characters(exclude_characters="<>\n", exclude_categories=["Cs"]), max_size=5)


@settings(deadline=None)
@given(PICTURES, LABELS)
def test_the_text_and_the_ids_of_a_picture_are_the_picture(pixels, label):
    text = picture_text(pixels, label)
    model = PixelsTokenizer().train(lambda: iter([text]))
    ids = model.encode(text)
    assert model.decode(ids) == text
    assert len(ids) == pixels.shape[0] ** 2 + bool(label)
    assert list(model.labels) == [label] * bool(label)
    rows = model.picture(ids)
    grey = pixels if pixels.ndim == 3 else pixels[..., None].repeat(3, -1)
    assert [[bytes.fromhex(each[1:]) for each in row] for row in rows] == [[bytes(p) for p in row] for row in grey]


def test_a_lighter_grey_has_at_least_as_many_dots():
    assert sorted(GREYS) == [chr(0x2800 + i) for i in range(256)]
    dots = [(ord(each) - 0x2800).bit_count() for each in GREYS]
    assert dots == sorted(dots)
    assert [colour_of(GREYS[value]) for value in (0, 171, 255)] == ["#000000", "#ababab", "#ffffff"]


def test_ids_rise_with_the_grey_value_and_labels_come_last():
    model = PixelsTokenizer().train(lambda: iter([f"<b>{GREYS[255]}#ff0000", f"<a>{GREYS[3]}#00ff00"]))
    assert model.symbols == ["#00ff00", "#ff0000", GREYS[3], GREYS[255], "<a>", "<b>"]
    assert model.labels == {"a": 4, "b": 5}
    assert (model.bos, model.eos) == (None, None)


def test_a_mask_or_a_label_has_no_colour():
    model = PixelsModel([GREYS[0], GREYS[255], "<a>"])
    assert model.picture([2, 0, 1, 3, 2]) == [["#000000", "#ffffff"], [None, None]]
    assert model.picture([3, 0, 1, 3, 1]) == [["#000000", "#ffffff"], [None, "#ffffff"]]
    assert (model.picture([2]), model.picture([])) == ([[None]], None)


def test_what_is_no_picture_is_refused(tmp_path):
    model = PixelsModel([GREYS[0], "<cat>"])
    for text, message in (
        ("<cat> meows", r"reads a label such as <7>, .*but not ' meows'"),
        ("#12345", "but not '#12345'"),
        ("<car>", "no training picture has '<car>'; did you mean '<cat>'"),
        (GREYS[1], "no training picture has"),
    ):
        with pytest.raises(UserError, match=message):
            model.encode(text)
    assert symbols_of("<a b>#000000") == ["<a b>", "#000000"]
    for documents in ([], ["<cat>"]):
        with pytest.raises(UserError, match=r"found no pixel in the training pictures; check \[corpus\]"):
            PixelsTokenizer().train(lambda documents=documents: iter(documents))


def test_the_run_keeps_its_colours(tmp_path):
    model = PixelsModel([GREYS[7], "#0080ff", "<cat>"])
    model.save(tmp_path)
    assert PixelsTokenizer().load(tmp_path).symbols == model.symbols
    for content in ("", "{}", json.dumps({"symbols": 3}), json.dumps({"symbols": ["?"]})):
        (tmp_path / "tokenizer.json").write_text(content)
        with pytest.raises(UserError, match=r"tokenizer.json is not a tokenizer of pixels .*build the shards again"):
            PixelsTokenizer().load(tmp_path)
    with pytest.raises(UserError, match="is not a tokenizer of pixels"):
        PixelsTokenizer().load(tmp_path / "none")
