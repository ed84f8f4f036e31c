"""A lower bound on the time of a training step on a GPU that is not available, from the step's bytes and FLOPs.

The operations are those of a real step: `owt-small/mdlm` runs on tensors without data. Torch splits the compiled parts
into forward and backward as for a GPU, and one rule fuses their pointwise operations and reductions as Inductor does:
all operations between two products form one kernel, which reads its inputs once and writes the values that other
kernels read. An operation takes the longer of two times: its bytes divided by `--share` of the bandwidth, and its FLOPs
divided by the rate that dense products reach. Launches, waits and communication are not included, so the result is a
bound, not a forecast.
"""

from __future__ import annotations

import argparse
import contextlib
import functools
import sys
from collections import defaultdict
from typing import TYPE_CHECKING, Any
from unittest import mock

import attrs
import torch
from torch import Tensor
from torch._functorch.aot_autograd import aot_function, make_boxed_func
from torch._functorch.partitioners import min_cut_rematerialization_partition
from torch._inductor.decomposition import select_decomp_table
from torch._subclasses.fake_tensor import FakeTensorMode
from torch.fx import GraphModule
from torch.nn.utils.stateless import _reparametrize_module
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves

from atat_zoo.diffusion import attention, chunks
from atat_zoo.diffusion.dropout import Dropout
from atat_zoo.experiment import load
from atat_zoo.modeling.objectives import Batch, assemble
from atat_zoo.registry import Context
from atat_zoo.training.cost import PEAKS
from benchmarks.cuda_autocast import cuda_autocast
from benchmarks.kernels import Work, flops_of, handed, kernels, moves_nothing, size

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

aten = torch.ops.aten
#: Memory bandwidth of GPUs in TB/s, from NVIDIA's datasheets; the names are those of `utilisation`.
BANDWIDTHS = {
    "A100-SXM4-80GB": 2.039, "H100 80GB HBM3": 3.35, "H100 PCIe": 2.0, "H100 NVL": 3.9, "H200": 4.8, "H200 NVL": 4.8,
}  # fmt: skip
#: The share of the bandwidth that kernels reach, and the TFLOP/s that dense products reach.
SHARE, PRODUCTS = 0.8, 620.0


@attrs.frozen
class Device:
    """The rates of a GPU: bytes per second, FLOP/s of dense products, and the peak from the datasheet."""

    bandwidth: float
    products: float
    peak: float

    @classmethod
    def named(
        cls, name: str, share: float = SHARE, products: float = PRODUCTS, bandwidth: float | None = None
    ) -> Device:
        """Return a GPU by name, with its bandwidth in TB/s, the share that kernels reach, and TFLOP/s of products."""
        return cls(1e12 * share * (bandwidth or BANDWIDTHS[name]), 1e12 * products, 1e12 * PEAKS[name])

    def seconds(self, work: Work) -> float:
        """Return the seconds that a kernel takes."""
        return max(work.bytes / self.bandwidth, work.flops / self.products)


class Stream(TorchDispatchMode):
    """A mode that records operations, with expected values for data-dependent sizes: half of the tokens are masked."""

    def __init__(self, masked: int, mixed: bool) -> None:
        super().__init__()
        self.masked, self.mixed, self.where, self.work = masked, mixed, "", list[Work]()
        self.kept: dict[str, int] = {}  # bytes kept from forward to backward by each compiled part

    @contextlib.contextmanager
    def part(self, where: str) -> Iterator[None]:
        """Set the name of the part of the step that follows."""
        before, self.where = self.where, where
        yield
        self.where = before

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        kwargs = kwargs or {}
        if func is aten._local_scalar_dense.default:
            return self.masked
        if func is aten.nonzero.default:
            return torch.empty(self.masked, args[0].dim(), dtype=torch.int64)
        if func is aten.index.Tensor and any(_is_mask(index) for index in args[1]):
            dims = sum(index.dim() for index in args[1] if index is not None)
            args = (args[0], [torch.empty(self.masked, dtype=torch.int64) for _ in range(dims)])
        if func is aten.masked_select.default:
            return args[0].new_empty(self.masked)
        out = func(*args, **kwargs)
        inputs, outputs = tree_leaves((args, kwargs)), tree_leaves(out)
        if self.where and not moves_nothing(func):
            # Tensors written in place are read and written; a fused optimizer could scale gradients, but does not here.
            written = [
                a
                for a, s in zip(args, func._schema.arguments, strict=False)
                if s.alias_info and s.alias_info.is_write and s.name != "grads"
            ]
            moved = size(inputs) + (size(tree_leaves(written)) or size(outputs))
            self.work.append(Work(str(func), self.where, moved, flops_of(func, args, kwargs, out)))
        return out


