"""WeightBus delivers complete weights of the newest version without a lock."""

import threading
import time

import pytest
import torch

from rlrun.cluster.weights import SentWeights
from rlrun.core.schedule import Clock
from rlrun.dataflow.weights import WeightBus


class Net(torch.nn.Module):
    def __init__(self):
        super().__init__()
        self.a = torch.nn.Linear(300, 300)
        self.register_buffer("count", torch.zeros(3))

    def fill(self, value):
        with torch.no_grad():
            for tensor in (*self.parameters(), self.count):
                tensor.fill_(value)
        return self


def test_publish_and_read():
    bus, reader = WeightBus(Net()), Net()
    assert bus.read(reader, 0) is None
    bus.publish(Net().fill(3.0), Clock(10, 1))
    assert bus.read(reader, 0) == (1, Clock(10, 1), 1) and (reader.a.weight == 3).all() and (reader.count == 3).all()
    assert bus.read(reader, 1) is None
    bus.publish(None, Clock(20, 2))
    bus.publish(None, Clock(30, 3))
    assert bus.read(reader, 1) == (3, Clock(30, 3), 1) and (reader.a.bias == 3).all(), "a clock alone keeps the weights"
    bus.publish(Net().fill(4.0), Clock(40, 4))
    assert bus.read(reader, 3) == (4, Clock(40, 4), 4) and (reader.a.bias == 4).all()


def test_a_reader_in_bfloat16_gets_converted_weights():
    bus, reader = WeightBus(Net()), Net().to(torch.bfloat16)
    bus.publish(Net().fill(0.1), Clock())
    bus.read(reader, 0)
    assert reader.a.weight.dtype == torch.bfloat16 and torch.allclose(
        reader.a.weight.float(), torch.tensor(0.1), atol=1e-3
    )


class Counted(Net):
    """Has buffers that float32 cannot hold, behind one whose size is odd."""

    def __init__(self):
        super().__init__()
        self.on = torch.nn.Buffer(torch.zeros(5, dtype=torch.bool))
        self.seen = torch.nn.Buffer(torch.zeros((), dtype=torch.int64))
        self.sum = torch.nn.Buffer(torch.zeros(2, dtype=torch.float64))
        self.none = torch.nn.Buffer(torch.zeros(0))


@pytest.mark.parametrize("make", [WeightBus, lambda module: SentWeights()])
def test_buffers_keep_numbers_that_float32_cannot_hold(make):
    wrote, read = Counted().fill(3.0), Counted()
    wrote.on[::2], wrote.sum[1] = True, 1 / 3
    wrote.seen.fill_(2**53 + 1)
    store = make(read)
    store.publish(wrote, Clock())
    store.read(read, 0)
    state = read.state_dict()
    assert all(torch.equal(value, state[name]) for name, value in wrote.state_dict().items())
    assert int(read.seen) == 2**53 + 1 and read.on.tolist() == [True, False, True, False, True]


def test_no_reader_ever_sees_half_of_one_version():
    bus, net = WeightBus(Net()), Net()
    bus.publish(net.fill(0.0), Clock())
    stop, torn, seen = threading.Event(), [], set()

    def read():
        mine, version = Net(), 0
        while not stop.is_set():
            got = bus.read(mine, version)
            if got:
                version = got[0]
                values = {float(t.min()) for t in (*mine.parameters(), mine.count)} | {
                    float(t.max()) for t in (*mine.parameters(), mine.count)
                }
                seen.add(version)
                if len(values) != 1 or values != {float(got[1].updates)}:
                    torn.append(values)

    readers = [threading.Thread(target=read) for _ in range(2)]
    for thread in readers:
        thread.start()
    number, deadline = 0, time.monotonic() + 60.0
    while number < 2000 or (len(seen) <= 20 and time.monotonic() < deadline):  # readers may get little of a busy core
        number += 1
        bus.publish(net.fill(float(number)), Clock(0, number))
    stop.set()
    for thread in readers:
        thread.join()
    assert not torn and len(seen) > 20
