"""Importance and loss of held-out text, token by token, and replays of generation.

Sizes: n texts of L tokens, S shown tokens, R mask rates; B generated texts, F frames per text, V predictable tokens.
"""

import base64
from collections.abc import Callable, Iterable, Iterator, Sequence
from typing import Any

import torch
from torch import Tensor

from atat_zoo.data.tokenizers import TokenizerModel
from atat_zoo.diffusion.contracts import Denoiser
from atat_zoo.diffusion.likelihood_bounds import uniform_order
from atat_zoo.diffusion.positions import pairs
from atat_zoo.diffusion.randomness import fold, sequence_keys
from atat_zoo.experiment.effects import weighs_tokens
from atat_zoo.generation.model import Model
from atat_zoo.generation.samplers import Sampler
from atat_zoo.generation.text_generator import TextGenerator
from atat_zoo.modeling.objectives.denoising import dense
from atat_zoo.registry.spec import unstructure

Progress = Callable[[int, int], None]

RATES = (0.1, 0.2, 0.3, 0.4, 0.5, 0.6, 0.7, 0.8, 0.9)
DRAWS = 4  # number of times that each token is hidden at each rate
SHOWN = 256  # recorded tokens per text, except for a picture; the model reads all tokens
DIGITS = 4  # decimals of nats and importance
ENTROPY_DIGITS = 3
_CHUNK = 2**24  # log-probabilities at once


def text_table(
    model: Model, tokens: Tensor, maskable: Tensor, counts: Tensor, *, seed: int, progress: Progress | None = None
) -> dict[str, Any]:
    """Return the content of report/text.json: the tokens of texts with their surprisal, importance and loss.

    The loss, and the importance if it reads the masked text, are averaged over the masks that hide the token (see
    `masks_of`). Importance that reads the clean text may depend on the rate, but not on the mask. A model with an exact
    likelihood predicts each token from the same tokens for any mask, so it has no `rates` and one loss per token.

    `tokens` is int64 [n, L], `maskable` is bool [n, L], and `counts` contains training token counts by id, int64
    [V]. The masks depend only on (seed, text, rate). `progress` is called with the completed and the total number of
    rates.
    """
    weighs, exact = weighs_tokens(model.experiment), model.experiment.parts["objective"].exact
    device = model.context.device
    x, of_text = tokens.to(device), maskable.to(device)
    keys = sequence_keys(seed, "report", torch.arange(len(x), device=device))
    mass = counts.double() + 1
    surprisal = (-(mass / mass.sum()).log())[tokens]
    losses, importance = [], []
    levels: list[float | None] = [None] if exact else list(RATES)
    for number, rate in enumerate(levels):
        masks = [of_text] if rate is None else list(masks_of(of_text, fold(keys, number), rate, DRAWS))
        loss, weight = measured(model.module, x, of_text, masks, weighs, model.experiment.evaluation.batch_size)
        losses.append(loss)
        importance.append(weight)
        if progress:
            progress(number + 1, len(levels))
    estimator: Any = model.experiment.parts["estimator"] if weighs else None
    picture = picture_grid(model.tokenizer, tokens.shape[1])
    some = slice(None if picture else SHOWN)
    return {
        "picture": picture,
        "draws": 1 if exact else DRAWS,
        "rates": [] if exact else list(RATES),
        "estimator": estimator and estimator.name,
        "importance_depends_on_rate": bool(weighs and (estimator.reads == "z" or estimator.reads_time)),
        "texts": [
            {
                "tokens": shown(model.tokenizer, tokens[row, some].tolist()),
                "maskable": maskable[row, some].tolist(),
                "surprisal": _numbers(surprisal[row, some]),
                "importance": [_numbers(at_rate[row, some]) for at_rate in importance] if weighs else None,
                "loss": [_numbers(at_rate[row, some]) for at_rate in losses],
            }
            for row in range(len(tokens))
        ],
        "images": images_of(model.tokenizer, tokens),
    }


def masks_of(maskable: Tensor, keys: Tensor, rate: float, draws: int) -> Iterator[Tensor]:
    """Yield masks, bool [n, L], of k = max(1, round(rate · maskable tokens)) tokens.

    Each draw orders the text at random and hides k tokens at a time in this order; the last mask is filled up from the
    beginning of the order. So each mask is uniform, and each token is hidden once or twice per draw. A text that needs
    fewer masks than the others is not masked in the remaining ones. `keys` are the keys of the texts, int64 [n].
    """
    n = maskable.sum(1, keepdim=True)
    k = (n * rate).round().long().clamp(min=1)
    masks = (n / k).ceil()
    for draw in range(draws):
        order = uniform_order(maskable, fold(keys, draw))
        for number in range(int(masks.max())):
            yield ((order - number * k) % n.clamp(min=1) < k) & maskable & (number < masks)


