"""What the corpora generate and read, and what they refuse."""

import wave

import numpy as np
import pytest
from atat_zoo_audio import melodies
from atat_zoo_audio.melodies import LOWEST, MelodiesCorpus
from atat_zoo_audio.mu_law import FIRST, levels_of, samples_at, text_of
from atat_zoo_audio.recordings import SCALE, RecordingsCorpus, read_wav, write_wav
from scipy.stats import norm
from sounds import tone

from atat_zoo.system.errors import UserError

NOTES = [LOWEST * 2 ** (step / 12) for step in melodies.SCALE]


def one_note(**changes):
    return MelodiesCorpus(**{"sounds": 30, "held_out": 20, "samples": 4000, "rate": 4000, "notes": 1, **changes})


def test_a_note_has_the_partials_of_a_pitch_of_the_scale():
    found = set()
    for clean in one_note().generate("train").clean:
        spectrum = np.abs(np.fft.rfft(clean))  # a bin per hertz
        hertz = min(NOTES, key=lambda note: abs(note - spectrum.argmax()))
        peaks = [spectrum[round(k * hertz) - 3 : round(k * hertz) + 4].max() for k in range(1, 6)]
        assert spectrum.argmax() == pytest.approx(hertz, abs=1)
        assert np.divide(peaks[:4], peaks[0]) == pytest.approx([1, 1 / 2, 1 / 3, 1 / 4], abs=0.05)
        assert peaks[4] < 0.04 * peaks[0]
        found.add(hertz)
    assert len(found) >= 8


def test_a_partial_above_half_of_the_rate_is_left_out():
    clean = one_note(rate=1000).generate("train").clean
    high = 0
    for spectrum in np.abs(np.fft.rfft(clean)):  # four bins per hertz
        hertz = min(NOTES, key=lambda note: abs(note - spectrum.argmax() / 4))
        alias = 1000 - 2 * hertz  # where its second partial would appear
        if hertz > 250 and abs(alias - hertz) > 60:
            assert spectrum[round(4 * alias)] < 0.1 * spectrum.max()
            high += 1
    assert high > 5


def test_a_note_rises_and_decays():
    sounds = one_note(notes=2, samples=2000).generate("train").clean
    for note in (sounds[:, :1000], sounds[:, 1000:]):
        assert (note[:, 0] == 0).all()
        peak = np.abs(note).reshape(30, 25, 40).max(2)  # in each 10 ms
        assert (peak[:, 0] >= 0.9 * peak.max(1)).all()
        assert np.abs(note[:, 4:]).max() > 3 * np.abs(note[:, :2]).max()
        assert peak[:, 8] / peak[:, 4] == pytest.approx(np.full(30, np.exp(-1)), rel=0.35)  # 40 ms later
        assert 0.2 < peak.max() < 0.9
    assert not np.allclose(sounds[:, :1000], sounds[:, 1000:])


def test_the_noise_has_its_standard_deviation_and_samples_stay_within_range():
    clean, noisy = one_note(noise=0.1).generate("test")
    assert (noisy - clean).std() == pytest.approx(0.1, rel=0.02)
    assert np.corrcoef(noisy - clean)[0, 1] == pytest.approx(0, abs=0.1)
    assert np.abs(one_note(noise=3.0).generate("test").noisy).max() == 1
    assert np.array_equal(clean, one_note(noise=0.2).generate("test").clean)


def test_sounds_depend_on_the_split_and_the_seed_and_never_change():
    corpus = MelodiesCorpus(sounds=5, held_out=3, samples=16)
    texts = {split: list(corpus.documents(split)) for split in ("train", "validation", "test")}
    assert {split: len(each) for split, each in texts.items()} == {"train": 5, "validation": 3, "test": 3}
    assert {len(text) for each in texts.values() for text in each} == {16}
    assert len({text for each in texts.values() for text in each}) == 11
    # Results depend on these values.
    assert [ord(each) - FIRST for each in texts["test"][0]] == GOLDEN
    other = MelodiesCorpus(sounds=5, held_out=3, samples=16, seed=1)
    assert other.fingerprint() != corpus.fingerprint() == MelodiesCorpus(sounds=5, held_out=3, samples=16).fingerprint()
    assert list(other.documents("test")) != texts["test"]
    assert list(MelodiesCorpus(sounds=2, held_out=9, samples=16).documents("test"))[:3] == texts["test"]


GOLDEN = [121, 188, 189, 151, 135, 109, 73, 51, 142, 99, 59, 52, 117, 69, 129, 206]