def _is_mask(index: Any) -> bool:
    return index is not None and index.dtype is torch.bool


@attrs.frozen(kw_only=True)
class Step:
    """A training step on some rows of text."""

    overrides: tuple[str, ...] = ()
    rows: int = 32
    length: int = 1024
    vocabulary_size: int = 50_257
    compiled: bool = True
    mixed: bool = False

    def work(self) -> tuple[list[Work], float, dict[str, int]]:
        """Return the work of the kernels, the model's FLOPs and the bytes kept for the backward pass.

        The FLOPs are those that the model needs according to `utilisation`. The bytes are by compiled part, and include
        the weights in bf16.
        """
        experiment = load("owt-small/mdlm", self.overrides)
        stream = Stream(self.rows * self.length // 2, self.mixed)
        # Compute logits for as many positions at once as on a GPU.
        as_there = mock.patch.object(chunks, "LOGITS", chunks.ON_ACCELERATOR)
        with as_there, FakeTensorMode(allow_non_fake_inputs=True):
            module: Any = assemble(
                experiment, Context(vocabulary_size=self.vocabulary_size, length=self.length)
            ).train()
            optimizer = experiment.parts["optimizer"].build(module)
            if self.compiled:
                backbone: Any = module.backbone
                drops = [layer for layer in backbone.modules() if isinstance(layer, Dropout)]
                backbone.forward = _counting(stream, backbone.forward, backbone, drops)
                module.compile_losses = functools.partial(_counting, stream, module=backbone.head)
            text = torch.empty(self.rows, self.length, dtype=torch.int64)
            batch = Batch(
                tokens=text,
                maskable=torch.empty(text.shape, dtype=torch.bool),
                index=torch.empty(self.rows, dtype=torch.int64),
                mean_maskable=torch.empty(()),
                progress=0.5,
            )
            with stream:
                for _ in range(2):  # the first step creates the optimizer's state
                    stream.work.clear()
                    with stream.part("forward and loss"), cuda_autocast():
                        loss = module.loss(batch)["loss"]
                    with stream.part("backward"):
                        loss.backward()
                    with stream.part("optimizer"):
                        optimizer.step()
                    optimizer.zero_grad()
        spec: Any = experiment.parts["backbone"]
        needed = 3 * spec.flops(self.vocabulary_size, self.rows, self.length, self.rows * self.length / 2)
        return stream.work, needed, stream.kept


def _counting(stream: Stream, function: Any, module: Any, layers: Sequence[Dropout] = ()) -> Any:
    """Return a function of the module's weights, compiled only as far as counting needs."""

    def compiler(where: str) -> Any:
        def compile_graph(graph: GraphModule, _: Any) -> Any:
            found = kernels(graph, where, stream.mixed)

            def run(*args: Any) -> Any:
                stream.work += found
                with stream.part(""):
                    return graph.forward(*args)

            return make_boxed_func(run)

        return compile_graph

    def of_weights(weights: dict[str, Tensor], keys: list[Tensor | None], *args: Any) -> Any:
        for layer, its in zip(layers, keys, strict=True):
            layer.keys = its
        compiling = mock.patch.object(torch.compiler, "is_compiling", return_value=True)
        autocast = torch.autocast("cpu", torch.bfloat16)
        with stream.part(""), _reparametrize_module(module, weights), compiling, autocast:
            return function(*args)

    compilers = compiler("compiled, forward"), compiler("compiled, backward")

    def partition(*args: Any, num_fwd_outputs: int, **options: Any) -> Any:
        cut = min_cut_rematerialization_partition(*args, num_fwd_outputs=num_fwd_outputs, **options)
        stream.kept[type(module).__name__] = handed(cut[0], num_fwd_outputs)
        return cut

    @functools.cache
    def traced(shapes: Any) -> Any:
        return aot_function(of_weights, *compilers, partition, select_decomp_table())

    def run(*args: Any) -> Any:
        weights = {**dict(module.named_parameters()), **dict(module.named_buffers())}
        shapes = tuple(arg.shape for arg in tree_leaves(args) if arg is not None)
        with stream.part(""):
            return traced(shapes)(weights, [layer.keys for layer in layers], *args)

    return run


def main(words: Sequence[str] | None = None) -> None:
    """Print the step's parts, its longest kernels, and the share of the GPU's peak."""
    parser = argparse.ArgumentParser(prog="roofline")
    parser.add_argument("--gpu", default="H100 80GB HBM3", choices=sorted(BANDWIDTHS))
    parser.add_argument("--bandwidth", type=float, help="memory bandwidth in TB/s (default: the GPU's)")
    parser.add_argument("--share", type=float, default=SHARE, help="share of the bandwidth that kernels reach")
    parser.add_argument("--products", type=float, default=PRODUCTS, help="TFLOP/s that dense products reach")
    parser.add_argument(
        "--mixed",
        action="store_true",
        help="compute sums over tokens in row-wise kernels, as torch 2.10 and later do",
    )
    parser.add_argument("--eager", action="store_true", help="do not compile the model")
    parser.add_argument("--top", type=int, default=10, help="number of kernels to list")
    parser.add_argument("overrides", nargs="*", help="overrides of owt-small/mdlm")
    given = parser.parse_args(sys.argv[2:] if words is None else words)
    device = Device.named(given.gpu, given.share, given.products, given.bandwidth)
    with mock.patch.object(attention, "MANY", sys.maxsize):  # the fused kernel, as on a GPU
        work, needed, kept = Step(overrides=tuple(given.overrides), compiled=not given.eager, mixed=given.mixed).work()
    parts: dict[str, list[Work]] = defaultdict(list)
    kinds: dict[tuple[str, str], list[Work]] = defaultdict(list)
    for one in work:
        parts[one.where].append(one)
        kinds[one.where, one.name].append(one)
    for where, of_part in parts.items():
        seconds = sum(map(device.seconds, of_part))
        moved, flops = sum(w.bytes for w in of_part), sum(w.flops for w in of_part)
        sums = f"{moved / 1e9:7.1f} GB {flops / 1e12:6.2f} TFLOP {1e3 * seconds:7.2f} ms"
        print(f"{where:20} {len(of_part):5} kernels {sums}")
    longest = sorted(kinds.items(), key=lambda item: -sum(map(device.seconds, item[1])))
    for (where, name), of_kind in longest[: given.top]:
        seconds = sum(map(device.seconds, of_kind))
        print(f"  {1e3 * seconds:6.2f} ms {len(of_kind):4} × {name[:90]} ({where})")
    if kept:
        by = ", ".join(f"{nbytes / 1e9:.2f} GB by {part}" for part, nbytes in kept.items())
        print(f"kept from forward to backward: {by}")
    whole = sum(map(device.seconds, work))
    print(f"a step: {1e3 * whole:.1f} ms, {needed / whole / device.peak:.1%} of the peak of {given.gpu}")
