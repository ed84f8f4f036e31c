"""What a training step would take on a GPU that nobody has seen: the bytes and FLOPs of all that it does.

The operations are the real ones: a step of `owt-small/mdlm` runs on tensors without data. What is compiled is cut into
forward and backward by torch as for a GPU, and its pointwise operations and reductions are joined here by one rule, as
Inductor joins them: those between two products are one kernel, which reads its inputs once and writes what others read.
An operation takes the longer of its bytes over `--share` of the bandwidth and its FLOPs over what dense products reach.
Launches, waits and communication cost nothing here: a bound, not a forecast.
"""

from __future__ import annotations

import argparse
import contextlib
import functools
import operator
import sys
from collections import defaultdict
from typing import TYPE_CHECKING, Any
from unittest import mock

import attrs
import networkx
import torch
from torch import Tensor
from torch._functorch.aot_autograd import aot_function, make_boxed_func
from torch._functorch.partitioners import min_cut_rematerialization_partition
from torch._inductor.decomposition import select_decomp_table
from torch._subclasses.fake_tensor import FakeTensorMode
from torch.fx import GraphModule, Node
from torch.nn.utils.stateless import _reparametrize_module
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves, tree_map
from torch.utils.flop_counter import flop_registry

from atat_zoo.diffusion.dropout import Dropout
from atat_zoo.experiment import load
from atat_zoo.objectives import Batch, chunks
from atat_zoo.objectives.assembly import assemble
from atat_zoo.registry import Context
from atat_zoo.training.utilisation import PEAKS
from benchmarks.cuda_autocast import cuda_autocast

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Sequence

aten = torch.ops.aten
#: TB/s of a GPU's memory, by NVIDIA's datasheets; `utilisation` has their names.
BANDWIDTHS = {
    "A100-SXM4-80GB": 2.039, "H100 80GB HBM3": 3.35, "H100 PCIe": 2.0, "H100 NVL": 3.9, "H200": 4.8, "H200 NVL": 4.8,
}  # fmt: skip
#: Of the bandwidth the share that kernels reach, and the TFLOP/s that dense products reach.
SHARE, PRODUCTS = 0.8, 620.0
#: Operations of a compiled graph that move nothing.
VIEWS = {
    aten.view.default, aten.permute.default, aten.t.default, aten.transpose.int, aten.expand.default,
    aten.alias.default, aten.unsqueeze.default, aten.squeeze.dim, aten.squeeze.dims, aten.slice.Tensor,
    aten.select.int, aten.detach.default, aten.split.Tensor, aten.split_with_sizes.default, aten.unbind.int,
    aten._unsafe_view.default, aten.as_strided.default,
}  # fmt: skip
#: Operations that no kernel of Inductor joins with others, besides those that are products.
ALONE = {aten.view.dtype, aten.index_put.default, aten.sort.stable}


@attrs.frozen
class Device:
    """What a GPU does: bytes a second, and FLOP/s of dense products; its peak is that of the datasheet."""

    bandwidth: float
    products: float
    peak: float

    @classmethod
    def named(
        cls, name: str, share: float = SHARE, products: float = PRODUCTS, bandwidth: float | None = None
    ) -> Device:
        """Return the GPU of a name, which reaches a share of its bandwidth, TB/s, and so many TFLOP/s."""
        return cls(1e12 * share * (bandwidth or BANDWIDTHS[name]), 1e12 * products, 1e12 * PEAKS[name])

    def seconds(self, work: Work) -> float:
        """Return what a kernel takes."""
        return max(work.bytes / self.bandwidth, work.flops / self.products)


@attrs.frozen
class Work:
    """What one kernel does."""

    name: str
    where: str  # which part of the step
    bytes: int
    flops: int = 0


def size(tensors: Iterable[Any]) -> int:
    """Return the bytes of the distinct tensors; what is expanded is read once."""
    found = {id(t): t for t in tensors if isinstance(t, Tensor)}.values()
    return sum(t.element_size() * _elements(t) for t in found)


def _elements(tensor: Tensor) -> int:
    entries = 1
    for length, stride in zip(tensor.shape, tensor.stride(), strict=True):
        entries *= length if stride else 1
    return entries


#: Attention as it is named here, by what it is on a GPU.
ATTENTION = {
    aten._scaled_dot_product_flash_attention_for_cpu: aten._scaled_dot_product_flash_attention,
    aten._scaled_dot_product_flash_attention_for_cpu_backward: aten._scaled_dot_product_flash_attention_backward,
}