@pytest.mark.parametrize("levels", [2, 64, 256])
def test_the_bits_of_the_noise_are_those_of_normal_variables(levels):
    corpus = MelodiesCorpus(held_out=3, samples=32, noise=0.05)
    clean, noisy = corpus.generate("test")
    ends = samples_at(np.arange(levels + 1), levels)
    wanted = np.zeros(3)
    for row, i in np.ndindex(3, 32):
        p = np.diff(norm.cdf(ends, clean[row, i], 0.05))
        p[0], p[-1] = norm.cdf(ends[1], clean[row, i], 0.05), norm.sf(ends[-2], clean[row, i], 0.05)
        wanted[row] -= np.log2(p[levels_of(noisy[row, i], levels)]) / 32
    assert corpus.noise_bits("test", levels) == pytest.approx(wanted)


def test_recordings_are_cut_into_sounds_of_equal_length(tmp_path):
    sounds = {"a.wav": tone(70), "sub/b.WAV": tone(40, hertz=300)}
    for name, sound in sounds.items():
        write_wav(tmp_path / name, sound, 2000)
    corpus = RecordingsCorpus(train=(str(tmp_path),), samples=20, validation_share=0, test_share=0)
    wanted = [text_of(each[i : i + 20] / 32768) for each in sounds.values() for i in range(0, len(each) - 19, 20)]
    assert list(corpus.documents("train")) == wanted
    assert len(wanted) == 5
    assert list(corpus.documents("test")) == []
    named = RecordingsCorpus(train=(str(tmp_path / "a.wav"),), test=(str(tmp_path / "sub"),), samples=20)
    assert list(named.documents("test")) == wanted[3:]
    before = corpus.fingerprint()
    write_wav(tmp_path / "a.wav", tone(70, hertz=250), 2000)
    assert corpus.fingerprint() != before


def test_a_wav_file_is_read_to_the_bit(tmp_path):
    sound = np.array([-32768, -1, 0, 1, 32767], np.int16)
    write_wav(tmp_path / "new" / "folder" / "a.wav", sound, 8000)
    found = read_wav(tmp_path / "new" / "folder" / "a.wav", 8000)
    assert np.array_equal(found, sound)
    assert (found / SCALE).tolist() == [-1, -(2**-15), 0, 2**-15, 1 - 2**-15]


def write_other(path, channels=1, width=2, rate=2000):
    with path.open("wb") as handle, wave.open(handle) as file:
        file.setparams((channels, width, rate, 8, "NONE", ""))
        file.writeframes(bytes(channels * width * 8))
    return path


def test_mistakes(tmp_path):
    for changes, message in (
        ({"channels": 2}, "has 2 channels, not 1; run `ffmpeg -i a.wav -ac 1 -ar 2000 -c:a pcm_s16le new.wav`"),
        ({"width": 1}, "has 8 bits, not 16; run"),
        ({"rate": 44100}, "has 44100 Hz, not 2000; run"),
    ):
        with pytest.raises(UserError, match=message):
            read_wav(write_other(tmp_path / "a.wav", **changes), 2000)
    whole = write_other(tmp_path / "a.wav").read_bytes()
    for content, message in ((b"", "it ends too soon"), (b"no sound " * 9, "RIFF"), (whole[:30], "a.wav cannot be")):
        (tmp_path / "a.wav").write_bytes(content)
        with pytest.raises(UserError, match=f"cannot be read as a WAV file .*{message}|{message}.* as a WAV file"):
            read_wav(tmp_path / "a.wav", 2000)
    (tmp_path / "a.wav").write_bytes(whole[:-3])
    assert len(read_wav(tmp_path / "a.wav", 2000)) == 6  # the file ends within a sample
    with pytest.raises(UserError, match=r"none.wav cannot be read as a WAV file .*No such file"):
        read_wav(tmp_path / "none.wav", 2000)
    (tmp_path / "empty").mkdir()
    with pytest.raises(UserError, match=r"corpus.train: no file in the folder .* ends in .wav or .wave; name the"):
        list(RecordingsCorpus(train=(str(tmp_path / "empty"),)).documents("train"))
    with pytest.raises(UserError, match=r"corpus.train: too few documents \(0\)"):
        list(RecordingsCorpus(train=(str(tmp_path / "a.wav"),)).documents("train"))
    with pytest.raises(UserError, match=r"cannot be written .* pass another folder to --out"):
        write_wav(tmp_path / "a.wav" / "b.wav", tone(3), 2000)
    with pytest.raises(ValueError, match="must add up to less than 1"):
        RecordingsCorpus(validation_share=0.5, test_share=0.5)
