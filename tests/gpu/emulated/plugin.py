"""pytest -p emulated.plugin: the tests see one GPU, which this process emulates.

What it finds: tensors of two devices in one operation, numbers that are read back or copied in a recording, generators
that a recording does not know, results that are used before they have arrived, and page-locked memory that is written
before it was read. It cannot see kernels, cuDNN or races.
"""

import ctypes
import os
import threading

import pytest

SEES = os.environ.get("CUDA_VISIBLE_DEVICES") != ""  # processes of environments are told to see none
if SEES:
    ctypes.CDLL(os.environ["EMULATED_GUARD"])  # before torch

import torch  # noqa: E402


def lstm_cell(x, state, w_x, w_h, b_x, b_h):
    """By its formula, as PyTorch has no kernel of the CPU for that of a GPU."""
    h, c = state
    i, f, g, o = (torch.nn.functional.linear(x, w_x, b_x) + torch.nn.functional.linear(h, w_h, b_h)).chunk(4, dim=-1)
    c = torch.sigmoid(f) * c + torch.sigmoid(i) * torch.tanh(g)
    return torch.sigmoid(o) * torch.tanh(c), c


def gru_cell(x, h, w_x, w_h, b_x, b_h):
    of_x, of_h = torch.nn.functional.linear(x, w_x, b_x).chunk(3, -1), torch.nn.functional.linear(h, w_h, b_h).chunk(3, -1)
    r, z = (torch.sigmoid(a + b) for a, b in zip(of_x[:2], of_h[:2], strict=True))
    return z * h + (1 - z) * torch.tanh(of_x[2] + r * of_h[2])


def lstm(x, hx, weights, has_biases, layers, dropout, train, bidirectional, batch_first):
    """One layer over rows x [T, B, inputs], which is all that rlrun has."""
    state, outputs = (hx[0][0], hx[1][0]), []
    for row in x:
        state = lstm_cell(row, state, *weights)
        outputs.append(state[0])
    return torch.stack(outputs), state[0].unsqueeze(0), state[1].unsqueeze(0)


def gru(x, hx, weights, has_biases, layers, dropout, train, bidirectional, batch_first):
    h, outputs = hx[0], []
    for row in x:
        h = gru_cell(row, h, *weights)
        outputs.append(h)
    return torch.stack(outputs), h.unsqueeze(0)


def install():
    from emulated import streams, tensors

    def either(emulated, plain):
        return lambda x, *more: (emulated if tensors.on_gpu(x) else plain)(x, *more)

    def page_locked_copy(self, *_):
        return tensors.page_lock(self.clone())

    def capturable(optimizer):
        if tensors.Gpu.own.mode.recording is not None and not all(group["capturable"] for group in optimizer.param_groups):
            raise tensors.Refused(f"{type(optimizer).__name__} is recorded and not capturable")

    class Cudart:
        cudaHostRegister = staticmethod(tensors.register)
        cudaHostUnregister = staticmethod(tensors.unregister)

    replaced = {
        "_lazy_init": lambda: None, "is_available": lambda: True, "is_initialized": lambda: True, "device_count": lambda: 1,
        "current_device": lambda: 0, "set_device": lambda device: None, "get_device_name": lambda *_: "emulated",
        "mem_get_info": lambda *_: (8 << 30, 16 << 30), "empty_cache": lambda: None, "is_bf16_supported": lambda *_, **__: True,
        "manual_seed": lambda seed: None, "manual_seed_all": lambda seed: None, "cudart": Cudart, "synchronize": tensors.synchronize,
        "Stream": streams.Stream, "Event": streams.Event, "current_stream": streams.current_stream, "stream": streams.stream,
        "default_stream": lambda *_: streams.DEFAULT, "CUDAGraph": tensors.Graph, "graph": tensors.Capture,
        "is_current_stream_capturing": lambda: tensors.Gpu.own.mode.recording is not None,
    }  # fmt: skip
    for name, value in replaced.items():
        setattr(torch.cuda, name, value)
    torch.cuda.amp.common.amp_definitely_not_available = lambda: False
    torch.Generator = tensors.Generator
    torch._VF.lstm, torch._VF.gru = either(lstm, torch._VF.lstm), either(gru, torch._VF.gru)
    torch.lstm_cell, torch.gru_cell = either(lstm_cell, torch.lstm_cell), either(gru_cell, torch.gru_cell)
    torch.inference_mode = lambda mode=True: torch.no_grad()  # such a wrapper cannot be an inference tensor
    torch.Tensor.pin_memory = page_locked_copy
    torch.Tensor.is_pinned = lambda self, *_: not tensors.on_gpu(self) and tensors.page_locked(self)
    torch.optim.Optimizer._accelerator_graph_capture_health_check = capturable
    torch.optim.Optimizer._cuda_graph_capture_health_check = capturable
    torch.__future__.set_overwrite_module_params_on_conversion(True)
    run = threading.Thread.run

    def run_with_gpu(self):
        with tensors.Gpu():
            run(self)

    threading.Thread.run = run_with_gpu
    tensors.Gpu().__enter__()


@pytest.fixture(autouse=True)
def nothing_was_wrong():
    """Fails a test in which page-locked memory was overwritten."""
    from emulated.tensors import WRONG

    WRONG.clear()
    yield
    assert not WRONG, WRONG


def pytest_sessionfinish(session):
    if SEES:
        from emulated.tensors import Capture

        print(f"\n{Capture.count} recordings on the emulated GPU")


if SEES:
    install()
