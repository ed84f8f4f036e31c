"""The kernels of a compiled graph: what each reads, writes and computes, with one rule for how Inductor fuses them."""

from __future__ import annotations

import operator
from collections import defaultdict
from typing import TYPE_CHECKING, Any

import attrs
import networkx
import torch
from torch import Tensor
from torch.fx import GraphModule, Node
from torch.utils._pytree import tree_leaves, tree_map
from torch.utils.flop_counter import flop_registry

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence

aten = torch.ops.aten
#: Operations of a compiled graph that move nothing.
VIEWS = {
    aten.view.default, aten.permute.default, aten.t.default, aten.transpose.int, aten.expand.default,
    aten.alias.default, aten.unsqueeze.default, aten.squeeze.dim, aten.squeeze.dims, aten.slice.Tensor,
    aten.select.int, aten.detach.default, aten.split.Tensor, aten.split_with_sizes.default, aten.unbind.int,
    aten._unsafe_view.default, aten.as_strided.default,
}  # fmt: skip
#: Operations besides products that Inductor does not fuse with others.
ALONE = {aten.view.dtype, aten.index_put.default, aten.sort.stable}


@attrs.frozen
class Work:
    """The work of one kernel."""

    name: str
    where: str  # part of the step
    bytes: int
    flops: int = 0


def size(tensors: Iterable[Any]) -> int:
    """Return the bytes of the distinct tensors; expanded tensors are read once."""
    found = {id(t): t for t in tensors if isinstance(t, Tensor)}.values()
    return sum(t.element_size() * _elements(t) for t in found)


def _elements(tensor: Tensor) -> int:
    entries = 1
    for length, stride in zip(tensor.shape, tensor.stride(), strict=True):
        entries *= length if stride else 1
    return entries


#: Names of attention operations here, by their names on a GPU.
ATTENTION = {
    aten._scaled_dot_product_flash_attention_for_cpu: aten._scaled_dot_product_flash_attention,
    aten._scaled_dot_product_flash_attention_for_cpu_backward: aten._scaled_dot_product_flash_attention_backward,
}


def counted(operation: Any) -> Any:
    """Return torch's function that counts the FLOPs of a product or an attention; None for other operations."""
    packet = getattr(operation, "overloadpacket", None)
    return flop_registry.get(ATTENTION.get(packet, packet))


def flops_of(operation: Any, args: Any, kwargs: Any, out: Any) -> int:
    """Return the FLOPs of an operation."""
    count = counted(operation)
    return count(*args, **kwargs, out_val=out) if count else 0


def moves_nothing(func: Any) -> bool:
    """Return whether an operation creates a tensor or a view without writing data."""
    returned = [r.alias_info for r in func._schema.returns]
    free = func in VIEWS or func.namespace == "prim" or "empty" in func._schema.name
    return free or any(info and not info.is_write for info in returned)


def kernels(graph: GraphModule, where: str, mixed: bool) -> list[Work]:
    """Return the kernels of a graph: one for each product, and one for all that is computed between two products.

    A pointwise operation is computed each time and wherever it is read, from values that are in memory: the graph's
    inputs, products, the inputs of products and outputs, sums, and values that are computed from two or more large
    tensors and read at more than one level. A node's level is the number of products before it. With `mixed`, the
    kernel that processes rows also computes sums over tokens, as in Inductor since torch 2.10; in earlier versions, the
    sums read all values again.
    """
    nodes = [n for n in graph.graph.nodes if isinstance(n.meta.get("val"), Tensor | tuple | list)]
    origin = {n: _origin(n) for n in nodes}
    readers: dict[Node, set[Node]] = defaultdict(set)
    for node in graph.graph.nodes:
        for n in node.all_input_nodes:
            if n in origin and not _is_view(node):
                readers[origin[n]].add(node)
    level, work = dict[Node, int](), list[Work]()
    sources: dict[Node, set[Node]] = {}  # nodes to read for a value that is not in memory
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
    """Return the bytes that a kernel reads for views of tensors that it did not compute itself."""
    seen: dict[Node, list[Node]] = defaultdict(list)
    for view in views:
        seen[_origin(view)].append(view)
    return sum(
        min(sum(size(tree_leaves(_value(view))) for view in of), size(tree_leaves(_value(made))))
        for made, of in seen.items()
        if made not in members
    )


def _origin(node: Node) -> Node:
    """Return the node that computed the tensor behind a view."""
    while _is_view(node):
        node = node.all_input_nodes[0]
    return node


def handed(forward: GraphModule, outputs: int) -> int:
    """Return the bytes that a forward graph computes for its backward graph: its results after the first `outputs`."""
    (output,) = (node for node in forward.graph.nodes if node.op == "output")
    made = {_storage(node) for node in output.args[0][outputs:] if isinstance(node, Node)}
    return sum(n.meta["val"].untyped_storage().nbytes() for n in made if n.op != "placeholder")


def _storage(node: Node) -> Node:
    """Return the node whose memory a view refers to: `_origin`, or one of its results."""
    origin = _origin(node)
    while node.all_input_nodes and node.all_input_nodes[0] is not origin and _is_view(node):
        node = node.all_input_nodes[0]
    return node if isinstance(origin.meta["val"], tuple | list) else origin


def _is_view(node: Node) -> bool:
    return node.op == "call_function" and (node.target in VIEWS or node.target is operator.getitem)


def _connected(nodes: Sequence[Node]) -> list[list[Node]]:
    """Return the nodes of a level in groups that read one another or the same large tensor."""
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
    """Return whether a node reduces the entries of a large tensor."""
    return node.target in {aten.sum.dim_IntList, aten.amax.default, aten.var_mean.correction}


def _over_tokens(node: Node) -> bool:
    """Return whether a node sums a large tensor over its first dimension, which a row-wise kernel cannot do."""
    return node.target is aten.sum.dim_IntList and 0 in node.args[1] and _large(node.all_input_nodes[0])
