"""An exported folder to the Hugging Face hub."""

from __future__ import annotations

import re
from importlib.util import find_spec
from pathlib import Path

from atat_zoo.errors import UserError, clip

HUB_NAME = re.compile(r"[\w.-]{1,96}/[\w.-]{1,96}")


def check_push(name: str) -> None:
    """Check, before anything is written, that a model of this name could be pushed; the hub is not asked.

    Raises:
        UserError: when the name is none of the hub, or there is no token.
    """
    if not HUB_NAME.fullmatch(name):
        raise UserError(f"--push {clip(name) or repr(name)}: is no name on the hub; write OWNER/NAME")
    if find_spec("huggingface_hub") is None:
        raise UserError("--push needs the package huggingface_hub; install it with `pip install 'atat-zoo[hub]'`")
    import huggingface_hub

    if not huggingface_hub.get_token():
        raise UserError(
            "--push: there is no token for the hub; log in with `hf auth login`, or set HF_TOKEN in the environment"
        )


def push(folder: Path, name: str, *, public: bool = False) -> str:
    """Upload a folder as a model of the hub, which is private unless `public`, and return its address.

    A model of this name that is there gets a commit, and stays as private as it is.

    Raises:
        UserError: when the hub refuses, or is not reached.
    """
    import huggingface_hub

    try:
        address = huggingface_hub.create_repo(name, private=not public, exist_ok=True)
        huggingface_hub.upload_folder(repo_id=name, folder_path=folder, commit_message="Export by atat_zoo")
    except Exception as error:  # of the hub, of the network: the library raises many kinds
        first = (str(error).strip() or type(error).__name__).splitlines()[0]
        raise UserError(
            f"--push {name}: {clip(first)}; the export is in {clip(folder)}: push it again with "
            f"`hf upload {name} {folder}`, or see that the token may write there"
        ) from None
    return str(address)
