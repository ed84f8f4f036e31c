"""A model's own files, on the hub or in a folder: configuration, tokenizer, and any required code."""

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
    """Error for a model that cannot be used; a `ValueError`, so that checks report it with other problems."""


_LOADS = (
    "model = {model!r} cannot be loaded ({first}); use a model on the hub with safetensors, or a folder with one "
    "and its tokenizer, and check the network connection"
)


@contextmanager
def reading(model: str, sentence: str = _LOADS) -> Iterator[None]:
    """Suppress the library's progress bars and warnings, and raise its errors as `Unreadable`.

    Raises:
        Unreadable: if the model does not exist, or the library does not support it.
    """
    if os.path.isdir(model):
        refuse_links_out(Path(model))
    try:
        with quiet_transformers():
            yield
    except (UserError, MemoryError):
        raise
    # No such model, no network, files of another shape or architecture: the library raises many kinds.
    except Exception as error:
        first = (str(error).strip() or type(error).__name__).splitlines()[0]
        raise Unreadable(sentence.format(model=model, first=first)) from None


def config_of(model: str, revision: str | None) -> dict[str, Any]:
    """Return the content of a model's config.json, without running its code."""
    from transformers import PreTrainedConfig

    with reading(model):
        content: dict[str, Any] = PreTrainedConfig.get_config_dict(model, revision=revision)[0]
        if "model_type" not in content:
            raise KeyError("its config.json has no model_type")
    return {key: value for key, value in content.items() if not key.startswith("_")}


def longest_of(config: dict[str, Any]) -> int | None:
    """Return the maximum number of positions in a model's config.json, or None."""
    found = (config.get(key) for key in ("max_position_embeddings", "n_positions", "max_sequence_length"))
    return next((value for value in found if isinstance(value, int) and value > 0), None)


def ends_of(config: dict[str, Any]) -> set[int]:
    """Return the ids of a model's BOS and EOS, from its config.json or the defaults of its architecture."""
    from transformers import AutoConfig

    with reading(str(config["model_type"])):
        known = config if is_foreign(config) else AutoConfig.for_model(**config).to_dict()
    found = (known.get(key) for key in ("bos_token_id", "eos_token_id"))
    return {i for each in found if each is not None for i in (each if isinstance(each, list) else [each])}


class FoundTokenizer(NamedTuple):
    """Tokenizer of a model."""

    library: Tokenizer
    special: dict[str, str]  # the names of its special tokens by their purpose
    template: Any  # of dialogues, for Jinja, as its files say it: a text, None, or several by their names


def tokenizer_of(model: str, revision: str | None) -> FoundTokenizer:
    """Return a model's tokenizer, without running its code."""
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
    # Without a file the library makes a tokenizer of the special tokens of the model's class, or says nothing of it.
    if not any(map(file, names)):
        raise Unreadable(
            f"model = {model!r} has no tokenizer file ({', '.join(dict.fromkeys(names))}); add that of its tokenizer, "
            "or choose a model that has it with tokenizer.model"
        )
    library.no_truncation()
    library.no_padding()
    special = {key: str(name) for key in SPECIAL if (name := getattr(found, key, None)) is not None}
    return FoundTokenizer(library, special, found.chat_template)


def template_of(model: str, found: Any) -> str | None:
    """Return a model's chat template; of several, the one named "default"."""
    if isinstance(found, dict) and "default" not in found:
        raise Unreadable(
            f"model = {model!r} has the chat templates {clip(', '.join(map(repr, found)), 60)} and no 'default'; pass "
            "one of them with tokenizer.chat_template"
        )
    template = found["default"] if isinstance(found, dict) else found
    if template is not None and (not isinstance(template, str) or re.search("[\ud800-\udfff]", template)):
        raise Unreadable(
            f"model = {model!r} has a chat template that is not a text, {clip(repr(template), 60)}; correct "
            "chat_template in its tokenizer_config.json, or remove it"
        )
    return template


def is_foreign(config: dict[str, Any]) -> bool:
    """Return whether a model needs its author's code, because the library does not support it."""
    from transformers.models.auto.configuration_auto import CONFIG_MAPPING_NAMES

    return config["model_type"] not in CONFIG_MAPPING_NAMES


def pinned(model: str, revision: str | None) -> str | None:
    """Return the commit of a model with its author's code, or the SHA-256 of a folder's code.

    Raises:
        Unreadable: if a folder's code does not match the hash in `revision`.
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
            f"revision = {revision!r} does not match the code in {model!r}, which has changed; read the code, and "
            "leave revision out"
        )
    return found.hexdigest()


def refuse_untrusted(model: str, trusted: bool, config: dict[str, Any]) -> None:
    """Raise `Unreadable` for a model with its author's code, unless the experiment and its user both trust it.

    A run folder or an experiment may come from somebody else, so the parameter does not show the user's consent.

    Raises:
        Unreadable: if one of them is missing, or the code is in another repository, which `revision` does not pin.
    """
    names = [str(name) for name in config.get("auto_map", {}).values()]
    if others := {name.split("--")[0] for name in names if "--" in name} - {model}:
        raise Unreadable(
            f"model = {model!r} runs code from another repository, {min(others)}; download both, review that code, "
            f'copy it next to config.json, and delete "{min(others)}--" from the entries of auto_map'
        )
    if not trusted:
        raise Unreadable(
            f"model = {model!r} runs its author's code, which can do anything that you can; read that code, and set "
            "trust_remote_code = true"
        )
    if os.environ.get(TRUST) != "1":
        raise Unreadable(
            f"trust_remote_code = true would run code of the author of {model!r}, which can do anything that you can; "
            f"read that code, and set {TRUST}=1 in the environment"
        )
