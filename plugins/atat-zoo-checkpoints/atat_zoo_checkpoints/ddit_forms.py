"""How a model's config.json, or the settings in a checkpoint of MDLM, BD3LM or Duo, map to the backbone `ddit`.

The formats are those of louaaron/Score-Entropy-Discrete-Diffusion, kuleshov-group/mdlm, kuleshov-group/bd3lms,
kuleshov-group/setdlms and s-sahoo/duo. MDLM, BD3LM and Duo put BOS and EOS around each sequence and EOS after each
document; SEDD, and SetDLM on OpenWebText, only put EOS after each document.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import attrs

from atat_zoo.system.errors import UserError, clip
from atat_zoo_checkpoints.published_tokenizer import Text, text_of

if TYPE_CHECKING:
    from atat_zoo.experiment import Experiment
    from atat_zoo_checkpoints.published_model import Published

_SETTINGS = "settings"
# Keys in config.json on the hub, by field of `Shape`.
_HUB = {"layers": "n_blocks", "width": "hidden_dim", "heads": "n_heads", "condition": "cond_dim", "rows": "vocab_size"}
_HUB |= {"length": "model_length"}
# Keys in Hydra's [model] table.
_HYDRA = {"layers": "n_blocks", "width": "hidden_size", "heads": "n_heads", "condition": "cond_dim", "length": "length"}
# Keys in SetDLM's backbone_config.
_SETDLM = {"layers": "num_layers", "width": "hidden_size", "heads": "n_heads", "rows": "vocab_size"}
_SETDLM_NETWORK, _SETDLM_NOISE = "src.backbone.dit.DIT", "src.noise_schedule.noise_schedules."
# Forms that were published for only one objective, which was published in no other form.
_ALONE = {"sedd": "sedd", "setdlm": "set_diffusion"}
_NO_MASK = "uses uniform noise without a mask token and is not a masked diffusion model; choose a different model"


@attrs.frozen
class Shape:
    """Settings of a published model, in one format for all forms of `DDiTBackbone`; `objective` names a component."""

    form: str
    objective: str
    layers: int
    width: int
    heads: int
    condition: int
    rows: int | None
    length: int
    time_conditioning: bool
    tokenizer: str | None = None
    special: str = "both"
    by_document: bool = False  # one sequence per document, as in LM1B
    block: int = 0
    steps: int = 0  # T in D3PM
    clipped: bool = False
    eps: float = 1e-3
    window: tuple[float, float] | None = None  # SetDLM only: `window` and `power` of the position sets `staggered`
    mask_id: int | None = None
    bos_id: int | None = None


def form_of(config: dict[str, Any]) -> str | None:
    """Return the format of settings: mdlm, bd3lm, duo, sedd, setdlm or (in a checkpoint) settings; None if unknown."""
    kind = str(config.get("model_type", "")).lower()
    if kind in ("mdlm", "bd3lm", "duo"):
        return "setdlm" if "backbone_config" in config else kind
    inner = config.get("config", config)
    of_network = inner.get("model") if isinstance(inner, dict) else None
    if isinstance(of_network, dict) and of_network.get("type") == "ddit":
        return _SETTINGS if "config" in config else "sedd" if "graph" in config else None
    return None


def table_of(published: Published, said: dict[str, Any]) -> dict[str, Any]:
    """Return the tables of a model's experiment (see `Backbone`), or raise a `UserError` if it is not supported."""
    form, config = form_of(published.config), published.config
    if form == "duo":
        raise UserError(f"{published.model} {_NO_MASK}")
    read = {"mdlm": of_hub, "bd3lm": of_hub, "sedd": _of_sedd, "setdlm": of_setdlm, _SETTINGS: _of_training}
    if form is None:
        raise UserError(f"{published.model} does not have the settings of a ddit; leave backbone.use out")
    shape = read[form](config, published.model)
    text = text_of(published, said, shape.tokenizer)
    backbone = {
        "use": "ddit",
        "form": shape.form,
        "layers": shape.layers,
        "width": shape.width,
        "heads": shape.heads,
        "condition": shape.condition,
        "time_conditioning": shape.time_conditioning,
        "max_length": shape.length,
        "clipped": shape.clipped,
        "eps": shape.eps,
    }
    # A checkpoint does not state the rows: if the tokenizer has its own mask, the embedding has no extra row.
    rows = shape.rows or (text.size if text.mask is not None else None)
    backbone |= {"rows": rows} if rows else {}
    backbone |= _mask_of(shape, text)
    # The start token of an autoregressive model is the BOS of its sequence.
    starts = shape.objective == "autoregressive"
    special = "document" if starts else shape.special
    table = {
        "backbone": backbone,
        "tokenizer": text.table,
        "objective": {"use": shape.objective},
        "data": {
            "length": shape.length,
            "special_tokens": special if text.framed else "none",
            "packing": "document" if shape.by_document else "packed",
        },
    }
    if starts:
        return table | {"sampler": {"use": "left_to_right"}}
    if shape.window:
        return table | _in_sets(shape, text)
    table["noise"] = {"use": "log_linear", "eps": shape.eps}
    if shape.block:
        table["objective"]["block_size"] = shape.block
        return table | {"sampler": {"use": "semi_autoregressive"}}
    if shape.steps:
        table["objective"]["steps"] = shape.steps
    return table