@torch.no_grad()
def measured(
    module: Any, x: Tensor, maskable: Tensor, masks: list[Tensor], weighs: bool, batch_size: int
) -> tuple[Tensor, Tensor]:
    """Return each token's mean loss and importance, float64 [n, L], over the masks that hide it; NaN without a mask.

    The masks, bool [n, L] each, share one mask rate. Batches have at most max(n, `batch_size`) rows.
    """
    denoiser = module.denoiser()
    losses, importance = torch.zeros(2, *x.shape, dtype=torch.float64, device=x.device)
    count = torch.zeros_like(x)
    together = max(1, batch_size // len(x))
    for first in range(0, len(masks), together):
        masked = torch.cat(masks[first : first + together])
        text, of_text = (each.repeat(len(masked) // len(x), 1) for each in (x, maskable))
        z = torch.where(masked, denoiser.mask_id, text)
        t = denoiser.time_at(masked.sum(1) / of_text.sum(1).clamp(min=1))
        ce = dense(pairs(masked), module.cross_entropy(z, t, masked, text), text.shape)
        losses += ce.view(-1, *x.shape).double().sum(0)
        if weighs:
            reads = text if denoiser.importance_reads == "x" else z
            found = module.importance(reads, of_text, t).double() * masked
            importance += found.view(-1, *x.shape).sum(0)
        count += masked.view(-1, *x.shape).sum(0)
    return losses / count, importance / count


def shown(tokenizer: TokenizerModel, ids: Sequence[int]) -> list[str]:
    """Return each token as displayed: decoded by itself, with U+FFFD for partial characters; BOS and EOS as names."""
    special = {tokenizer.bos: "<bos>", tokenizer.eos: "<eos>"}
    return [special[i] if i in special else tokenizer.decode([i]) for i in ids]


def picture_grid(tokenizer: TokenizerModel, length: int) -> dict[str, Any] | None:
    """Return the grid of a picture of `length` tokens, and the colour of each token as displayed; None for text."""
    rows = tokenizer.picture([tokenizer.vocabulary_size] * length)
    if rows is None:
        return None
    ids = range(tokenizer.vocabulary_size)
    colours = {
        name: (tokenizer.picture([i]) or [[None]])[0][0] for i, name in zip(ids, shown(tokenizer, ids), strict=True)
    }
    known = {name: colour for name, colour in colours.items() if colour}
    return {"first": length - sum(map(len, rows)), "columns": len(rows[0]), "colours": known}


def images_of(tokenizer: TokenizerModel, tokens: Tensor) -> list[dict[str, str] | None]:
    """Return the image of each row of tokens, int64 [n, L], in base64 with its description; None without an image."""
    found = [tokenizer.image(row) for row in tokens.tolist()]
    return [each and {"said": each[0], "png": base64.b64encode(each[1]).decode()} for each in found]


def _numbers(values: Tensor) -> list[float | None]:
    """Return rounded values [S], with None for NaN."""
    return [round(value, DIGITS) if value == value else None for value in values.tolist()]


# Texts as they unmask


def replay_table(
    text_generator: TextGenerator, sampler: Sampler, *, number: int, length: int, seed: int
) -> dict[str, Any]:
    """Generate texts with a sampler, and return their content for report/replay.json.

    The entropies need additional forward passes, which are not counted in NFE.
    """
    trace: list[dict[str, Any]] = []
    made = text_generator.write(sampler, number=number, length=length, seed=seed, observe=trace.append).sample
    texts = []
    for row, frames in zip(made.tokens, frames_of(trace, number), strict=True):
        drawn = sorted({position for frame in frames for position, _ in frame["filled"]})
        start = row.clone()
        start[drawn] = text_generator.denoiser.mask_id
        opened = entropies(text_generator.denoiser, states(start, frames, text_generator.denoiser.mask_id)[:-1])
        for frame, open_ in zip(frames, opened, strict=True):
            frame["evaluation"] *= text_generator.cost
            frame["open"] = open_
            words = shown(text_generator.tokenizer, [token for _, token in frame["filled"]])
            frame["filled"] = [[position, word] for (position, _), word in zip(frame["filled"], words, strict=True)]
        given: list[str | None] = [*shown(text_generator.tokenizer, row.tolist())]
        for position in drawn:
            given[position] = None
        texts.append({"start": given, "frames": frames})
    about = {"name": sampler.name, "settings": unstructure(sampler)}
    images = images_of(text_generator.tokenizer, made.tokens)
    return {**about, "evaluations": made.nfe.tolist(), "texts": texts, "images": images}


def frames_of(trace: Iterable[dict[str, Any]], number: int) -> list[list[dict[str, Any]]]:
    """Return the frames of each text, one per decoding step of the text, from a sampler's records.

    A frame has its number `evaluation`, a list `filled` of [position, id], the positions `hidden` that are masked again
    before the next step, and an empty list `open`.
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
    """Return the tokens before each frame and after the last, int64 [F + 1, L], given those before the first, [L]."""
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
    """Return [position, entropy in nats] of the prediction at each mask in the rows of z, int64 [F, L].

    A block model predicts only the first incomplete block. A model that reads the decoding steps of tokens reads the
    rows in order, as it does during generation.
    """
    writing = denoiser.begin_generation(z[:1])
    in_turns = writing is not denoiser and not ((z[:-1] != z[1:]) & (z[:-1] != denoiser.mask_id)).any()
    masked = z == denoiser.mask_id
    turn = denoiser.step_of(torch.arange(z.shape[1], device=z.device))
    if turn is not None:
        masked &= turn == torch.where(masked, turn, len(turn)).amin(1, keepdim=True)
    rows = 1 if in_turns else max(1, _CHUNK // (z.shape[1] * denoiser.mask_id))
    denoiser = writing if in_turns else denoiser
    found: list[list[list[float]]] = [[] for _ in z]
    for first in range(0, len(z), rows):
        some, where = z[first : first + rows], masked[first : first + rows]
        nats = torch.special.entr(denoiser(some, None, where).exp()).sum(-1).clamp(min=0)
        for (row, position), value in zip(where.nonzero().tolist(), nats.tolist(), strict=True):
            found[first + row].append([position, round(value, ENTROPY_DIGITS)])
    return found
