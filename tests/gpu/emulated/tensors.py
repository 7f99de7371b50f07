"""Tensors whose device is cuda:0 and whose numbers are kept by a tensor of the CPU.

Every operation comes to Gpu.__torch_dispatch__, which refuses what a GPU would refuse and runs the rest on the CPU.
"""

import bisect
import threading

import torch
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_flatten, tree_map, tree_unflatten

from emulated.streams import LOCK, current_stream

CPU, CUDA = torch.device("cpu"), torch.device("cuda", 0)
# Their results, or the shapes of their results, depend on numbers, so that the host waits for them.
READ_BACK = {f"aten::{name}" for name in (
    "_local_scalar_dense", "item", "is_nonzero", "nonzero", "masked_select", "equal", "_unique2", "unique_dim", "unique_consecutive", "bincount",
    "repeat_interleave")}  # fmt: skip
# They draw from the default generator if they are given none.
RANDOM = {f"aten::{name}" for name in (
    "rand", "randn", "randint", "randperm", "rand_like", "randn_like", "multinomial", "bernoulli", "normal", "native_dropout", "exponential_",
    "uniform_", "normal_", "bernoulli_", "random_", "_standard_gamma")}  # fmt: skip
INDEXING = {"aten::index", "aten::index_put", "aten::index_put_", "aten::_index_put_impl_"}
COPIES = {"aten::_to_copy", "aten::copy_"}
UNWRITTEN = 0x7B  # every byte of memory to which numbers are on their way
PAGE_LOCKED: dict[int, tuple[int, object]] = {}  # address of the first byte -> bytes, and what keeps the address taken
STARTS: list[int] = []  # these addresses in their order
OF_GPU = 0x6B0A  # highest bits of the seeds of a GPU's generators: kernels see other Python objects for the same generator


class Refused(RuntimeError):
    """What CUDA would have raised, or what would have given wrong numbers without a word."""


class GpuTensor(torch.Tensor):
    host: torch.Tensor

    @staticmethod
    def __new__(cls, host):
        made = torch.Tensor._make_wrapper_subclass(
            cls, host.size(), strides=host.stride(), storage_offset=host.storage_offset(), dtype=host.dtype, device=CUDA
        )
        made.host = host
        return made

    __torch_function__ = torch._C._disabled_torch_function_impl

    @classmethod
    def __torch_dispatch__(cls, func, types, args=(), kwargs=None):
        return run(func, args, kwargs or {}, None)  # in a thread without a mode of its own

    @property
    def data(self):
        return torch.Tensor.data.__get__(self)

    @data.setter
    def data(self, value):
        torch.Tensor.data.__set__(self, value)
        self.host = value.host

    def data_ptr(self):
        return self.host.data_ptr()

    def numpy(self, *_, **__):
        raise TypeError("can't convert cuda:0 device type tensor to numpy. Use Tensor.cpu() first.")

    __array__ = numpy

    def tolist(self):
        return self.cpu().tolist()

    def pin_memory(self, *_):
        raise Refused("only tensors of the CPU can be page-locked")

    share_memory_ = pin_memory

    def record_stream(self, stream):
        """Memory is not reused here before Python lets go of it."""

    def __reduce_ex__(self, protocol):
        current_stream().finish()  # saving waits for the GPU
        return self.host.detach().clone().__reduce_ex__(protocol)

    def __deepcopy__(self, memo):
        if id(self) not in memo:
            made = memo[id(self)] = GpuTensor(self.host.detach().clone())
            made.__dict__.update({name: value for name, value in self.__dict__.items() if name != "host"})
            made.requires_grad_(self.requires_grad)
        return memo[id(self)]

    def __repr__(self, **_):
        return f"GpuTensor({self.host!r})"


class Gpu(TorchDispatchMode):
    """The GPU as one thread sees it."""

    own = threading.local()

    def __init__(self):
        super().__init__()
        self.recording = None  # the graph that this thread records

    def __enter__(self):
        Gpu.own.mode = self
        # torch.tensor(..., device="cuda") is made on the CPU and copied, so that the copy is seen here.
        torch._C._set_only_lift_cpu_tensors(True)
        return super().__enter__()

    def __torch_dispatch__(self, func, types, args=(), kwargs=None):
        kwargs = kwargs or {}
        implicit = torch._C._dispatch_has_kernel_for_dispatch_key(func.name(), "CompositeImplicitAutograd")
        if self.recording is not None and implicit:
            with self:  # its parts are recorded
                made = func.decompose(*args, **kwargs)
            if made is not NotImplemented:
                return made
        return run(func, args, kwargs, self.recording)


def on_gpu(thing) -> bool:
    return isinstance(thing, GpuTensor)


