"""A virtual GPU: tensors that say they are on cuda:0 and compute on the CPU.

    with VirtualGPU() as gpu:
        module, batch = to_gpu(module), to_gpu(batch)
        module.loss(batch)["loss"].backward()
    assert not gpu.waits

One that is `narrow` is as Apple's: it refuses float64, and what torch has for CUDA alone.

An operation with tensors of both devices is refused as CUDA refuses it. What makes the host wait until the GPU has
finished its queue is counted, and so is what the host sends. Of operations it knows what the dispatcher sees; what a
kernel of CUDA does inside is from its source, in `WAITS`. Autocast casts nothing here, as it asks C++ for the device.
"""

import gc
import sys
from collections import Counter
from contextlib import ExitStack
from functools import cache, partial
from pathlib import Path
from types import SimpleNamespace
from unittest import mock

import attrs
import torch
from torch.utils._mode_utils import no_dispatch
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_map_only

import atat_zoo
from atat_zoo.system import devices

CUDA = torch.device("cuda", 0)
APPLE = SimpleNamespace(is_available=lambda: True, device_count=lambda: 1)  # as much of it as `torch.mps` has
# The size of their result, or the result itself, depends on data and is read by the host.
WAITS = {
    "_local_scalar_dense",  # item, float, int, bool, an `if`
    *("nonzero", "masked_select", "masked_scatter_backward", "equal", "allclose", "bincount", "histc"),
    *("_unique", "_unique2", "unique_dim", "unique_consecutive", "unique_dim_consecutive"),
}
INDEXED = {"index", "index_put", "index_put_", "_index_put_impl_"}
COPIES = {"_to_copy", "copy_"}
HARNESS, PACKAGE, TORCH = __file__, str(Path(atat_zoo.__file__).parent), str(Path(torch.__file__).parent)
ROOTS = (PACKAGE, str(Path(TORCH).parent), str(Path(__file__).parents[2]))


class MixedDevicesError(RuntimeError):
    """An operation has tensors of the CPU and of the GPU."""


class NoFloat64Error(TypeError):
    """A tensor of the GPU would be in float64, which it does not have."""


def only_cuda(*_, **__):
    raise AssertionError(f"{place()} asks for what torch has for CUDA alone")


class VirtualTensor(torch.Tensor):
    """A tensor on the virtual GPU, whose values are `held` on the CPU.

    To C++, which asks by `prim::device`, it is on the meta device: there is no driver that could tell it of cuda:0.
    """

    __torch_function__ = torch._C._disabled_torch_function_impl

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

    def __init__(self, narrow=False):
        super().__init__()
        self.narrow = narrow
        self.waits, self.uploads = Counter(), Counter()

    def __enter__(self):
        # Nothing asks a driver, which is not there; backward runs on this thread, where its place is known.
        self.around = ExitStack()
        # A tensor that only C++ still has, and that Python collects in a cycle, would lose what it holds.
        if gc.isenabled():
            gc.disable()
            self.around.callback(gc.enable)
        self.around.enter_context(mock.patch("torch.cuda._lazy_init"))
        for name in ("max_memory_allocated", "reset_peak_memory_stats", "get_device_name", "synchronize", "Stream"):
            made = only_cuda if self.narrow else mock.Mock(return_value=0)
            self.around.enter_context(mock.patch(f"torch.cuda.{name}", made))
        if self.narrow:
            self.around.enter_context(mock.patch.object(devices, "WITHOUT_FLOAT64", {"cuda"}))
            self.around.enter_context(mock.patch.object(devices, "_module", return_value=APPLE))
        self.around.enter_context(mock.patch.object(VirtualGPU, "active", self))
        self.around.enter_context(torch.autograd.set_multithreading_enabled(False))
        self.around.enter_context(torch.nn.attention.sdpa_kernel(torch.nn.attention.SDPBackend.MATH))
        for make in (torch.tensor, torch.as_tensor):
            self.around.enter_context(mock.patch.object(torch, make.__name__, partial(self.from_data, make)))
        return super().__enter__()

    def __exit__(self, *error):
        super().__exit__(*error)
        self.around.close()

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
        if function is torch.ops.prim.device.default:
            return torch.device("meta") if isinstance(args[0], VirtualTensor) else args[0].device
        name = name_of(function)
        tensors = [leaf for leaf in leaves((*args, *kwargs.values())) if isinstance(leaf, torch.Tensor)]
        virtual = {id(tensor.held): tensor for tensor in tensors if isinstance(tensor, VirtualTensor)}
        to = None if kwargs.get("device") is None else torch.device(kwargs["device"]).type
        if virtual:
            self.check(name, args, kwargs, tensors)
        if name in COPIES:
            self.copied(name, args, kwargs, to)
        changed = {"device": "cpu"} if to else {}
        if kwargs.get("pin_memory"):  # which wants a driver
            if self.narrow:
                only_cuda()
            changed["pin_memory"] = None
        made = function(*map(held, args), **{key: held(value) for key, value in kwargs.items()} | changed)
        if to == "cpu" or not (to or virtual) or (name == "copy_" and not isinstance(args[0], VirtualTensor)):
            return made
        return there(made, virtual)

    def check(self, name, args, kwargs, tensors):
        """Refuse tensors of both devices, and count a wait."""
        if name in INDEXED and isinstance(args[0], VirtualTensor):
            tensors = [tensor for tensor in (args[0], *args[2:3]) if isinstance(tensor, torch.Tensor)]
            # A single number goes where a mask is true without its being counted.
            filled = name != "index" and len(args[1]) == 1 and args[2].dim() == 0
            for index in filter(lambda index: index is not None, args[1]):
                if not isinstance(index, VirtualTensor):  # which is copied
                    self.uploaded()
                elif index.dtype == torch.bool and not filled:
                    self.waited("index by mask")
        strange = any(tensor.dim() and not isinstance(tensor, VirtualTensor) for tensor in tensors)
        into = name.endswith("_") and isinstance(args[0], torch.Tensor) and not isinstance(args[0], VirtualTensor)
        if (strange or into) and name not in COPIES:
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
            self.uploaded(blocking)
        elif source and not target and blocking:
            self.waited("copy to the host")

    def from_data(self, make, data, *, dtype=None, device=None, **options):
        """Make a tensor as `torch.tensor` and `torch.as_tensor` do, which the dispatcher does not see."""
        if isinstance(data, VirtualTensor) or device is None or torch.device(device).type == "cpu":
            return make(data, dtype=dtype, device=device, **options)
        self.uploaded()
        return there(make(data, dtype=dtype, **options), {})


