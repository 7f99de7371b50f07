"""GTrXL sees the last `length` rows of the same episode, and nothing else."""

import torch

from rlrun.core.batch import Batch
from rlrun.models.attention import GTrXL

LENGTH, ROWS = 4, 12


def made():
    torch.manual_seed(0)
    return GTrXL(inputs=3, size=8, layers=1, heads=2, length=LENGTH)


def empty(net, columns=1):
    return Batch({name: torch.zeros(columns, *field.shape) for name, field in net.spec().items()})


def influence(net, first, state=None):
    """Whether row s changes the output of row t, [T, T] bool."""
    x = torch.randn(ROWS, 1, 3)
    state = empty(net) if state is None else state
    base = net(x, first, state)[0]
    table = torch.zeros(ROWS, ROWS, dtype=torch.bool)
    for s in range(ROWS):
        other = x.clone()
        other[s] += 1.0
        table[:, s] = (net(other, first, state)[0] - base).abs().amax((1, 2)) > 1e-6
    return table


def test_a_row_sees_so_many_rows_back_and_not_across_an_episode():
    net = made()
    first = torch.zeros(ROWS, 1, dtype=torch.bool)
    first[0] = first[7] = True
    table = influence(net, first)
    for t in range(ROWS):
        begin = 7 if t >= 7 else 0
        expected = {s for s in range(ROWS) if begin <= s <= t and t - s <= LENGTH}
        assert set(table[t].nonzero().flatten().tolist()) == expected, t


def test_cut_anywhere_the_outputs_are_the_same():
    net = made()
    x, first = torch.randn(ROWS, 2, 3), torch.zeros(ROWS, 2, dtype=torch.bool)
    first[0] = True
    first[5, 1] = first[6, 0] = True
    whole, end = net(x, first, empty(net, 2))
    for cuts in ([1] * ROWS, [3, 4, 5], [11, 1], [2, 10]):
        state, outputs = empty(net, 2), []
        for part, firsts in zip(x.split(cuts), first.split(cuts), strict=True):
            out, state = net(part, firsts, state)
            outputs.append(out)
        torch.testing.assert_close(torch.cat(outputs), whole, atol=1e-5, rtol=1e-5)
        assert torch.equal(state.age, end.age)
        for column, age in enumerate(end.age.long().tolist()):
            torch.testing.assert_close(
                state.memory[column, :, LENGTH - age :], end.memory[column, :, LENGTH - age :], atol=1e-5, rtol=1e-5
            )


def test_what_an_old_episode_left_in_memory_is_not_seen():
    net = made()
    dirty = Batch(memory=torch.randn(1, 1, LENGTH, 8), age=torch.tensor([2.0]))
    x, first = torch.randn(3, 1, 3), torch.tensor([[False], [True], [False]])
    clean = dirty.replace(memory=torch.cat([torch.zeros(1, 1, 2, 8), dirty.memory[:, :, 2:]], 2))
    assert torch.equal(net(x, first, dirty)[0], net(x, first, clean)[0]), "only `age` entries count"
    other = net(x, first, dirty.replace(age=torch.tensor([0.0])))[0]
    assert not torch.equal(other[0], net(x, first, dirty)[0][0])
    torch.testing.assert_close(other[1:], net(x, first, dirty)[0][1:])


def test_gradients_stop_at_the_memory_and_reach_every_parameter():
    net = made()
    memory = torch.randn(1, 1, LENGTH, 8, requires_grad=True)
    out, after = net(
        torch.randn(3, 1, 3), torch.zeros(3, 1, dtype=torch.bool), Batch(memory=memory, age=torch.tensor([4.0]))
    )
    assert not after.memory.requires_grad
    out.square().sum().backward()
    assert all(p.grad is not None and p.grad.abs().sum() > 0 for p in net.parameters())
