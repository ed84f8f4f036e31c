"""What the parts share: sizes, the device, a text of random words, and networks and training runs of owt-small."""

from __future__ import annotations

import gc
import sys
import time
from functools import cached_property
from typing import TYPE_CHECKING, Any

import attrs
import numpy as np
import torch

from atat_zoo.experiment import load
from atat_zoo.modeling.objectives import assemble
from atat_zoo.registry import Context
from atat_zoo.system.environment import describe
from atat_zoo.training import train

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence
    from pathlib import Path

    from atat_zoo.experiment import Experiment
    from atat_zoo.training import Result


@attrs.frozen
class Size:
    """The sizes, by default those of owt-small with 32 rows at once.

    Attributes:
        steps: Steps of a measured training run; the first `warm` steps are not counted, because they compile.
        texts: Texts that each sampler generates at once, with `text_length` tokens, in `sampling_steps` if it has
        steps. small: Overrides for the networks with which a GPU is compared with the CPU. backend: Backend of
        torch.compile. most: Maximum number of steps of the final training run.
    """

    vocabulary: int = 50_257
    sequences: int = 1024
    length: int = 1024
    rows: int = 32
    steps: int = 60
    warm: int = 20
    texts: int = 64
    text_length: int = 256
    sampling_steps: int = 64
    overrides: tuple[str, ...] = ("train.device=gpu",)
    small: tuple[str, ...] = ("backbone.preset=nano",)
    backend: str = "inductor"
    most: int = 1_000_000


#: Compiled only to a graph, because a C++ compiler would take minutes.
NANO = ("backbone.layers=1", "backbone.width=32", "backbone.heads=2")
SMALL = Size(
    vocabulary=200,
    sequences=64,
    length=32,
    rows=4,
    steps=6,
    warm=2,
    texts=2,
    text_length=16,
    sampling_steps=4,
    overrides=("train.device=cpu", "train.compile=false", "data.workers=0", "train.peak_tflops=0.1", *NANO),
    small=NANO,
    backend="aot_eager",
    most=20,
)


def moved(value: Any, device: str) -> Any:
    """Return a tensor, a module or a batch on a device."""
    if attrs.has(type(value)):
        tensors = {name: moved(each, device) for name, each in attrs.asdict(value, recurse=False).items()}
        return attrs.evolve(value, **tensors)
    return value.to(device) if isinstance(value, torch.Tensor | torch.nn.Module) else value