def of_gpu(rng: torch.Generator) -> bool:
    return rng.initial_seed() >> 48 == OF_GPU


def page_locked(tensor: torch.Tensor) -> bool:
    at = tensor.data_ptr()
    with LOCK:
        before = bisect.bisect_right(STARTS, at)
        return before > 0 and at < STARTS[before - 1] + PAGE_LOCKED[STARTS[before - 1]][0]


def page_lock(tensor: torch.Tensor) -> torch.Tensor:
    register(tensor.data_ptr(), tensor.numel() * tensor.element_size(), keep=tensor)
    return tensor


def register(pointer: int, size: int, flags: int = 0, keep: object = None) -> int:
    with LOCK:
        if pointer not in PAGE_LOCKED:
            bisect.insort(STARTS, pointer)
        PAGE_LOCKED[pointer] = (size, keep)
    return 0


def unregister(pointer: int) -> int:
    with LOCK:
        del PAGE_LOCKED[pointer]
        STARTS.remove(pointer)
    return 0


def run(func, args, kwargs, recording):
    name = func._schema.name
    leaves, shape = tree_flatten((args, kwargs))
    mine = [leaf for leaf in leaves if on_gpu(leaf)]
    others = [leaf for leaf in leaves if isinstance(leaf, torch.Tensor) and not on_gpu(leaf)]
    device = None if kwargs.get("device") is None else torch.device(kwargs["device"])
    makes = device is not None and device.type == "cuda"
    rng = next((leaf for leaf in leaves if isinstance(leaf, torch._C.Generator)), None)
    if rng is not None and of_gpu(rng) != (makes or bool(mine)):
        raise Refused(f"{name}: a generator of another device")
    if not mine and not makes:
        lock = bool(kwargs.pop("pin_memory", False))
        made = func(*args, **kwargs)
        return page_lock(made) if lock else made
    if recording is not None:
        if name in COPIES and device is not None and not makes:
            raise Refused(f"{name}: a copy to the CPU in a recording")
        _recordable(name, args, rng, others, recording)
    elif _reads_back(name, args):
        current_stream().finish()
    if name in COPIES and (others or (device is not None and not makes)):
        return _carry(name, func, args, kwargs)
    if others:
        _same_device(name, args, others)
    host_args, host_kwargs = tree_unflatten([leaf.host if on_gpu(leaf) else leaf for leaf in leaves], shape)
    if device is not None:
        host_kwargs["device"] = CPU
    host_kwargs.pop("pin_memory", None)
    host_kwargs.pop("non_blocking", None)
    if recording is None:
        made = func(*host_args, **host_kwargs)
    else:
        made = recording.kernel(func, host_args, host_kwargs)
    known = {id(tensor.host): tensor for tensor in mine}  # what is written in place remains the same tensor
    return tree_map(lambda x: (known.get(id(x)) if id(x) in known else GpuTensor(x)) if isinstance(x, torch.Tensor) else x, made)


def _reads_back(name, args) -> bool:
    by_mask = name in INDEXING and any(part is not None and part.dtype in (torch.bool, torch.uint8) for part in args[1])
    return name in READ_BACK or by_mask


def _recordable(name, args, rng, others, recording) -> None:
    if _reads_back(name, args):
        raise Refused(f"{name}: numbers are read back in a recording")
    assigned = name == "aten::fill_" and all(tensor.ndim == 0 for tensor in others)  # x[..., 0] = 1.0 arrives as this, and is a constant of the kernel
    if others and not assigned:
        raise Refused(f"{name}: a tensor of the CPU in a recording, which would wait for its copy or keep its number")
    if rng is None and name in RANDOM:
        raise Refused(f"{name}: the default generator in a recording")
    if rng is not None and rng.initial_seed() not in recording.seeds:
        raise Refused(f"{name}: a generator in a recording that does not know it")


def _same_device(name, args, others) -> None:
    """Kernels take numbers of the CPU as constants, and indices of the CPU are copied."""
    indices = name in INDEXING and on_gpu(args[0])
    if not indices and any(tensor.ndim > 0 for tensor in others):
        raise Refused(f"Expected all tensors to be on the same device, but found at least two, cuda:0 and cpu! ({name})")


def _carry(name, func, args, kwargs):
    """Copies between the CPU and the GPU."""
    late = bool(kwargs.get("non_blocking", False) or (name == "aten::copy_" and len(args) > 2 and args[2]))
    kwargs = {key: value for key, value in kwargs.items() if key not in ("non_blocking", "pin_memory")}
    if name == "aten::copy_":
        target, source = args[:2]
        if on_gpu(target):
            _read_later(source, late)
            target.host.copy_(source)
        elif late and page_locked(target):
            _arrive_later(target, source.host.to(target.dtype, copy=True).expand(target.shape))
        else:
            current_stream().finish()
            target.copy_(source.host)
        return target
    source = args[0]
    if not on_gpu(source):
        _read_later(source, late)
        return GpuTensor(func(source, **{**kwargs, "device": CPU}))
    made = func(source.host, **{**kwargs, "device": CPU})
    if late:
        _arrive_later(made, made.clone())
    else:
        current_stream().finish()
    return made


