"""The levels of samples, the tokenizer, and the conformance of every component."""

import numpy as np
import pytest
from atat_zoo_audio.mu_law import FIRST, MuLawModel, MuLawTokenizer, levels_of, samples_at, text_of
from atat_zoo_audio.recordings import SCALE, read_wav, write_wav
from hypothesis import given
from hypothesis import strategies as st

from atat_zoo.system.errors import UserError
from atat_zoo.testing import cases

SAMPLES = st.lists(st.floats(-1, 1), max_size=40).map(np.array)
BITS = st.integers(1, 8)


@pytest.mark.parametrize("case", cases(distribution="atat-zoo-audio"), ids=str)
def test_conformance(case):
    case.run()


def test_levels_by_hand():
    # |y| = ¼, ½ and ¾ are (4 − 1)/255, (16 − 1)/255 and (64 − 1)/255.
    edges = np.array([3, 15, 63]) / 255
    assert levels_of(edges * 1.000001).tolist() == [160, 192, 224]
    assert levels_of(edges * 0.999999).tolist() == [159, 191, 223]
    assert levels_of(-edges * 1.000001).tolist() == [95, 63, 31]
    assert levels_of(np.array([-9, -1, -1e-9, 0, 1e-9, 1, 9])).tolist() == [0, 0, 127, 128, 128, 255, 255]
    assert levels_of(np.array([-1, -0.1, 0, 0.1, 1]), 4).tolist() == [0, 0, 2, 3, 3]
    assert samples_at(np.array([0, 1, 2, 3, 4]), 4) == pytest.approx([-1, -15 / 255, 0, 15 / 255, 1])
    assert text_of(np.array([-1, 0, 1])) == "⠀⢀⣿"


@given(SAMPLES, BITS)
def test_the_sample_of_a_token_is_in_its_level(samples, bits):
    number = 1 << bits
    level = levels_of(samples, number)
    assert (samples_at(level, number) - 1e-12 <= samples).all()
    assert (samples <= samples_at(level + 1, number) + 1e-12).all()
    assert levels_of(samples_at(level + 0.5, number), number).tolist() == level.tolist()


@given(SAMPLES, BITS)
def test_tokens_with_fewer_bits_are_those_of_coarser_levels(samples, bits):
    model = MuLawTokenizer(bits=bits).train(lambda: iter(()))
    assert model.vocabulary_size == 2**bits
    ids = model.encode(text_of(samples))
    assert ids == levels_of(samples, 2**bits).tolist()
    assert model.encode(model.decode(ids)) == ids
    assert bits < 8 or model.decode(ids) == text_of(samples)
    assert model.encode(text_of(model.samples[ids])) == ids


def test_the_text_of_a_token_is_its_middle_level():
    assert MuLawModel(6).decode([0, 1, 63]) == "".join(chr(FIRST + i) for i in (2, 6, 254))
    assert MuLawModel(8).decode([0, 255]) == "⠀⣿"


@pytest.mark.parametrize("bits", [1, 6, 8])
def test_a_wav_file_of_tokens_has_these_tokens(bits, tmp_path):
    model = MuLawModel(bits)
    write_wav(tmp_path / "a.wav", np.rint(model.samples * SCALE).astype(np.int16), 2000)
    assert model.encode(text_of(read_wav(tmp_path / "a.wav", 2000) / SCALE)) == [*range(2**bits)]


def test_the_picture_has_rows_of_32_samples():
    model = MuLawModel(2)
    assert model.picture([0, 1, 2, 3, 4]) == [["#588cc1", "#c8d9ea", "#ecc5ca", "#c55260", None]]
    assert [len(row) for row in MuLawModel(8).picture([128] * 70)] == [32, 32, 6]
    assert model.picture([]) is None
    assert len(set(MuLawModel(6).picture([*range(64)])[0])) == 32


def test_mistakes(tmp_path):
    with pytest.raises(UserError, match=r"one per sample, but not 'a b'; use it with the corpora melodies"):
        MuLawModel(8).encode("⠀a⣿ b")
    for wrong in (chr(FIRST - 1), chr(FIRST + 256)):
        with pytest.raises(UserError, match="tokenizer 'mu_law' reads sounds"):
            MuLawModel(8).encode(wrong)
    MuLawModel(6).save(tmp_path)
    with pytest.raises(UserError, match="does not match the experiment's tokenizer"):
        MuLawTokenizer(bits=8).load(tmp_path)
