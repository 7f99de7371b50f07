"""Fragments that are packed and unpacked are what they were, to the bit, and frames travel once."""

import numpy as np
import pytest
import torch

from rlrun.cluster.packing import Form, header_from_json, header_to_json, pack, unpack
from rlrun.core.batch import Field, allocate
from rlrun.core.moments import Moments
from rlrun.dataflow.slots import Episode, Header

ROWS, COLUMNS, STACK, SIDE = 6, 3, 4, 40

LAYOUT = {
    "obs": {
        "observation": Field((ROWS + 1, COLUMNS, STACK, SIDE, SIDE), torch.uint8),
        "goal": Field((ROWS + 1, COLUMNS, 2), torch.float32),
    },
    "is_first": Field((ROWS + 1, COLUMNS), torch.bool),
    "action": Field((ROWS, COLUMNS), torch.int64),
    "reward": Field((ROWS, COLUMNS), torch.float32),
    "core": {"h": Field((2, COLUMNS, 5), torch.float32)},
}


def header(worker=3):
    return Header(
        worker, 1, 40, 7, 6, 17, (Episode(2, 1.5, 9, {"x": np.float32(0.25)}), Episode(1, -1.0, 4)), (0.1, 0.2),
        Moments(17.0, 0.1 + 0.2, 3.0), 34, ("an env fell over",),
    )  # fmt: skip


def filled(seed):
    """A fragment whose frames move by one in every row, except at the beginnings of episodes."""
    rng = np.random.default_rng(seed)
    batch = allocate(LAYOUT)
    for leaf in batch.leaves():
        leaf.copy_(torch.from_numpy(rng.integers(0, 200, leaf.shape)).to(leaf.dtype))
    frames = batch.obs.observation
    begins = {(2, 0), (5, 0), (1, 2)}
    for t in range(1, ROWS + 1):
        for b in range(COLUMNS):
            if (t, b) not in begins:
                frames[t, b, :-1] = frames[t - 1, b, 1:]
    return batch


@pytest.mark.parametrize("compress", [True, False])
@pytest.mark.parametrize("stack", [STACK, 1])
def test_rows_come_back_to_the_bit(compress, stack):
    form = Form(LAYOUT, stack, compress)
    sent = [(header(i), filled(i)) for i in range(2)]
    packed = pack(form, sent, {"failed": None, "news": [["it died", 3]]})
    assert packed.dtype == np.uint8
    packed.flags.writeable = False
    fragments, facts = unpack(packed)
    assert facts == {"failed": None, "news": [["it died", 3]]} and len(fragments) == 2
    for one, (told, batch) in zip(fragments, sent, strict=True):
        into = allocate(LAYOUT)
        for leaf in into.leaves():
            leaf.view(torch.uint8).fill_(0x7F)
        one.unpack(form, into)
        assert one.header == told
        assert all(torch.equal(a, b) for a, b in zip(into.leaves(), batch.leaves(), strict=True))


def test_a_frame_travels_once():
    frame = SIDE * SIDE
    small = pack(Form(LAYOUT, STACK, False), [(header(), filled(0))], {}).nbytes
    whole = pack(Form(LAYOUT, 1, False), [(header(), filled(0))], {}).nbytes
    # Every row's newest frame, and the older ones of row 0 and of the three rows at which an episode begins.
    saved = (ROWS + 1) * COLUMNS * (STACK - 1) - (COLUMNS + 3) * (STACK - 1)
    assert saved * frame - 200 < whole - small <= saved * frame


def test_a_header_comes_back():
    assert header_from_json(header_to_json(header())) == header()
    plain = header()._replace(returns=None, episodes=(), failures=())
    assert header_from_json(header_to_json(plain)) == plain
