"""A virtual GPU: tensors that say they are on cuda:0 and compute on the CPU.

    with VirtualGPU() as gpu:
        module, batch = to_gpu(module), to_gpu(batch)
        module.loss(batch)["loss"].backward()
    assert not gpu.waits

An operation with tensors of both devices is refused as CUDA refuses it. What makes the host wait until the GPU has
finished its queue is counted, and so is what the host sends. It knows of operations what the dispatcher sees: what a
kernel of CUDA does inside is taken from its source, in `WAITS`.
"""

import sys
from collections import Counter
from contextlib import ExitStack, contextmanager
from pathlib import Path
from unittest import mock

import attrs
import torch
from torch.overrides import TorchFunctionMode
from torch.utils._mode_utils import no_dispatch
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves, tree_map_only

import atat_zoo

CUDA = torch.device("cuda", 0)
# The size of their result, or the result itself, depends on data and is read by the host.
WAITS = {
    "_local_scalar_dense",  # item, float, int, bool, an `if`
    *("nonzero", "masked_select", "masked_scatter_backward", "equal", "bincount", "histc"),
    *("_unique", "_unique2", "unique_dim", "unique_consecutive", "unique_dim_consecutive"),
}
INDEXED = {"index", "index_put", "index_put_", "_index_put_impl_", "_unsafe_index", "_unsafe_index_put"}
COPIES = {"_to_copy", "copy_"}
HERE, PACKAGE, SITE = (
    str(Path(file).parent) for file in (__file__, atat_zoo.__file__, str(Path(torch.__file__).parent))
)


class MixedDevicesError(RuntimeError):
    """An operation has tensors of the CPU and of the GPU."""


class VirtualTensor(torch.Tensor):
    """A tensor on the virtual GPU, whose values are `held` on the CPU.

    To C++, which asks by `prim::device`, it is on the meta device: there is no driver that could tell it of cuda:0.
    """

    @staticmethod
    def __new__(cls, held):
        with no_dispatch():
            shell = torch.empty_strided(held.size(), held.stride(), dtype=held.dtype, device="meta")
        made = torch.Tensor._make_subclass(cls, shell, False, dispatch_device=True, device_for_backend_keys=CUDA)
        made.held = held
        return made

    @property
    def device(self):
        return CUDA

    @property
    def is_cuda(self):
        return True

    @property
    def is_meta(self):
        return False

    @classmethod
    def __torch_dispatch__(cls, function, types, args=(), kwargs=None):
        return VirtualGPU.active.call(function, args, kwargs or {})

    def tolist(self):
        VirtualGPU.active.waited("tolist")
        return self.held.detach().tolist()

    def numpy(self, **_):
        raise TypeError("can't convert cuda:0 device type tensor to numpy")

    def __repr__(self, **_):
        return f"virtual {self.held}"


