"""The emulated GPU refuses what a GPU refuses. Run by tests/gpu/test_emulated.py, with the plugin."""

import os

import pytest
import torch

pytestmark = pytest.mark.skipif("EMULATED_GUARD" not in os.environ, reason="needs the plugin")


def ones(*shape):
    return torch.ones(*shape, device="cuda")


def test_tensors_of_two_devices_do_not_mix():
    assert (ones(3) + 1.0).is_cuda and (ones(3) * torch.tensor(2.0)).is_cuda
    with pytest.raises(RuntimeError, match="same device"):
        ones(3) + torch.ones(3)
    with pytest.raises(TypeError, match="numpy"):
        ones(3).numpy()
    with pytest.raises(RuntimeError, match="generator"):
        torch.rand(3, device="cuda", generator=torch.Generator())


@pytest.mark.parametrize("step, said", [
    (lambda x: x.sum().item(), "read back"), (lambda x: x[x > 0], "read back"), (lambda x: x + torch.tensor(2.0), "tensor of the CPU"),
    (lambda x: x.cpu(), "copy to the CPU"), (lambda x: torch.tensor([1.0], device="cuda"), "tensor of the CPU"),
    (lambda x: x.normal_(), "default generator"), (lambda x: x.normal_(generator=torch.Generator("cuda")), "does not know"),
])  # fmt: skip
def test_what_no_recording_may_hold(step, said):
    x = ones(3)
    with pytest.raises(RuntimeError, match=said), torch.cuda.graph(torch.cuda.CUDAGraph()):
        step(x)
    assert not torch.cuda.is_current_stream_capturing()


def test_a_recording_changes_nothing_and_its_replays_do():
    x, rng, graph = ones(3), torch.Generator("cuda").manual_seed(1), torch.cuda.CUDAGraph()
    graph.register_generator_state(rng)
    with torch.cuda.graph(graph):
        x.add_(1.0)
        z = torch.zeros(2, 2, device="cuda")
        z[..., -1] = 1.0
        y = x * 2.0 + 0.0 * torch.rand(3, device="cuda", generator=rng)
    assert x.cpu().tolist() == [1.0] * 3
    graph.replay()
    graph.replay()
    assert x.tolist() == [3.0] * 3 and y.cpu().tolist() == [6.0] * 3 and z.tolist() == [[0.0, 1.0]] * 2


def test_numbers_arrive_when_somebody_waits():
    home = ones(3).to("cpu", non_blocking=True)
    assert home.tolist() != [1.0] * 3
    torch.cuda.current_stream().synchronize()
    assert home.tolist() == [1.0] * 3


def test_memory_that_is_written_too_early_is_noticed():
    from emulated.tensors import WRONG

    source = torch.zeros(3).pin_memory()
    source.to("cuda", non_blocking=True)
    source.fill_(1.0)
    torch.cuda.synchronize()
    assert len(WRONG) == 1
    WRONG.clear()
