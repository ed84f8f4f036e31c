"""Texts as they unmask. B texts of L tokens, F frames of a text, V predictable tokens."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import torch

from atat_zoo.registry.spec import unstructure
from atat_zoo.report.text import shown

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence

    from torch import Tensor

    from atat_zoo.diffusion.contracts import Denoiser
    from atat_zoo.generation import Writer
    from atat_zoo.samplers import Sampler

_CHUNK = 2**24  # log-probabilities at once
DIGITS = 3  # decimals of an entropy


def replay_table(writer: Writer, sampler: Sampler, *, number: int, length: int, seed: int) -> dict[str, Any]:
    """Write texts with a sampler, and return what report/replay.json says of them.

    The entropies take evaluations of their own, which are not counted: a sampler asks for less than they show.

    Args:
        writer: of `Model.writer`, guided or not.
        sampler: a specification.
        number: B.
        length: L.
        seed: of the sampler.
    """
    trace: list[dict[str, Any]] = []
    made = writer.write(sampler, number=number, length=length, seed=seed, observe=trace.append).sample
    texts = []
    for row, frames in zip(made.tokens, frames_of(trace, number), strict=True):
        drawn = sorted({position for frame in frames for position, _ in frame["filled"]})
        start = row.clone()
        start[drawn] = writer.denoiser.mask_id
        opened = entropies(writer.denoiser, states(start, frames, writer.denoiser.mask_id)[:-1])
        for frame, open_ in zip(frames, opened, strict=True):
            frame["evaluation"] *= writer.cost
            frame["open"] = open_
            words = shown(writer.tokenizer, [token for _, token in frame["filled"]])
            frame["filled"] = [[position, word] for (position, _), word in zip(frame["filled"], words, strict=True)]
        given: list[str | None] = [*shown(writer.tokenizer, row.tolist())]
        for position in drawn:
            given[position] = None
        texts.append({"start": given, "frames": frames})
    return {
        "name": sampler.name,
        "settings": unstructure(sampler),
        "evaluations": made.nfe.tolist(),
        "texts": texts,
    }


def frames_of(trace: Iterable[dict[str, Any]], number: int) -> list[list[dict[str, Any]]]:
    """Return the frames of each text from what a sampler reports: one for each evaluation that the text takes part in.

    What is hidden again before the next evaluation belongs to the frame: first `filled`, [position, id] each, then
    `hidden`.
    """
    texts: list[list[dict[str, Any]]] = [[] for _ in range(number)]
    for record in trace:
        if "tokens" in record:
            for row in set(record["rows"]):
                texts[row].append({"evaluation": len(texts[row]) + 1, "filled": [], "hidden": [], "open": []})
            for row, position, token in zip(record["rows"], record["positions"], record["tokens"], strict=True):
                texts[row][-1]["filled"].append([position, token])
        if hidden := record.get("hidden"):
            for row, position in zip(hidden["rows"], hidden["positions"], strict=True):
                texts[row][-1]["hidden"].append(position)
    return texts


def states(start: Tensor, frames: Sequence[dict[str, Any]], mask_id: int) -> Tensor:
    """Return z before each frame and after the last one, int64 [F + 1, L], from the first z, [L]."""
    z = [start]
    for frame in frames:
        positions, tokens = zip(*frame["filled"], strict=True)
        after = z[-1].clone()
        after[list(positions)] = after.new_tensor(tokens)
        after[frame["hidden"]] = mask_id
        z.append(after)
    return torch.stack(z)


@torch.no_grad()
def entropies(denoiser: Denoiser, z: Tensor) -> list[list[list[float]]]:
    """Return [position, entropy in nats] of the predictions at the masks of each row of z, int64 [F, L].

    A model that reads block by block, or class by class, predicts the first one that is not complete, and no other.
    """
    masked = z == denoiser.mask_id
    turn = denoiser.turn(torch.arange(z.shape[1], device=z.device))
    if turn is not None:
        masked &= turn == torch.where(masked, turn, len(turn)).amin(1, keepdim=True)
    rows = max(1, _CHUNK // (z.shape[1] * denoiser.mask_id))
    found: list[list[list[float]]] = [[] for _ in z]
    for first in range(0, len(z), rows):
        some, where = z[first : first + rows], masked[first : first + rows]
        nats = torch.special.entr(denoiser(some, None, where).exp()).sum(-1).clamp(min=0)
        for (row, position), value in zip(where.nonzero().tolist(), nats.tolist(), strict=True):
            found[first + row].append([position, round(value, DIGITS)])
    return found