class VirtualGPU(TorchDispatchMode):
    """Computes, and records: `waits` of the host by operation and place, `uploads` by place."""

    active = None

    def __init__(self):
        super().__init__()
        self.waits, self.uploads = Counter(), Counter()

    def __enter__(self):
        # Nothing asks a driver, which is not there; backward runs on this thread, where its place is known.
        self.around = ExitStack()
        for name in ("_lazy_init", "synchronize", "empty_cache"):
            self.around.enter_context(mock.patch(f"torch.cuda.{name}", lambda *_: None))
        self.around.enter_context(mock.patch.object(VirtualGPU, "active", self))
        self.around.enter_context(torch.autograd.set_multithreading_enabled(False))
        self.around.enter_context(torch.nn.attention.sdpa_kernel(torch.nn.attention.SDPBackend.MATH))
        self.around.enter_context(MadeFromData(self))
        return super().__enter__()

    def __exit__(self, *error):
        super().__exit__(*error)
        self.around.close()

    @contextmanager
    def autocast(self):
        """Compute in bf16 what autocast does on a GPU; torch's own context turns itself off where there is none."""
        torch.set_autocast_enabled("cuda", True)
        torch.set_autocast_dtype("cuda", torch.bfloat16)
        torch.autocast_increment_nesting()
        try:
            yield
        finally:
            torch.autocast_decrement_nesting()
            torch.clear_autocast_cache()
            torch.set_autocast_enabled("cuda", False)

    def forget(self):
        """Begin to count anew."""
        self.waits.clear()
        self.uploads.clear()

    def waited(self, what):
        self.waits[what, place()] += 1

    def uploaded(self, blocking=True):
        self.uploads[place()] += 1
        if blocking:  # the copy is queued behind all the work, and the host waits for it
            self.waited("upload")

    def __torch_dispatch__(self, function, types, args=(), kwargs=None):
        return self.call(function, args, kwargs or {})

    def call(self, function, args, kwargs):
        name = function._schema.name.removeprefix("aten::")
        tensors = [leaf for leaf in tree_leaves((args, kwargs)) if isinstance(leaf, torch.Tensor)]
        virtual = [tensor for tensor in tensors if isinstance(tensor, VirtualTensor)]
        if name == "prim::device":
            return torch.device("meta") if virtual else args[0].device
        device = kwargs.get("device")
        to = None if device is None else torch.device(device).type
        if to is not None:
            kwargs = {**kwargs, "device": torch.device("cpu")}
        if virtual:
            self.check(name, args, kwargs, tensors)
        if name in COPIES:
            self.copied(name, args, kwargs, to)
        made = function(*on_cpu(args), **on_cpu(kwargs | ({"pin_memory": None} if kwargs.get("pin_memory") else {})))
        on_gpu = bool(virtual) if to is None else to != "cpu"
        if name == "copy_":
            on_gpu = isinstance(args[0], VirtualTensor)
        # An operation in place returns its own argument.
        own = {id(tensor.held): tensor for tensor in virtual}
        wrap = VirtualTensor if on_gpu else lambda tensor: tensor
        return (
            tree_map_only(torch.Tensor, lambda tensor: own[id(tensor)] if id(tensor) in own else wrap(tensor), made)
            if own or on_gpu
            else made
        )

    def check(self, name, args, kwargs, tensors):
        """Refuse tensors of both devices, and count a wait."""
        if name in INDEXED and isinstance(args[0], VirtualTensor):
            # Indices on the CPU are copied.
            tensors = [tensor for tensor in (args[0], *args[2:3]) if isinstance(tensor, torch.Tensor)]
            for index in filter(lambda index: index is not None, args[1]):
                if not isinstance(index, VirtualTensor):
                    self.uploaded()
            # A single number goes where the mask is true without its being counted.
            filled = "put" in name and len(args[1]) == 1 and args[2].dim() == 0
            if any(index is not None and index.dtype in (torch.bool, torch.uint8) for index in args[1]) and not filled:
                self.waited("index by mask")
        strangers = [tensor for tensor in tensors if not isinstance(tensor, VirtualTensor) and tensor.dim()]
        if strangers and name not in COPIES:
            shapes = ", ".join(f"{list(tensor.shape)} on {tensor.device}" for tensor in tensors)
            raise MixedDevicesError(f"{name} expects all tensors on the same device, and has {shapes}, at {place()}")
        if name in WAITS or (name == "repeat_interleave" and kwargs.get("output_size") is None):
            self.waited(name)

    def copied(self, name, args, kwargs, to):
        """Count a copy from one device to the other."""
        if name == "copy_":
            target, source = (isinstance(tensor, VirtualTensor) for tensor in args[:2])
            blocking = not (kwargs.get("non_blocking") or args[2:3] == (True,))
        else:
            source = isinstance(args[0], VirtualTensor)
            target, blocking = source if to is None else to != "cpu", not kwargs.get("non_blocking")
        if target and not source:
            # A number is an argument of a kernel that fills.
            self.uploaded(blocking and not (name == "copy_" and args[1].dim() == 0))
        elif source and not target and blocking:
            self.waited("copy to the host")


class MadeFromData(TorchFunctionMode):
    """Tensors that Python's numbers make on the GPU, which the dispatcher does not see."""

    def __init__(self, gpu):
        super().__init__()
        self.gpu = gpu

    def __torch_function__(self, function, types, args=(), kwargs=None):
        kwargs = kwargs or {}
        made_of = args[0] if args else None
        device = kwargs.get("device")
        if function not in (torch.tensor, torch.as_tensor) or device is None or torch.device(device).type == "cpu":
            return function(*args, **kwargs)
        if isinstance(made_of, VirtualTensor):
            return made_of.to(kwargs.get("dtype") or made_of.dtype)
        self.gpu.uploaded()
        return VirtualTensor(function(*args, **{**kwargs, "device": "cpu"}))


def place():
    """Return what of ours, or of what we call, does it: its file and its name."""
    if (node := torch._C._current_autograd_node()) is not None:
        return f"backward of {node.name()}"
    frame = sys._getframe(1)
    while frame.f_back is not None:
        file = frame.f_code.co_filename
        if not file.startswith((f"{HERE}/device.py", f"{SITE}/")) and "/" in file:
            root = PACKAGE if file.startswith(f"{PACKAGE}/") else str(Path(SITE).parent)
            return f"{file.removeprefix(f'{root}/')} {frame.f_code.co_qualname}"
        frame = frame.f_back
    return "?"


def on_cpu(values):
    """Return tensors, or what has some, as the CPU holds them, which is not counted."""
    return tree_map_only(VirtualTensor, lambda tensor: tensor.held, values)


def to_gpu(value):
    """Return a tensor, a batch of them or a module on the GPU, which is not counted; a module is changed."""
    if isinstance(value, torch.nn.Module):
        moved = {}  # by identity: weights that are tied stay so
        for module in value.modules():
            for own in (module._parameters, module._buffers):
                for name, tensor in own.items():
                    if tensor is not None and not isinstance(tensor, VirtualTensor):
                        if id(tensor) not in moved:
                            moved[id(tensor)] = VirtualTensor(tensor.detach())
                            if isinstance(tensor, torch.nn.Parameter):
                                moved[id(tensor)] = torch.nn.Parameter(moved[id(tensor)], tensor.requires_grad)
                        own[name] = moved[id(tensor)]
        return value
    if attrs.has(type(value)):
        tensors = {name: to_gpu(each) for name, each in attrs.asdict(value, recurse=False).items()}
        return attrs.evolve(value, **tensors)
    return tree_map_only(
        torch.Tensor, lambda tensor: tensor if isinstance(tensor, VirtualTensor) else VirtualTensor(tensor), value
    )
