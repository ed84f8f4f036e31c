"""What somebody without atat_zoo does with exports: `python -I outside.py FOLDER…` prints what came out, as JSON."""

import importlib.abc
import io
import json
import re
import sys
from contextlib import redirect_stdout
from pathlib import Path

import torch


class Blocked(importlib.abc.MetaPathFinder):
    def find_spec(self, name, path=None, target=None):
        if name.split(".")[0] == "atat_zoo":
            raise ImportError(f"{name} is imported")


sys.meta_path.insert(0, Blocked())


def answers(folder, wanted):
    """Return how far the logits of a folder are from the wanted ones, and what it writes."""
    import transformers

    causal = "CausalLM" in (folder / "config.json").read_text()
    kind = transformers.AutoModelForCausalLM if causal else transformers.AutoModelForMaskedLM
    model = kind.from_pretrained(folder, trust_remote_code=True)
    assert not model.training
    asked = {"turns": wanted["turns"]} if "turns" in wanted else {}
    with torch.no_grad():
        logits = model(wanted["ids"], **asked).logits
        alone = model(wanted["ids"][:1], **{key: value[:1] for key, value in asked.items()}).logits
    V = model.config.predictable
    found = logits[wanted["where"]]
    torch.manual_seed(5)
    more = {"max_new_tokens": 4, "do_sample": True} if causal else {"max_new_tokens": 4}
    written = model.generate(wanted["prompt"], **more)
    return model, {
        "apart": float((found[:, :V] - wanted["logits"]).abs().max()),
        "mask": float(found[:, V:].exp().max()),
        "alone": float((alone - logits[:1])[..., :V].abs().max()),
        "written": written.tolist(),
    }


def main():
    # Behind the hook, which must see what they import.
    import transformers
    from safetensors.torch import load_file

    transformers.utils.logging.disable_progress_bar()
    found = {}
    for folder in map(Path, sys.argv[1:]):
        wanted = load_file(folder.with_suffix(".safetensors"))
        model, first = answers(folder, wanted)
        again = folder.with_name(f"{folder.name}-again")
        model.save_pretrained(again, max_shard_size="20KB")
        tokenizer = transformers.AutoTokenizer.from_pretrained(folder, trust_remote_code=True)
        both = tokenizer(["We", "We häß you"], padding=True, return_tensors="pt")
        assert both["attention_mask"].sum() < both["attention_mask"].numel()
        with torch.no_grad():
            assert model(**both).logits.shape[:2] == both["input_ids"].shape
        text = tokenizer.decode(tokenizer("We häß you")["input_ids"], skip_special_tokens=True)
        files = len(list(again.glob("*.safetensors")))
        found[folder.name] = {"first": first, "again": answers(again, wanted)[1], "text": text, "files": files}
        with redirect_stdout(io.StringIO()) as printed:
            for code in re.findall(r"```python\n(.*?)```", (folder / "README.md").read_text("utf-8"), re.DOTALL):
                exec(code, {"__name__": "card"})
        found[folder.name]["card"] = printed.getvalue()
    print(json.dumps(found))


main()
