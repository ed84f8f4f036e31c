"""A model of others is damaged, and imported: its run samples, or a sentence; what lies outside is not read."""

import json
import shutil

import torch
from safetensors.torch import load_file, save_file

from atat_zoo.modeling.backbones.dit import DiTBackbone
from atat_zoo.registry import Context
from tests.attack.damage import CHANGES, damage
from tests.attack.driver import FAILED, Verdict, atat, judge, one_by_one
from tests.installing import described

SECRET = "nobody has named this text"
READER = '''
from atat_zoo.modeling.backbones.dit import DiTBackbone
from atat_zoo.registry import component, hookimpl

CONTRACT = 2

@component
class Reader(DiTBackbone):
    """A dit that reads models."""
    name, summary, refs = "reader", "reads models", ()

    @classmethod
    def reads(cls, config):
        return "layers" in config.get("model", config)

    @classmethod
    def import_table(cls, published, said):
        of = published.config.get("model", published.config)
        own = {"use": "reader", "layers": int(of["layers"]), "width": int(of["width"]), "heads": of["heads"]}
        table = {"backbone": own, "tokenizer": of["tokenizer"], "objective": of["objective"], "noise": "cosine"}
        return table | {"data": {"length": of["length"]}, "sampler": {"use": "ancestral", "steps": 2}}

    def imported(self, module, published):
        from atat_zoo_checkpoints.model_import import fill

        fill({f"backbone.{name}": each for name, each in module.backbone.named_parameters()}, {}, published)
        return self

@hookimpl
def atat_zoo_backbone():
    return [Reader]
'''
CONFIG = {"layers": 1, "width": 16, "heads": 2, "length": 16, "tokenizer": "bytes", "objective": "mdlm"}
TYPES = (torch.int8, torch.uint8, torch.bool, torch.int64, torch.float16, torch.float8_e4m3fn)


def prepare(base):
    """Write a plugin that reads models, and a model in each form."""
    plugins = base / "plugins"
    (plugins / "attack_reader").mkdir(parents=True)
    (plugins / "attack_reader" / "__init__.py").write_text(READER)
    described(plugins, "attack-reader", "1", "[atat_zoo]\nreader = attack_reader\n")
    network = DiTBackbone(layers=1, width=16, heads=2).build(Context(vocabulary_size=258, length=16))
    weights = {f"backbone.{name}": weight.detach().clone() for name, weight in network.named_parameters()}
    for form in ("whole", "split"):
        (base / form).mkdir()
        (base / form / "config.json").write_text(json.dumps({"model": CONFIG}))
    save_file(weights, base / "whole" / "model.safetensors")
    where = {name: f"{number % 2}.safetensors" for number, name in enumerate(weights)}
    for file in ("0.safetensors", "1.safetensors"):
        save_file({name: weights[name] for name in where if where[name] == file}, base / "split" / file)
    (base / "split" / "model.safetensors.index.json").write_text(json.dumps({"weight_map": where}))
    (base / "last").mkdir()
    saved = {"state_dict": weights, "hyper_parameters": {"model": CONFIG}}
    torch.save(saved | {"ema": {"shadow_params": list(weights.values())}}, base / "last" / "last.ckpt")


def change(draw, model, outside, mark):
    """Damage a model in one way; returns how."""
    path = draw.choice(sorted(model.iterdir()))
    how = draw.choice(("damage", "damage", "link", "weight"))
    if how == "link":
        path.unlink()
        path.symlink_to(outside)
    elif how == "weight" and path.suffix == ".safetensors":
        weights = load_file(path)
        name = draw.choice(sorted(weights))
        if draw.random() < 0.5:
            weights[name] = weights[name].to(draw.choice(TYPES))
        else:
            weights[name].view(-1)[0] = draw.choice((float("nan"), float("inf"), 1e30))
        save_file(weights, path)
    elif how == "weight" and path.suffix == ".ckpt":
        of = {"state_dict": draw.choice(([], None, {"a": 1})), "ema": draw.choice((None, 5, torch.ones(2)))}
        torch.save({**torch.load(path), **of}, path, pickle_protocol=draw.choice((2, 3, 4, 5)))
    elif how == "weight":
        path.write_bytes(draw.choice(CHANGES)(draw, path.read_bytes()))
    else:
        how = damage(draw, path, sorted(model.iterdir()), mark)
    return f"{path.name}: {how}"


def attack(draw, number, seed, base, work):
    name = draw.choice(("whole", "split", "last"))
    model, mark = work / "model", work / "a planted pickle was loaded"
    shutil.copytree(base / name, model)
    outside = work / "outside"
    outside.write_text(json.dumps({"model": CONFIG, "objective": SECRET}))
    story = f"\n  {change(draw, model, outside, mark)}"
    code = f"import sys; sys.path.insert(0, {str(base / 'plugins')!r}); from atat_zoo import cli; cli.main()"
    ended = atat(["import", "model/last.ckpt" if name == "last" else "model", "run"], work, code=code)
    verdict = judge(ended)
    why = verdict.why
    if not why and ended.code == 0:
        ended = atat(["sample", "run", "--seed", "1"], work, code=code)
        why = judge(ended).why or (
            "" if ended.code == 0 or "not finite" in ended.err else f"no text: {ended.err[:300]}"
        )
    texts = [path.read_text(errors="replace") for path in (work / "run").rglob("*") if path.is_file()]
    if mark.exists():
        why = "a pickle in this file is loaded, and runs what it holds"
    elif any(SECRET in text for text in (ended.out, ended.err, *texts)):
        why = "a file outside the folder of the model was read"
    return Verdict(FAILED, why + story, ended.memory) if why else verdict


KIND = one_by_one("received", 20, attack, prepare)
