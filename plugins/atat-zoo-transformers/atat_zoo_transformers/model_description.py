"""Read the configuration and the tokenizer of a model on the hub or in a folder, and check and pin its code."""

from __future__ import annotations

import hashlib
import os
import re
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

from atat_zoo_checkpoints.published_model import Published, refuse_links_out

from atat_zoo.system.errors import UserError, clip
from atat_zoo.system.machine import quiet_transformers

if TYPE_CHECKING:
    from collections.abc import Iterator

    from tokenizers import Tokenizer

TRUST = "ATAT_ZOO_TRUST_REMOTE_CODE"
SPECIAL = ("bos_token", "eos_token", "cls_token", "sep_token", "mask_token", "pad_token", "unk_token")


class Unreadable(UserError, ValueError):
    """Error for a model that cannot be used, which is a `ValueError` so that checks report it with other problems."""


_LOADS = (
    "model = {model!r} cannot be loaded ({first}); use a model on the hub with safetensors, or a folder with a "
    "model and its tokenizer, and check the network connection"
)


@contextmanager
def reading(model: str, sentence: str = _LOADS) -> Iterator[None]:
    """Suppress the progress bars and warnings of `transformers` in a block, and raise its errors as `Unreadable`.

    The message is `sentence`, with the `model` and the error's `first` line filled in. A folder `model` with a link to
    a file outside the folder raises a `UserError`.
    """
    if os.path.isdir(model):
        refuse_links_out(Path(model))
    try:
        with quiet_transformers():
            yield
    except (UserError, MemoryError):
        raise
    # The library raises many types: for a missing model or connection, and for files with unexpected content.
    except Exception as error:
        first = (str(error).strip() or type(error).__name__).splitlines()[0]
        raise Unreadable(sentence.format(model=model, first=first)) from None


def config_of(model: str, revision: str | None) -> dict[str, Any]:
    """Return the content of a model's config.json, without running its code, or raise `Unreadable`."""
    from transformers import PreTrainedConfig

    with reading(model):
        content: dict[str, Any] = PreTrainedConfig.get_config_dict(model, revision=revision)[0]
        if "model_type" not in content:
            raise KeyError("config.json has no model_type")
    return {key: value for key, value in content.items() if not key.startswith("_")}


def longest_of(config: dict[str, Any]) -> int | None:
    """Return the maximum number of positions from a model's config.json, or None if it does not state it."""
    found = (config.get(key) for key in ("max_position_embeddings", "n_positions", "max_sequence_length"))
    return next((value for value in found if isinstance(value, int) and value > 0), None)


def ends_of(config: dict[str, Any]) -> set[int]:
    """Return the ids of a model's BOS and EOS tokens, from config.json or the defaults for its architecture."""
    from transformers import AutoConfig

    with reading(str(config["model_type"])):
        known = config if is_foreign(config) else AutoConfig.for_model(**config).to_dict()
    found = (known.get(key) for key in ("bos_token_id", "eos_token_id"))
    return {i for each in found if each is not None for i in (each if isinstance(each, list) else [each])}


class FoundTokenizer(NamedTuple):
    """Tokenizer of a model, with the names of its special tokens and its chat templates."""

    library: Tokenizer
    special: dict[str, str]  # the name of each special token, by its role
    template: Any  # the Jinja chat template as stored: a string, None, or a dict of several by name


def tokenizer_of(model: str, revision: str | None) -> FoundTokenizer:
    """Return a model's tokenizer, without running its code, or raise `Unreadable` if the model has none."""
    from tokenizers import Tokenizer
    from transformers import AutoTokenizer

    file, names = Published(model, revision).file, ["tokenizer.json", "tokenizer.model", "vocab.txt", "vocab.json"]
    try:
        with reading(model):
            found: Any = AutoTokenizer.from_pretrained(model, revision=revision, trust_remote_code=False)
            library = Tokenizer.from_str(found.backend_tokenizer.to_str())
        names += found.vocab_files_names.values()
    except Unreadable:
        if any(map(file, names)):
            raise
    # Without a file, the library may build a tokenizer from the special tokens of the model's class.
    if not any(map(file, names)):
        raise Unreadable(
            f"model = {model!r} has no tokenizer file ({', '.join(dict.fromkeys(names))}); add the file, or use the "
            "tokenizer of a different model with tokenizer.model"
        )
    library.no_truncation()
    library.no_padding()
    special = {key: str(name) for key in SPECIAL if (name := getattr(found, key, None)) is not None}
    return FoundTokenizer(library, special, found.chat_template)


def template_of(model: str, found: Any) -> str | None:
    """Return a model's chat template, or the one named "default" if it has several; raise `Unreadable` if invalid."""
    if isinstance(found, dict) and "default" not in found:
        raise Unreadable(
            f"model = {model!r} has the chat templates {clip(', '.join(map(repr, found)), 60)}, but none is named "
            "'default'; pass one of them with tokenizer.chat_template"
        )
    template = found["default"] if isinstance(found, dict) else found
    if template is not None and (not isinstance(template, str) or re.search("[\ud800-\udfff]", template)):
        raise Unreadable(
            f"model = {model!r} has an invalid chat template, {clip(repr(template), 60)}; correct "
            "chat_template in its tokenizer_config.json, or remove it"
        )
    return template


def is_foreign(config: dict[str, Any]) -> bool:
    """Return whether a model needs its author's code, because the library does not support it."""
    from transformers.models.auto.configuration_auto import CONFIG_MAPPING_NAMES

    return config["model_type"] not in CONFIG_MAPPING_NAMES


def pinned(model: str, revision: str | None) -> str | None:
    """Return the commit of a model on the hub at `revision`, or the SHA-256 of the *.py files of a model in a folder.

    Raises:
        Unreadable: if the hub cannot be reached, or the code in a folder does not match the hash in `revision`.
    """
    if not os.path.isdir(model):
        if re.fullmatch("[0-9a-f]{40}", revision or ""):
            return revision
        from huggingface_hub import resolve_revision

        with reading(model):
            return resolve_revision(model, revision=revision).resolved
    found = hashlib.sha256()
    for path in sorted(Path(model).rglob("*.py")):
        found.update(f"{path.relative_to(model)}\0{hashlib.sha256(path.read_bytes()).hexdigest()}\n".encode())
    if revision not in (None, found.hexdigest()):
        raise Unreadable(
            f"revision = {revision!r} does not match the code in {model!r}, which has changed; review the code, "
            "and leave revision out"
        )
    return found.hexdigest()


def refuse_untrusted(model: str, trusted: bool, config: dict[str, Any]) -> None:
    """Raise `Unreadable` for a model that runs its author's code, unless the experiment and the user both trust it.

    A run folder or an experiment may come from someone else, so its parameter does not prove the user's consent.

    Raises:
        Unreadable: if either does not trust the code, or if the code is in a different repository, which `revision`
            does not pin.
    """
    names = [str(name) for name in config.get("auto_map", {}).values()]
    if others := {name.split("--")[0] for name in names if "--" in name} - {model}:
        raise Unreadable(
            f"model = {model!r} runs code from a different repository, {min(others)}; download both, review that code, "
            f'copy it next to config.json, and delete "{min(others)}--" from the entries of auto_map'
        )
    if not trusted:
        raise Unreadable(
            f"model = {model!r} runs its author's code, which can do anything that you can do; review the code, and "
            "set trust_remote_code = true"
        )
    if os.environ.get(TRUST) != "1":
        raise Unreadable(
            f"trust_remote_code = true runs code from the author of {model!r}, which can do anything that you can do; "
            f"review the code, and set {TRUST}=1 in the environment"
        )