def _mask_of(shape: Shape, text: Text) -> dict[str, Any]:
    """Return a table with the mask's id if it is known; for an autoregressive model, with the id of BOS."""
    if shape.objective == "autoregressive":
        if text.bos is None:
            raise UserError("every text starts with BOS, but the tokenizer has none; use another: tokenizer.path=FILE")
        return {"mask_id": text.bos}
    known = text.mask if shape.mask_id is None else shape.mask_id
    return {"mask_id": known} if known is not None else {}


def _in_sets(shape: Shape, text: Text) -> dict[str, Any]:
    """Return the experiment tables for a SetDLM, whose sequences follow a BOS and are decoded in a sliding window."""
    start, length = text.bos if shape.bos_id is None else shape.bos_id, shape.length - 1
    window, power = shape.window or (1.0, 1.0)
    if start is None:
        raise UserError("every text follows a BOS, but the tokenizer has none; use another: tokenizer.path=FILE")
    tables = {
        "objective": {"use": "set_diffusion", "start": start},
        "position_sets": {"use": "staggered", "sets": length, "window": window, "power": power},
        "data": {"length": length, "special_tokens": "document" if text.framed else "none", "packing": "packed"},
    }
    if window < 1:  # with a window of 1, the order is random
        size = round(length * window / (1 - window))
        tables["sampler"] = {"use": "semi_autoregressive", "block_size": min(max(1, size), length)}
    return tables


def _window_of(noise: dict[str, Any], length: int) -> tuple[float, float]:
    """Return b and k of SetDLM's `StaggeredNoise`, which are `window` and `power` of the position sets `staggered`."""
    desired, most = float(noise["desired_block_size"]), float(noise.get("max_block_size", 1))
    area, b, k = desired / (2 * length), noise.get("b"), noise.get("k")
    if k is not None:
        b = area * (1 + 1 / float(k)) if k else 0.0
    elif b is None:
        b = 2 * area if desired in (1, most) else most / (length + most - 1)
    if not 0 < area < float(b) <= 1:
        raise UserError(f"noise_config gives no valid window: b would be {float(b):g}; download the model again")
    return float(f"{float(b):.6g}"), float(f"{area / (float(b) - area):.6g}")


def of_hub(config: dict[str, Any], model: str) -> Shape:
    """Return the `Shape` from the config.json of an MDLM or BD3LM model, or raise a `UserError` if not supported."""
    form = str(config["model_type"]).lower()
    blocks = form == "bd3lm"
    if config.get("causal") or not config.get("adaln", True):
        raise UserError(f"{model}: a causal bd3lm, or one without adaln, is not supported; choose a different model")
    size = int(config["block_size"]) if blocks and config.get("cross_attn", True) else 0
    return Shape(
        form=form,
        objective="block" if size else "mdlm",
        **dict[str, Any]((name, int(config[key])) for name, key in _HUB.items()),
        time_conditioning=bool(config.get("time_conditioning")),
        tokenizer=_by_rows(int(config["vocab_size"])),
        block=size,
        clipped=blocks and bool(config.get("var_min", True)),
    )


