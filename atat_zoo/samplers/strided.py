"""The sampler `strided`."""

from __future__ import annotations

from typing import TYPE_CHECKING

from typing_extensions import override

from atat_zoo.errors import Problem
from atat_zoo.registry import component, param, part
from atat_zoo.samplers import Observer, Sample, shifted
from atat_zoo.samplers import draw as draws
from atat_zoo.samplers.order import Offset, strided_classes
from atat_zoo.samplers.pace import FixedPace
from atat_zoo.samplers.parts import FillingSampler, SamplerParts

if TYPE_CHECKING:
    from collections.abc import Iterator

    from torch import Tensor

    from atat_zoo.diffusion.contracts import BlockDecoder, Denoiser
    from atat_zoo.experiment import Experiment
    from atat_zoo.samplers.teacher_forcing import TokenSource

_OFFSET = Problem(
    "sampler.offset",
    '"random" is not for this model, which was trained to write class 0 first; set it to "none", or take another '
    "objective's model",
)


@component
class StridedSampler(FillingSampler):
    """Position i is of class i mod s; the classes come in turn, each drawn in one step.

    A text of any length takes s evaluations. What is drawn in one step is drawn apart, and lies s positions apart.
    Nothing in it adapts, so it is what an adaptive sampler of as many evaluations is to be compared with.

    With a random offset o, drawn for each text, the class of position i is (i + o) mod s: which positions are drawn
    with nothing to go by is then not the same in every text, and the text's distribution is the mean of s.

    A model that reads class by class (objective `strided`) caches the keys and values of finished classes, so that an
    evaluation reads L/s tokens, and its text is drawn exactly from its likelihood. It does not see a given token of a
    class later than a missing one; such texts are refused. Any other model sees the complete text in each evaluation.
    """

    name = "strided"
    summary = "positions i mod s in turn, each class in one step; as strided models need"
    classwise = True
    no_policy_bound_because = None

    stride: int | None = param(None, help="s, the number of classes; if none, as in the model, or 16", ge=1)
    offset: Offset = param("none", help="random: each text begins with a class of its own")
    draw: draws.Draw = part("draw", "categorical", help="from log-probabilities to a token")

    @property
    @override
    def deterministic(self) -> bool:
        return self.offset == "none"

    @override
    def check(self, experiment: Experiment) -> Iterator[Problem | str]:
        if self.offset == "random" and getattr(experiment.parts["objective"], "stride", None) is not None:
            yield _OFFSET
        yield from self.draw.check(experiment)

    @override
    def fill(
        self, denoiser: Denoiser, tokens: Tensor, seeds: Tensor, source: TokenSource, observe: Observer | None
    ) -> Sample:
        """Refuse a stride that is not the model's, and a given token that the model would not see."""
        import torch

        from atat_zoo.diffusion.positions import to_host
        from atat_zoo.diffusion.randomness import fold
        from atat_zoo.errors import UserError
        from atat_zoo.samplers.loop import run

        own, length = denoiser.stride, tokens.shape[1]
        stride = self.stride or own or 16
        if own is not None and own != stride:
            raise UserError(f"sampler.stride = {stride} is not the {own} classes of the model; leave it out")
        if own is not None and self.offset == "random":
            raise UserError(str(_OFFSET))
        classes, masked = min(stride, length), tokens == denoiser.mask_id
        turn = strided_classes(length, classes, self.offset, seeds)
        unseen = ~masked & (turn > torch.where(masked, turn, classes).amin(1, keepdim=True))
        present = [(masked & (turn == c)).any() for c in range(classes)]
        *open_, any_unseen = to_host(torch.stack([*present, unseen.any()])).tolist()
        if own is not None and any_unseen:
            raise UserError(
                f"this model writes position i in turn i mod {own}, and would not see a given token whose turn comes "
                "after that of a missing one; write without prompt, suffix and gaps, or with another objective's model"
            )
        last = max((c for c in range(classes) if open_[c]), default=-1)
        decoder: BlockDecoder | None = None
        if own is not None and last >= 0:
            with torch.no_grad():
                decoder = denoiser.begin(len(tokens), length)
        parts = SamplerParts(pace=FixedPace(steps=1), draw=self.draw)
        z, nfe, most = tokens.clone(), torch.zeros_like(seeds), 0
        for c in range(last + 1):
            of_class, keys = slice(c, None, classes), fold(seeds, c)
            if open_[c]:
                if decoder is None:
                    observer = shifted(observe, steps=most)
                    sample = run(parts, denoiser, z, keys, fill=turn == c, source=source, observe=observer)
                    z = sample.tokens
                else:
                    observer = shifted(observe, positions=c, apart=classes, steps=most)
                    part = source.at(c, classes)
                    sample = run(parts, decoder, z[:, of_class], keys, source=part, observe=observer)
                    z[:, of_class] = sample.tokens
                nfe, most = nfe + sample.nfe, most + sample.max_nfe
            if decoder is not None and c < last:
                with torch.no_grad():
                    decoder.read(z[:, of_class])
        return Sample(tokens=z, nfe=nfe, max_nfe=most)