def counted(operation: Any) -> Any:
    """Return what counts the FLOPs of a product or an attention: torch's own; None of anything else."""
    packet = getattr(operation, "overloadpacket", None)
    return flop_registry.get(ATTENTION.get(packet, packet))


def flops_of(operation: Any, args: Any, kwargs: Any, out: Any) -> int:
    """Return the FLOPs of an operation."""
    count = counted(operation)
    return count(*args, **kwargs, out_val=out) if count else 0


class Stream(TorchDispatchMode):
    """Records every operation; what depends on data is given its expected size: half of the tokens are masked."""

    def __init__(self, masked: int, mixed: bool) -> None:
        super().__init__()
        self.masked, self.mixed, self.where, self.work = masked, mixed, "", list[Work]()
        self.kept: dict[str, int] = {}  # bytes from forward to backward, of each part that is compiled

    @contextlib.contextmanager
    def part(self, where: str) -> Iterator[None]:
        """Name the part of a step that follows."""
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
        if self.where and not _moves_nothing(func):
            # What is written in place is read and written; a fused optimizer may scale gradients, and here it does not.
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


def _moves_nothing(func: Any) -> bool:
    returned = [r.alias_info for r in func._schema.returns]
    free = func in VIEWS or func.namespace == "prim" or "empty" in func._schema.name
    return free or any(info and not info.is_write for info in returned)


def kernels(graph: GraphModule, where: str, mixed: bool) -> list[Work]:
    """Return the kernels of a graph: each product alone, and what is computed between two as one.

    A pointwise operation is computed where it is read, as often as it is, from what stands in memory: the graph's
    inputs, products, what these and the outputs read, sums, and what more than one level reads of two or more large
    tensors. A node's level is the number of products before it. With `mixed`, sums over tokens are made by the kernel
    that has rows, as Inductor does since torch 2.10; before, they read all of it again.
    """
    nodes = [n for n in graph.graph.nodes if isinstance(n.meta.get("val"), Tensor | tuple | list)]
    origin = {n: _origin(n) for n in nodes}
    readers: dict[Node, set[Node]] = defaultdict(set)
    for node in graph.graph.nodes:
        for n in node.all_input_nodes:
            if n in origin and not _is_view(node):
                readers[origin[n]].add(node)
    level, work = dict[Node, int](), list[Work]()
    sources: dict[Node, set[Node]] = {}  # what is read for what is not in memory
    roots: dict[int, list[Node]] = defaultdict(list)
    for node in nodes:
        inputs = {origin[n] for n in node.all_input_nodes if n in origin}
        level[node] = max((level[n] + _is_alone(n) for n in inputs), default=0)
    for node in nodes:
        if node.op != "call_function" or _is_view(node):
            continue
        if _is_alone(node):
            args, kwargs, out = tree_map(_value, (node.args, node.kwargs, node))
            moved = size(tree_leaves((args, kwargs))) + size(tree_leaves(out))
            work.append(Work(str(node.target), where, moved, flops_of(node.target, args, kwargs, out)))
            continue
        read = set[Node]().union(*(sources.get(origin[n], {n}) for n in node.all_input_nodes if n in origin))
        kept = _is_sum(node) or any(n.op == "output" or _is_alone(n) for n in readers[node])
        apart = len({level[n] for n in readers[node] if n in level}) > 1 and sum(map(_large, read)) > 1
        if kept or apart:
            roots[level[node]].append(node)
            node.meta["read"] = read
        else:
            sources[node] = read
    for group in roots.values():
        for members in _connected(group):
            read = set[Node]().union(*(m.meta["read"] for m in members))
            again = set[Node]().union(*(m.meta["read"] for m in members if _over_tokens(m) and not mixed))
            outside = (m for m in members if any(_is_alone(n) or level.get(n) != level[m] for n in readers[m]))
            moved = _read(read, members) + _read(again, ()) + size(tree_leaves([_value(n) for n in outside]))
            work.append(Work("+".join(_short(m) for m in members), where, moved))
    return work


def _read(views: Iterable[Node], members: Sequence[Node]) -> int:
    """Return the bytes that a kernel reads to see some views of what it has not made itself."""
    seen: dict[Node, list[Node]] = defaultdict(list)
    for view in views:
        seen[_origin(view)].append(view)
    return sum(
        min(sum(size(tree_leaves(_value(view))) for view in of), size(tree_leaves(_value(made))))
        for made, of in seen.items()
        if made not in members
    )