@attrs.define(slots=False)
class Setting:
    """The setting in which the parts are measured.

    Attributes:
        tests: Paths of the tests that need a GPU.
        text: Overrides with a text and its tokenizer for the final training run; without them, random words are used.
        move: Function that moves a tensor, a module or a batch to the device.
        figures: Figures of the finished parts, by part and name.
        end: Time limit on the monotonic clock.
    """

    size: Size
    folder: Path
    device: str
    tests: Sequence[str] = ()
    text: Sequence[str] = ()
    move: Callable[[Any], Any] = attrs.field(default=attrs.Factory(lambda s: lambda v: moved(v, s.device), True))
    figures: dict[str, dict[str, float]] = attrs.field(factory=dict)
    end: float = float("inf")

    @property
    def gpu(self) -> bool:
        """Whether the device is an available GPU."""
        return self.device != "cpu" and torch.cuda.is_available()

    @property
    def gpu_name(self) -> str:
        """The driver's name of the GPU without the manufacturer; without a GPU, the name of the assumed one."""
        name = torch.cuda.get_device_name() if self.gpu else "H100 80GB HBM3"
        return name.removeprefix("NVIDIA ").strip()

    def synchronize(self) -> float:
        """Return the time once the device has finished all queued work."""
        if self.gpu:
            torch.cuda.synchronize()
        return time.perf_counter()

    def tidy(self) -> None:
        """Free the memory that a part has left; end the program if a part has broken the GPU."""
        torch._dynamo.reset()
        gc.collect()
        try:
            self.synchronize()
        except RuntimeError as error:
            sys.exit(f"the GPU no longer responds to this process; run the command again to continue ({error})")
        if self.gpu:
            torch.cuda.empty_cache()

    @cached_property
    def words(self) -> list[str]:
        """Overrides that select a text of random words and its tokenizer, which are written on first use."""
        return words_in(self.folder, self.size)

    def experiment(self, name: str, *more: str) -> Experiment:
        """Return a variant of owt-small with `size.rows` rows per step."""
        size = self.size
        settings = [f"data.root={self.folder / 'data'}", "data.lanes=4", "data.special_tokens=none"]
        settings += [f"data.length={size.length}", f"train.batch_size={size.rows}"]
        settings += [f"train.microbatch_size={size.rows}", "train.ema_decay=0.0", "train.evaluate_every=0"]
        settings += [
            "schedule.warmup_steps=1",
            "evaluation.sequences=4",
            "evaluation.mask_samples=1",
            "evaluation.samples=0",
        ]
        settings += [f"train.steps={size.steps}", f"train.save_every={size.steps}", "train.log_every=2"]
        if name.endswith(("atat", "sets")):  # their turns are of the full length
            settings += [f"{kind}.stride={max(1, size.length // 4)}" for kind in ("position_sets", "sampler")]
        return load(f"owt-small/{name}", [*settings, *size.overrides, *more])

    def trained(self, experiment: Experiment, name: str, *callbacks: Any) -> Result:
        """Train in a folder with this name; raise an interruption that Composer caught again."""
        result = train(experiment, self.folder / name, overwrite=True, callbacks=callbacks)
        if not result.finished:
            raise KeyboardInterrupt
        return result

    def network(self, experiment: Experiment, vocabulary: int) -> Any:
        """Return an objective's module on the CPU, with weights that are drawn so that no branch is zero."""
        module = assemble(experiment, Context(vocabulary_size=vocabulary, length=experiment.data.length))
        generator = torch.Generator().manual_seed(0)
        for parameter in module.parameters():
            if parameter.ndim > 1:
                parameter.data = 0.03 * torch.randn(parameter.shape, generator=generator)
        return module


def words_in(folder: Path, size: Size) -> list[str]:
    """Write a text of random words and its tokenizer, and return the overrides that select them."""
    from tokenizers import Tokenizer, models, pre_tokenizers

    words = {"[EOS]": 0} | {f"w{i}": i for i in range(1, size.vocabulary)}
    tokenizer = Tokenizer(models.WordLevel(words, unk_token="w1"))
    tokenizer.pre_tokenizer = pre_tokenizers.WhitespaceSplit()
    tokenizer.save(str(folder / "tokenizer.json"))
    rng, named = np.random.default_rng(0), []
    for split, rows in (("train", size.sequences), ("validation", 16)):
        # Frequencies as in text; each line is as long as a sequence.
        drawn = rng.zipf(1.2, (rows, size.length)) % (size.vocabulary - 1) + 1
        (folder / f"{split}.txt").write_text("\n".join(" ".join(f"w{i}" for i in row) for row in drawn) + "\n")
        named.append(f'corpus.{split}=["{folder / split}.txt"]')
    named += ["corpus.document=line", f"tokenizer.path={folder / 'tokenizer.json'}"]
    return [*named, "tokenizer.bos=[EOS]", "tokenizer.eos=[EOS]"]


def heading(setting: Setting) -> dict[str, str]:
    """Return the conditions under which every part is measured, in words."""
    said, size = describe([]), setting.size
    device = torch.cuda.get_device_name() if setting.gpu else said["machine"]["processor"]
    at_once = f"{size.rows} sequences of {size.length} tokens, vocabulary size {size.vocabulary:,}"
    return {
        "device": device,
        "versions": ", ".join(f"{name} {said['packages'][name]}" for name in ("torch", "mosaicml")),
        "a step": f"{at_once}; {', '.join(size.overrides)}",
    }


def revision() -> str:
    """Return the commit of the working tree, and whether the tree has changes."""
    git = describe([])["git"]
    return f"{git['commit'][:9]}{' with changes' * git['changed']}" if git else "no commit"