@cache
def name_of(function):
    return function._schema.name.removeprefix("aten::")


def leaves(values):
    for value in values:
        if isinstance(value, list | tuple):
            yield from value
        else:
            yield value


def held(value):
    if isinstance(value, list | tuple):
        return [each.held if isinstance(each, VirtualTensor) else each for each in value]
    return value.held if isinstance(value, VirtualTensor) else value


def there(made, own):
    """Return results on the GPU; an operation in place returns its `own` argument."""
    if isinstance(made, list | tuple):
        return type(made)(there(each, own) for each in made)
    if not isinstance(made, torch.Tensor):
        return made
    if VirtualGPU.active.narrow and made.dtype == torch.float64:
        raise NoFloat64Error(f"the device has no float64, at {place()}")
    return own[id(made)] if id(made) in own else VirtualTensor(made)


def place():
    """Return which function of ours, or of what we call, does it, by its file."""
    if (node := torch._C._current_autograd_node()) is not None:
        return f"backward of {node.name()}"
    frame = sys._getframe(1)
    while frame.f_code.co_filename.startswith((HARNESS, f"{TORCH}/", "<")):
        frame = frame.f_back
    file = frame.f_code.co_filename
    root = next((root for root in ROOTS if file.startswith(f"{root}/")), "")
    return f"{file.removeprefix(f'{root}/')} {frame.f_code.co_qualname}"


def on_cpu(values):
    """Return tensors, or what has some, as the CPU holds them, which is not counted."""
    return tree_map_only(VirtualTensor, lambda tensor: tensor.held, values)


def leaving(module):
    """Return the identities of the tensors that `module.to` would move."""
    own, found = {id(tensor) for tensor in (*module.parameters(), *module.buffers())}, set()

    def see(tensor):
        if id(tensor) not in own:  # which device is it?
            return VirtualTensor(tensor)
        found.add(id(tensor))
        return tensor

    module._apply(see)
    return found


def to_gpu(value):
    """Return a tensor, a batch of them or a module on the GPU, which is not counted; a module is changed."""
    if isinstance(value, torch.nn.Module):
        moved, going = {}, leaving(value)  # by identity: weights that are tied stay so
        for module in value.modules():
            for own in (module._parameters, module._buffers):
                for name, tensor in own.items():
                    if id(tensor) in going and not isinstance(tensor, VirtualTensor):
                        if id(tensor) not in moved:
                            moved[id(tensor)] = there(tensor.detach(), {})
                            if isinstance(tensor, torch.nn.Parameter):
                                moved[id(tensor)] = torch.nn.Parameter(moved[id(tensor)], tensor.requires_grad)
                        own[name] = moved[id(tensor)]
        return value
    if attrs.has(type(value)):
        tensors = {name: to_gpu(each) for name, each in attrs.asdict(value, recurse=False).items()}
        return attrs.evolve(value, **tensors)
    return tree_map_only(
        torch.Tensor, lambda tensor: tensor if isinstance(tensor, VirtualTensor) else there(tensor, {}), value
    )
