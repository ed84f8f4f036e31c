"""Whatever happens to a tar archive, its documents are all read or an error says why not; none is lost in silence."""

import io
import tarfile
import warnings

import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

from atat_zoo.data.corpora.packing import members
from atat_zoo.data.corpora.webdataset import WebDatasetCorpus
from atat_zoo.errors import Note, UserError

TEXTS = ["we the people", "of this union\n" * 60, "x" * 512]
FORMATS = {"ustar": tarfile.USTAR_FORMAT, "gnu": tarfile.GNU_FORMAT, "pax": tarfile.PAX_FORMAT}
LONG = "a/" * 70  # of a name that has a header of its own, or a pax header


def packed(files, form="ustar"):
    """Return a tar archive of files, tables of texts or of other members by name, without zeros beyond its end."""
    out = io.BytesIO()
    with tarfile.open(fileobj=out, mode="w", format=FORMATS[form]) as tar:
        for name, content in files.items():
            info = tarfile.TarInfo(name)
            if isinstance(content, str):
                info.size = len(content.encode())
                tar.addfile(info, io.BytesIO(content.encode()))
            else:
                info.type, info.linkname = content
                tar.addfile(info)
        end = tar.offset
    return out.getvalue()[: end + 1024]


def three(form="ustar", folder="a/", first=0):
    return packed({f"{folder}{first + i}.txt": text for i, text in enumerate(TEXTS)}, form)


ARCHIVES = [three("ustar"), three("gnu", LONG), three("pax", LONG)]


def read(folder, data):
    """Return the documents of an archive, or None where it is refused; what is left out counts as refused."""
    path = folder / "x.tar"
    path.write_bytes(data)
    corpus = WebDatasetCorpus(train=(str(path),), validation_share=0.0, test_share=0.0)
    with warnings.catch_warnings():
        warnings.simplefilter("error", Note)
        try:
            return list(corpus.documents("train"))
        except (UserError, Note) as error:
            said = str(error)
    assert said.startswith("corpus")
    assert str(path) in said
    assert "\n" not in said
    return None


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    return tmp_path_factory.mktemp("tars")


@settings(max_examples=100)
@given(st.data(), st.sampled_from(ARCHIVES))
def test_a_flipped_bit_loses_no_document(folder, data, archive):
    inside = data.draw(st.sampled_from([range(len(archive)), *(range(at, at + 512) for at in headers(archive))]))
    at, bit = data.draw(st.sampled_from(inside)), data.draw(st.integers(0, 7))
    flipped = bytearray(archive)
    flipped[at] ^= 1 << bit
    found = read(folder, flipped)
    if found is not None:
        assert len(found) == len(TEXTS)
        assert sum(one != other for one, other in zip(found, TEXTS, strict=True)) <= 1
        if at in {byte for start in headers(archive) for byte in range(start, start + 512)}:
            assert found == TEXTS


def headers(archive):
    """Return where the headers of an archive lie; those of long names are of the members after them."""
    return [at for at in range(0, len(archive), 512) if archive[at + 257 : at + 262] == b"ustar"]


@settings(max_examples=60)
@given(st.sampled_from(ARCHIVES), st.floats(0, 1))
@example(ARCHIVES[0], 1.0)
def test_a_cut_loses_no_document(folder, archive, share):
    at = round(share * len(archive))
    found = read(folder, archive[:at])
    assert found in (None, TEXTS)
    assert (found is None) == (at < len(archive) and at != len(archive) - 512)


def test_a_document_of_zeros_is_no_end(folder):
    """The last 512 bytes of a cut archive may be zeros, too."""
    archive = packed({"0.txt": "a", "1.txt": "b" + "\0" * 1535, "2.txt": "c"})
    assert read(folder, archive[: 1024 + 512 + 1536]) is None


@settings(max_examples=30)
@given(st.lists(st.sampled_from(["ustar", "gnu", "pax"]), min_size=2, max_size=4), st.integers(0, 30))
def test_joined_archives_are_read_to_their_end(folder, forms, zeros):
    several = [three(form, LONG, 3 * i) for i, form in enumerate(forms)]
    joined = bytes(512 * zeros).join(several) + bytes(512 * zeros)
    assert read(folder, joined) == TEXTS * len(forms)
    flipped = bytearray(joined)
    flipped[len(several[0]) + 512 * zeros] ^= 1  # in the first header of the second
    assert read(folder, flipped) is None
    assert read(folder, joined[: len(joined) - 512 * zeros - 1024]) is None


@pytest.mark.parametrize("rest", [b"x", b"x" * 512, bytes(100), bytes(511) + b"\1", bytes(5120) + b"notes"])
def test_nothing_but_archives_may_follow_the_end(folder, rest):
    assert read(folder, ARCHIVES[0] + rest) is None


@pytest.mark.parametrize("kind", [tarfile.SYMTYPE, tarfile.LNKTYPE, tarfile.FIFOTYPE, tarfile.CHRTYPE, b"V"])
def test_a_document_that_is_a_link_is_not_passed_over(folder, kind):
    files = {"0.txt": "a", "1.txt": (kind, "0.txt"), "2": (tarfile.DIRTYPE, "")}
    assert read(folder, packed(files)) is None
    del files["1.txt"]
    assert read(folder, packed(files)) == ["a"]


def test_a_file_without_an_extension_is_told(tmp_path):
    files = {"README": "x", "__index__/0.txt": "y", "0.txt": "a", "x/LICENCE": "z"}
    (tmp_path / "x.tar").write_bytes(packed(files))
    corpus = WebDatasetCorpus(train=(str(tmp_path / "x.tar"),), validation_share=0.0, test_share=0.0)
    with pytest.warns(Note, match=r"x\.tar has 2 files without an extension, the first README; they belong to no"):
        assert list(corpus.documents("train")) == ["a"]


@pytest.mark.parametrize(("kind", "size"), [*((bytes([kind]), 1 << 40) for kind in b"LKxgX"), (b"0", -512)])
def test_a_size_that_is_none(kind, size):
    info = tarfile.TarInfo("0.txt")
    info.type, info.size = kind, size
    forged = io.BufferedReader(io.BytesIO(info.tobuf(tarfile.GNU_FORMAT)))
    with pytest.raises(tarfile.ReadError, match=rf"at byte 0 is damaged: a size of {size:,} bytes"):
        next(members(forged))


def test_a_sparse_file_takes_no_memory(folder):
    for kind in (tarfile.GNUTYPE_SPARSE, tarfile.REGTYPE):
        info = tarfile.TarInfo("0.txt")
        info.type, info.size = kind, 5
        info.pax_headers = {"GNU.sparse.map": "0,5", "GNU.sparse.size": str(1 << 50)} if kind == b"0" else {}
        forged = info.tobuf(tarfile.PAX_FORMAT) + b"abcde".ljust(512, b"\0") + bytes(1024)
        assert read(folder, forged) is None
        why = "^0.txt is a sparse file" if kind == b"0" else "at byte 0 is damaged: a sparse file"
        with pytest.raises(tarfile.ReadError, match=why):
            [opened() for _, opened in members(io.BufferedReader(io.BytesIO(forged)))]


def test_headers_without_an_end_are_refused():
    info = tarfile.TarInfo("0.txt")
    info.type, info.size = tarfile.GNUTYPE_LONGNAME, 0
    for forged in (info.tobuf(tarfile.GNU_FORMAT) * 5000, info.tobuf(tarfile.GNU_FORMAT) + bytes(1024)):
        with pytest.raises(tarfile.ReadError, match="at byte 0 is damaged"):
            next(members(io.BufferedReader(io.BytesIO(forged))))
