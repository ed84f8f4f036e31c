"""Parameters of small backbones for the conformance tests."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from pathlib import Path


def _llama(_: Path) -> dict[str, Any]:
    return {"layers": 2, "width": 16, "heads": 4, "kv_heads": 2, "inner": 24}


def _llada2(_: Path) -> dict[str, Any]:
    experts = {"experts": 4, "chosen": 2, "groups": 2, "chosen_groups": 2, "expert_inner": 8}
    return {**_llama(_), **experts, "head_width": 8}


EXAMPLES = {
    ("backbone", "ddit"): lambda _: {"layers": 2, "width": 16, "heads": 2, "condition": 8},
    ("backbone", "llama"): _llama,
    ("backbone", "llada2"): _llada2,
}