def _arrive_later(target: torch.Tensor, numbers: torch.Tensor) -> None:
    """Until somebody waits, the target holds numbers that are noticed: 0x7B in every byte, and true for a bool."""
    if target.dtype == torch.bool:
        target.fill_(True)
    elif target.numel():
        target.copy_(torch.full((target.element_size(),), UNWRITTEN, dtype=torch.uint8).view(target.dtype)[0])
    current_stream().later(lambda: target.copy_(numbers))


def _read_later(source: torch.Tensor, late: bool) -> None:
    """The GPU reads page-locked memory when its turn comes, so that nobody may write there before."""
    if not (late and source.numel() and page_locked(source)):
        return
    before = source.clone()

    def compare():
        if not torch.equal(before.view(torch.uint8), source.contiguous().view(torch.uint8)):
            WRONG.append(f"page-locked memory of {tuple(before.shape)} was written before the GPU had read it")

    if source.ndim:
        current_stream().later(compare)


WRONG: list[str] = []  # faults that no caller could be told of


class CudaGenerator(torch._C.Generator):
    """A generator of the CPU whose seed says that it belongs to a GPU."""

    device = CUDA

    def __init__(self, *_):
        self.manual_seed(id(self))

    def manual_seed(self, seed):
        super().manual_seed(OF_GPU << 48 | (seed & (1 << 48) - 1))
        return self


class AnyGenerator(type):
    def __instancecheck__(cls, thing):
        return isinstance(thing, torch._C.Generator)


class Generator(metaclass=AnyGenerator):
    """In the place of torch.Generator."""

    def __new__(cls, device="cpu"):
        return CudaGenerator() if torch.device(device).type == "cuda" else torch._C.Generator()


class Graph:
    """torch.cuda.CUDAGraph: recording it changes nothing; each replay runs its kernels on the memory of the recording."""

    def __init__(self, keep_graph=False):
        from tape import Tape

        self.tape = Tape()
        self.rngs: list[torch.Generator] = []
        self.before: dict[int, tuple[torch.UntypedStorage, torch.UntypedStorage]] = {}

    def register_generator_state(self, rng):
        self.rngs.append(rng)

    @property
    def seeds(self) -> set[int]:
        return {rng.initial_seed() for rng in self.rngs}

    def kernel(self, func, args, kwargs):
        written = [
            args[i] if i < len(args) else kwargs.get(argument.name)
            for i, argument in enumerate(func._schema.arguments)
            if argument.alias_info is not None and argument.alias_info.is_write
        ]
        for tensor in tree_flatten(written)[0]:
            if isinstance(tensor, torch.Tensor):
                storage = tensor.untyped_storage()
                self.before.setdefault(storage.data_ptr(), (storage, storage.clone()))
        made = func(*args, **kwargs)
        self.tape.kernels.append((func, args, kwargs, made))
        return made

    def restore(self):
        for storage, numbers in self.before.values():
            storage.copy_(numbers)
        self.before.clear()

    def pool(self):
        return self.tape

    def replay(self):
        with torch.utils._python_dispatch._disable_current_modes():
            self.tape.play()


class Capture:
    """torch.cuda.graph"""

    count = 0
    active = threading.Lock()

    def __init__(self, graph, pool=None, stream=None, capture_error_mode="global"):
        self.graph, self.stream = graph, stream

    def __enter__(self):
        from emulated.streams import stream

        if not Capture.active.acquire(blocking=False):
            raise Refused("two threads record at once")
        self.on = stream(self.stream)
        self.on.__enter__()
        self.states = [rng.get_state() for rng in self.graph.rngs]
        Gpu.own.mode.recording = self.graph

    def __exit__(self, *error):
        Gpu.own.mode.recording = None
        self.graph.restore()
        for rng, state in zip(self.graph.rngs, self.states, strict=True):
            rng.set_state(state)
        self.on.__exit__(*error)
        Capture.active.release()
        Capture.count += error[0] is None


def synchronize(device=None):
    if Capture.active.locked() and Gpu.own.mode.recording is None:
        raise Refused("the device is synchronised while another thread records")
    from emulated.streams import DEFAULT

    with LOCK:
        DEFAULT.finish()
        current_stream().finish()