def of_setdlm(config: dict[str, Any], model: str) -> Shape:
    """Return the `Shape` from the config.json of a SetDLM model, or raise a `UserError` if not supported."""
    network, noise = config["backbone_config"], config.get("noise_config") or {}
    kind = (config.get("architectures") or [None])[0]
    if kind != "SetDLM":
        raise UserError(f"{model}: the class {clip(str(kind))} is not supported, only SetDLM; choose a different model")
    if _class_of(network) != "DIT":
        raise UserError(
            f"{model} has the network {clip(repr(network.get('_target_')))} instead of a ddit; choose a different model"
        )
    if network.get("causal_attention") or not config.get("keep_clean_bos"):
        raise UserError(f"{model}: a SetDLM that is causal or masks its BOS is not supported; choose a different model")
    length, rows = int(config["length"]), int(network["vocab_size"])
    sizes = (config["block_size"], noise.get("block_size", length), noise.get("length", length))
    if _class_of(noise) not in ("StaggeredNoise", "LinearNoise") or any(int(size) != length for size in sizes):
        raise UserError(f"{model} decodes in blocks or has an unsupported noise; choose a different model")
    return Shape(
        form="setdlm",
        objective="set_diffusion",
        **dict[str, Any]((name, int(network[key])) for name, key in _SETDLM.items()),
        condition=int(network["cond_dim"]) if network.get("adaln") else 0,
        length=length,
        time_conditioning=False,
        tokenizer=config.get("tokenizer_name") or _by_rows(rows),
        special="document",
        window=(1.0, 1.0) if _class_of(noise) == "LinearNoise" else _window_of(noise, length),
        mask_id=config.get("mask_token_id"),
        bos_id=config.get("bos_token_id"),
    )


def _class_of(table: dict[str, Any]) -> str:
    """Return the class name from a Hydra table."""
    return str(table.get("_target_")).rsplit(".", 1)[-1]


def _of_sedd(config: dict[str, Any], model: str) -> Shape:
    """Return the shape from the config.json of a SEDD model."""
    if config["graph"]["type"] != "absorb":
        raise UserError(f"{model} {_NO_MASK}")
    if not config["model"].get("scale_by_sigma"):
        raise UserError(f"{model}: scale_by_sigma = false is not supported; choose a different model")
    rows = int(config["tokens"]) + 1
    return _of_network(
        config["model"], form="sedd", objective="sedd", rows=rows, time_conditioning=True,
        tokenizer=_by_rows(rows), special="document",
    )  # fmt: skip


def _of_training(settings: dict[str, Any], model: str) -> Shape:
    """Return the shape from the settings in a checkpoint of MDLM, BD3LM or Duo."""
    config = settings["config"]
    algorithm = config.get("algo") or config  # MDLM has no `algo` table
    name, of = algorithm.get("name"), str(algorithm["parameterization"])
    if str(name).startswith(("duo", "distillation", "ot-finetune")):
        raise UserError(f"{model} {_NO_MASK}")
    if algorithm["backbone"] not in ("dit", "ar"):
        raise UserError(
            f"{model} has the network {clip(repr(algorithm['backbone']))} instead of a ddit; choose a different model"
        )
    objectives = {
        "subs": "mdlm",
        "sedd": "sedd",
        "score": "sedd",
        "d3pm": "d3pm",
        "mean": "d3pm",
        "ar": "autoregressive",
    }
    objective = objectives.get(of)
    if objective is None:
        raise UserError(f"{model}: the parameterization {clip(repr(of))} is not supported; choose a different model")
    timed, noise = bool(algorithm.get("time_conditioning")), config.get("noise") or {}
    if timed and (config["training"].get("change_of_variables") or not str(noise.get("type")).startswith("log")):
        raise UserError(f"{model} is conditioned on σ of a noise that is not log-linear; choose a different model")
    blocks = bool(algorithm.get("cross_attn"))
    data, rows = config.get("data") or {}, None
    causal = objective == "autoregressive"
    if causal and (config["model"].get("adaln")):
        raise UserError(f"{model}: a causal network with adaln is not supported; choose a different model")
    return _of_network(
        config["model"],
        form="bd3lm" if blocks else "mdlm",
        objective="block" if blocks else objective if not algorithm.get("subs_masking") else "mdlm",
        rows=rows,
        time_conditioning=timed and not causal,
        tokenizer=data.get("tokenizer_name_or_path"),
        by_document=data.get("wrap") is False,
        block=_block(config) if blocks else 0,
        steps=int(algorithm.get("T") or 0) if objective == "d3pm" else 0,
        clipped=bool(algorithm.get("var_min")),
        eps=float(noise.get("eps") or 1e-3),
        condition=0 if causal else int(config["model"]["cond_dim"]),
    )