def _origin(node: Node) -> Node:
    """Return the node that made what a view shows."""
    while _is_view(node):
        node = node.all_input_nodes[0]
    return node


def handed(forward: GraphModule, outputs: int) -> int:
    """Return the bytes that a forward graph makes and hands to its backward graph, after so many outputs of its own."""
    (output,) = (node for node in forward.graph.nodes if node.op == "output")
    made = {_storage(node) for node in output.args[0][outputs:] if isinstance(node, Node)}
    return sum(n.meta["val"].untyped_storage().nbytes() for n in made if n.op != "placeholder")


def _storage(node: Node) -> Node:
    """Return the node whose memory a view shows: `_origin`, or which of its results."""
    origin = _origin(node)
    while node.all_input_nodes and node.all_input_nodes[0] is not origin and _is_view(node):
        node = node.all_input_nodes[0]
    return node if isinstance(origin.meta["val"], tuple | list) else origin


def _is_view(node: Node) -> bool:
    return node.op == "call_function" and (node.target in VIEWS or node.target is operator.getitem)


def _connected(nodes: Sequence[Node]) -> list[list[Node]]:
    """Return the nodes of a level in groups that read one another, or the same large tensor."""
    graph = networkx.Graph()
    for node in nodes:
        graph.add_node(node)
        made = map(_origin, node.meta["read"])
        graph.add_edges_from((node, n) for n in made if _large(n) or n in nodes)
    return [[n for n in nodes if n in part] for part in networkx.connected_components(graph)]


def _large(node: Node) -> bool:
    value = node.meta.get("val")
    return isinstance(value, Tensor) and value.numel() > 1 << 20


def _value(node: Any) -> Any:
    return node.meta["val"] if isinstance(node, Node) else node


def _short(node: Node) -> str:
    return str(node.target).split(".")[1] if "." in str(node.target) else str(node.target)


def _is_alone(node: Node) -> bool:
    return node.op == "call_function" and (node.target in ALONE or counted(node.target) is not None)


def _is_sum(node: Node) -> bool:
    """Return whether entries of a large tensor are summed."""
    return node.target in {aten.sum.dim_IntList, aten.amax.default, aten.var_mean.correction}


def _over_tokens(node: Node) -> bool:
    """Return whether a node sums a large tensor over its first dimension, which a kernel laid out for rows cannot."""
    return node.target is aten.sum.dim_IntList and 0 in node.args[1] and _large(node.all_input_nodes[0])


@attrs.frozen(kw_only=True)
class Step:
    """A step on some rows of text."""

    overrides: tuple[str, ...] = ()
    rows: int = 32
    length: int = 1024
    vocabulary_size: int = 50_257
    compiled: bool = True
    mixed: bool = False

    def work(self) -> tuple[list[Work], float, dict[str, int]]:
        """Return what its kernels do; the FLOPs that the model needs, as `utilisation` counts them; and the bytes that
        each compiled part keeps from forward to backward, the weights in bf16 among them."""
        experiment = load("owt-small/mdlm", self.overrides)
        stream = Stream(self.rows * self.length // 2, self.mixed)
        # The logits of so many positions at once as on a GPU.
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
                for _ in range(2):  # the first makes the optimizer's state
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
    """Return a function that reads the weights of a module, compiled as far as counting goes."""

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
    """Print the step's parts, its longest kernels, and the share of the peak."""
    parser = argparse.ArgumentParser(prog="roofline")
    parser.add_argument("--gpu", default="H100 80GB HBM3", choices=sorted(BANDWIDTHS))
    parser.add_argument("--bandwidth", type=float, help="of its memory, TB/s; that of the GPU when absent")
    parser.add_argument("--share", type=float, default=SHARE, help="of the bandwidth that kernels reach")
    parser.add_argument("--products", type=float, default=PRODUCTS, help="TFLOP/s that dense products reach")
    parser.add_argument(
        "--mixed", action="store_true", help="sums over tokens in one kernel with rows: torch 2.10 or later"
    )
    parser.add_argument("--eager", action="store_true", help="without compiling")
    parser.add_argument("--top", type=int, default=10, help="kernels that are listed")
    parser.add_argument("overrides", nargs="*", help="of owt-small/mdlm")
    given = parser.parse_args(sys.argv[2:] if words is None else words)
    device = Device.named(given.gpu, given.share, given.products, given.bandwidth)
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
