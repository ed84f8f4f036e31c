"""Write a `dit` for the Hugging Face hub, with copies of the files *_atat_zoo.py, which do not import atat_zoo."""

from __future__ import annotations

import shutil
from pathlib import Path
from typing import TYPE_CHECKING, Any

from atat_zoo.data import has_eos, is_framed

if TYPE_CHECKING:
    from atat_zoo.data.tokenizers import TokenizerModel
    from atat_zoo.experiment import Experiment

_TIMES = 4096  # minimum number of intervals, so that mask rates of texts with other lengths can be interpolated


def no_export_because(experiment: Experiment) -> str | None:
    """Return a clause that says why a run with a `dit` cannot be exported, or None if it can."""
    objective = experiment.parts["objective"]
    if objective.hub_form:
        return None
    return (
        f"objective {objective.name!r} controls what each token attends to in a way that the formats of masked and "
        "causal language models cannot express"
    )


def export(
    module: Any,
    tokenizer: TokenizerModel,
    experiment: Experiment,
    folder: Path,
    *,
    dtype: str | None,
    max_shard_size: str,
) -> None:
    """Write a network, its tokenizer (see `hub_tokenizer.save`) and its code to `folder`; see `Backbone`."""
    import torch

    from atat_zoo_checkpoints.hub import configuration_atat_zoo, generation_atat_zoo, modeling_atat_zoo
    from atat_zoo_checkpoints.hub.hub_tokenizer import save

    backbone: Any = experiment.parts["backbone"]
    layers, width, heads = backbone.shape
    form, length = experiment.parts["objective"].hub_form, experiment.data.length
    framed, causal, mask = is_framed(experiment.data.special_tokens), form == "causal", tokenizer.vocabulary_size
    counts = (
        []
        if module.prior is None
        else [len(module.prior.get_buffer(f"apart_{d + 1}")) for d in range(module.prior.reach)]
    )
    padding = save(tokenizer, folder, framed=framed, causal=causal, length=length + causal)
    config: Any = configuration_atat_zoo.AtatZooConfig(
        vocab_size=max(mask, padding) + 1,
        predictable=mask,
        hidden_size=width,
        num_hidden_layers=layers,
        num_attention_heads=heads,
        intermediate_size=module.blocks[0].up.out_features,
        max_position_embeddings=backbone.max_length,
        length=length,
        form=form,
        times=_times(experiment.parts["noise"], length) if backbone.reads_time else [],
        local_heads=bool(backbone.local_heads),
        tied_head=backbone.tied,
        head_bias=backbone.output_bias != "none",
        ngram_prior=counts,
        has_eos=has_eos(experiment.data.special_tokens, experiment.data.format),
        framed=framed,
        unmasking=None if causal else experiment.parts["sampler"].for_hub or {"steps": length},
        bos_token_id=mask if causal else tokenizer.bos,
        eos_token_id=tokenizer.eos,
        pad_token_id=padding,
        **({} if causal else {"mask_token_id": mask}),
    )
    config.register_for_auto_class()
    made: Any = modeling_atat_zoo.AtatZooForCausalLM if causal else modeling_atat_zoo.AtatZooForMaskedLM
    made.register_for_auto_class("AutoModelForCausalLM" if causal else "AutoModelForMaskedLM")
    network = made(config).eval()
    weights = module.state_dict()
    rows = weights["embedding.weight"]  # V + 1 rows; an additional padding token is never read
    weights["embedding.weight"] = torch.cat([rows, rows.new_zeros(config.vocab_size - len(rows), rows.shape[1])])
    network.load_state_dict(weights)
    network.to(dtype and getattr(torch, dtype)).save_pretrained(folder, max_shard_size=max_shard_size)
    if not causal:
        (folder / "custom_generate").mkdir()
        shutil.copyfile(generation_atat_zoo.__file__, folder / "custom_generate" / "generate.py")


def _times(noise: Any, length: int) -> list[float]:
    """Return diffusion times at equally spaced mask rates, which include the mask rates of a training sequence.

    If the time equals the mask rate, return only the two end points.
    """
    import torch

    number = length * -(-_TIMES // length)
    shares = torch.arange(number + 1, dtype=torch.float32) / number
    times: list[float] = noise.time_at(shares).tolist()
    return [0.0, 1.0] if times == shares.tolist() else times