def _block(config: dict[str, Any]) -> int:
    """Return the block size; the default in the settings is a reference to the sequence length."""
    size = config["block_size"]
    return int(config["model"]["length"] if str(size).startswith("${") else size)


def _of_network(network: dict[str, Any], **known: Any) -> Shape:
    """Return a shape with the sizes from Hydra's [model] table."""
    return Shape(**{name: int(network[key]) for name, key in _HYDRA.items()} | known)


def unpublished(spec: Any, experiment: Experiment) -> str | None:
    """Return a clause that says why no config.json for such a network was published, or None if one was."""
    objective = experiment.parts["objective"]
    alone = _ALONE.get(spec.form)
    fits = objective.name not in ("d3pm", *_ALONE.values()) if alone is None else objective.name == alone
    if fits and (spec.condition or spec.form == "setdlm"):
        return None
    return f"no published {spec.form} config.json has objective {objective.name!r} and condition = {spec.condition}"


def config_of(spec: Any, rows: int, experiment: Experiment) -> dict[str, Any]:
    """Return the content of config.json, in the published format, for a network with `rows` embedding rows.

    Raises:
        UserError: if no config.json for such a network was published.
    """
    objective = experiment.parts["objective"]
    if why := unpublished(spec, experiment):
        raise UserError(f"backbone.form: {why}; use the run folder instead of an export")
    own = {"layers": spec.layers, "width": spec.width, "heads": spec.heads, "condition": spec.condition}
    own |= {"rows": rows, "length": spec.max_length}
    if spec.form == "setdlm":
        return _setdlm_config(spec, own, experiment)
    if spec.form == "sedd":
        network = {key: own[name] for name, key in _HYDRA.items()}
        network |= {"type": "ddit", "scale_by_sigma": True}
        return {"tokens": rows - 1, "graph": {"type": "absorb"}, "noise": {"type": "loglinear"}, "model": network}
    config: dict[str, Any] = {"model_type": spec.form, **{key: own[name] for name, key in _HUB.items()}}
    config["time_conditioning"] = spec.time_conditioning
    blocks: dict[str, Any] = {
        "cross_attn": objective.masks_attention,
        "block_size": getattr(objective, "block_size", spec.max_length),
    }
    return config | ({**blocks, "var_min": spec.clipped, "adaln": True} if spec.form == "bd3lm" else {})


def _setdlm_config(spec: Any, own: dict[str, Any], experiment: Experiment) -> dict[str, Any]:
    """Return a complete config.json for `SetDLM.from_pretrained`, because its defaults do not match the network."""
    length, sets = own["length"], experiment.parts["position_sets"]
    shared = {"length": length, "block_size": length, "attn_backend": "sdpa"}
    network = {"_target_": _SETDLM_NETWORK, **{key: own[name] for name, key in _SETDLM.items()}, **shared}
    network |= {"adaln": bool(spec.condition), "cond_dim": spec.condition or 128, "causal_attention": False}
    network |= {"dropout": 0.0, "tie_word_embeddings": False, "pretrained_model_name_or_path": None}
    noise: dict[str, Any] = {"_target_": f"{_SETDLM_NOISE}LinearNoise"}
    if (b := getattr(sets, "window", 1.0) or 1 / length) < 1:  # other position sets do not have a window
        noise = {"_target_": f"{_SETDLM_NOISE}StaggeredNoise", "length": length, "block_size": length}
        noise |= {
            "desired_block_size": 2 * length * b * sets.power / (sets.power + 1),
            "max_block_size": length,
            "b": b,
        }
    config: dict[str, Any] = {
        "model_type": "bd3lm",
        "architectures": ["SetDLM"],
        "backbone_config": network,
        "noise_config": noise,
    }
    config |= {**shared, "eval_block_size": length, "keep_clean_bos": True, "vocab_size": own["rows"]}
    config["bos_token_id"] = experiment.parts["objective"].start
    return config | {"mask_token_id": own["rows"] - 1 if spec.mask_id is None else spec.mask_id}


def _by_rows(rows: int) -> str | None:
    """Return the name of the tokenizer for a published model with `rows` embedding rows, or None if unknown."""
    return {50258: "gpt2", 30522: "bert-base-uncased"}.get(rows)
