"""WebDatasets that are cut, joined, flipped, endless or too many are built whole, or refused with a sentence."""

import io
import json
import tarfile

from tests.attack.driver import FAILED, Verdict, atat, judge, one_by_one
from tests.faulty_server import serving

DOCUMENTS = 60
EXPERIMENT = """\
data = {{root = "shards", length = 16, lanes = 1}}
tokenizer = "bytes"
[corpus]
use = "webdataset"
train = [{train}]
largest = 0.001
retries = 0
validation_share = 0.0
test_share = 0.0
"""
BOMBS = ("x-{0..99999999}.tar", "x-{0..9}{0..9}{0..9}{0..9}{0..9}{0..9}{0..9}.tar", "{a,b}" * 30)


def written(draw, first):
    """Return an archive of documents in one of the formats, and where its headers are."""
    out, headers = io.BytesIO(), []
    form = draw.choice((tarfile.USTAR_FORMAT, tarfile.GNU_FORMAT, tarfile.PAX_FORMAT))
    with tarfile.open(fileobj=out, mode="w", format=form) as tar:
        for number in range(first, first + DOCUMENTS):
            content = b"we the people " * draw.randrange(1, 90)
            info = tarfile.TarInfo(f"{number:06d}.txt")
            info.size = len(content)
            headers.append(out.tell())
            tar.addfile(info, io.BytesIO(content))
    return out.getvalue(), headers


def attack(draw, number, seed, base, work):
    how = draw.choice(("flipped header", "flipped header", "flipped", "cut", "joined", "bomb", "device", "endless"))
    data, headers = written(draw, 0)
    wanted, train = DOCUMENTS, '"x.tar"'
    if how.startswith("flipped"):
        changed = bytearray(data)
        reach = [at + i for at in headers for i in range(512)] if how == "flipped header" else range(len(data))
        changed[draw.choice(reach)] ^= 1 << draw.randrange(8)
        data = bytes(changed)
    elif how == "cut":
        data = data[: draw.randrange(len(data))]
    elif how == "joined":
        data, wanted = data + written(draw, DOCUMENTS)[0], 2 * DOCUMENTS
    elif how == "bomb":
        train = json.dumps(draw.choice(BOMBS))
    elif how == "device":
        train = draw.choice(('"/dev/zero"', '"file:///dev/zero"', '"file:///dev/random"'))
    (work / "x.tar").write_bytes(data)
    with serving(work) as server:
        if how == "endless":
            server.faults["x.tar"].append("endless")
            train = json.dumps(f"{server.address}/x.tar")
        (work / "x.toml").write_text(EXPERIMENT.format(train=train))
        ended = atat(["data", "build", "x.toml"], work)
    verdict = judge(ended)
    why = verdict.why
    if not why and ended.code == 0:
        found = next((work / "shards").glob("*/manifest.json")).read_text()
        documents = json.loads(found)["splits"]["train"]["documents"]
        why = "" if documents == wanted else f"{documents} of {wanted} documents, and not a word"
    if not why and how in ("bomb", "device", "endless") and ended.code != 2:
        why = f"exit code {ended.code}"
    return Verdict(FAILED, f"{why}\n  {how}: {ended.err[-300:]}", ended.memory) if why else verdict


KIND = one_by_one("archives", 8, attack)
