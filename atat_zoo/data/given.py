"""Shards that were built elsewhere: whether they are what an experiment asks for."""

from __future__ import annotations

import contextlib
import json
import tempfile
from pathlib import Path
from typing import Any

from atat_zoo.data import SPLITS, manifest, remote
from atat_zoo.data.manifest import TOKENIZER
from atat_zoo.errors import UserError
from atat_zoo.experiment.schema import Experiment
from atat_zoo.run import sha256_of
from atat_zoo.tokenizers import Tokenizer, TokenizerModel


def check_given(folder: Path, experiment: Experiment) -> Path:
    """Check that shards built elsewhere match the experiment."""
    contents = verified(folder, experiment)
    origin = remote.origin_of(folder)
    path = origin.path if origin else folder
    wanted: dict[str, tuple[Any, Any]] = {
        f"data.{key}": (getattr(experiment.data, key), getattr(contents, key)) for key in ("length", "special", "rows")
    }
    problems = []
    try:
        wanted["tokenizer"] = _tokenizers(experiment.parts["tokenizer"], folder, contents)
    except UserError as error:
        problems.append(str(error))
    for key, (asked, there) in wanted.items():
        if asked != there:
            problems.append(f"{key}: the shards in {path} have {_show(there)}, the experiment says {_show(asked)}")
    if problems:
        raise UserError("\n".join(problems))
    return folder


def _tokenizers(tokenizer: Tokenizer, folder: Path, contents: manifest.ShardManifest) -> tuple[Any, Any]:
    """Return what an experiment's tokenizer is, and that of shards: by their files, wherever the first one lies."""
    asked, there, sha256 = tokenizer.identity(), contents.tokenizer, contents.sha256[TOKENIZER]
    try:
        mine = tokenizer.fingerprint()
        if mine is None:
            return asked, there
        if tokenizer.like is not None:
            own = tokenizer.load(folder)
        else:
            own = tokenizer.train(lambda: iter(()))
            mine = _saved(own)
    except UserError:  # its file is not here
        if asked == there:
            return asked, there
        raise
    if mine != sha256:
        with contextlib.suppress(UserError):  # another version of the library may have written the same in another form
            mine = sha256 if mine == _saved(tokenizer.load(folder)) else mine
    asked, there = (
        {f"SHA-256 of {TOKENIZER}": digest, "vocabulary size": of.vocabulary_size, "bos": of.bos, "eos": of.eos}
        for digest, of in ((mine, own), (sha256, contents))
    )
    return asked, there


def _saved(model: TokenizerModel) -> str:
    """Return the hash of the file that a tokenizer is saved as."""
    with tempfile.TemporaryDirectory() as folder:
        model.save(Path(folder))
        return sha256_of(Path(folder) / TOKENIZER)


def verified(folder: Path, experiment: Experiment) -> manifest.ShardManifest:
    """Return the manifest; where damaged shards are skipped, those for the training are not looked at."""
    skip = experiment.data.damaged == "skip"
    return manifest.verify(folder, splits=[split for split in SPLITS if not (skip and split == "train")])


def _show(value: Any) -> str:
    return ", ".join(f"{k} = {v!r}" for k, v in value.items()) if isinstance(value, dict) else json.dumps(value)
