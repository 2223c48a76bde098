"""Tape: a replay equals the network, bit by bit and in its gradients, and unsupported networks are refused."""

from __future__ import annotations

import copy
import random
import weakref
from collections.abc import Callable
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from hypothesis import given, settings
from hypothesis import strategies as st
from programs import SETS_TOO, STEPS, Program, programs
from torch import Tensor, nn
from torch.utils.checkpoint import checkpoint

from advibp.bounds import Box
from advibp.bounds.domain import UnsupportedOperation
from advibp.bounds.graph.recording import Traced
from advibp.bounds.graph.tape import Tape
from advibp.errors import UserError
from advibp.execution import batchnorm

Forward = Callable[[Any, Any], Any]


class Net(nn.Module):
    """Some layers, with a forward that the test provides."""

    def __init__(self, body: Forward, training: bool = False) -> None:
        super().__init__()
        torch.manual_seed(0)
        self.a, self.b, self.c = nn.Linear(6, 6), nn.Linear(6, 6), nn.Linear(6, 4)
        self.norm = nn.BatchNorm1d(6)
        self.gate = nn.Parameter(torch.tensor(0.7))
        self.register_buffer("buffer", torch.randn(6))
        self.body, self.kept, self.cache = body, None, torch.zeros(3, 6)
        self.double().train(training)
        self.cache = self.cache.double()

    def forward(self, x: Any) -> Any:
        return self.body(self, x)


def point(*shape: int) -> Tensor:
    return torch.randn(shape or (3, 6), dtype=torch.float64)


def box(shape: tuple[int, ...]) -> Box:
    return Box(center=point(*shape), radius=torch.rand(shape, dtype=torch.float64))


def outcome(run: Callable[[], Any]) -> Any:
    """Return the result of a run, or the type of its error. Every run starts from the same random numbers."""
    torch.manual_seed(5)
    try:
        return run()
    except (UserError, RuntimeError) as error:
        return type(error)


def same(a: Any, b: Any) -> bool:
    if isinstance(a, Box) and isinstance(b, Box):
        return same(a.lower, b.lower) and same(a.upper, b.upper) and a.elided == b.elided
    if isinstance(a, Tensor) and isinstance(b, Tensor):
        return torch.equal(a, b) or torch.equal(a.nan_to_num(), b.nan_to_num())
    if isinstance(a, tuple) and isinstance(b, tuple):
        return len(a) == len(b) and all(map(same, a, b))
    return a is b or (isinstance(a, str) and a == b)


def read(value: Any) -> Any:
    """Read the bounds of a box. A box that was written through a view raises."""
    return value if not isinstance(value, Box) else (value.lower, value)[1]


def gradients(net: nn.Module, run: Callable[[Any], Tensor], x: Tensor) -> Any:
    """Return the gradients of the parameters and of the input; None where there is none."""
    leaf = x.clone().requires_grad_()
    output = run(leaf + 0)
    if not output.requires_grad:
        return "none"
    return torch.autograd.grad(
        (output * torch.arange(output.numel()).view_as(output)).sum(), [*net.parameters(), leaf], allow_unused=True
    )


# ---- replay


@settings(max_examples=80)
@given(programs(STEPS))
def test_replay_equals_the_network(net: Program) -> None:
    original = copy.deepcopy(net)
    tape = Tape.record(net, point(4, 8))
    for _ in range(2):
        net.load_state_dict(original.state_dict())
        x = point(4, 8)
        given_x = x.clone()
        assert same(outcome(lambda: tape.replay(given_x)), outcome(lambda: original(x.clone())))  # noqa: B023
        assert torch.equal(given_x, x), "a replay writes to what it is given"


@settings(max_examples=60)
@given(programs(STEPS))
def test_gradients_equal_the_network(net: Program) -> None:
    original = copy.deepcopy(net)
    tape = Tape.record(net, point(4, 8))
    net.load_state_dict(original.state_dict())
    x = point(4, 8)
    found = outcome(lambda: gradients(net, tape.replay, x))
    expected = outcome(lambda: gradients(original, original, x))
    # A write that is never read is not replayed, so it cannot invalidate a gradient as in the network.
    assert expected is RuntimeError or same(found, expected)


@settings(max_examples=60)
@given(programs(SETS_TOO, training=False), st.booleans())
def test_replay_on_sets(net: Program, on_set: bool) -> None:
    b = box((4, 8))
    if on_set and isinstance(outcome(lambda: read(net(b.clone()))), type):
        return  # a box that was written through a view
    tape = Tape.record(net, b if on_set else point(4, 8))
    b = box((4, 8))
    center, radius = b.center.clone(), b.radius.clone()
    found, expected = outcome(lambda: read(tape.replay(b))), outcome(lambda: read(net(b.clone())))
    # A box raises if it may have been written through a view. A tape may know that it was not, and is still sound.
    if expected is UnsupportedOperation and isinstance(found, Box):
        z = net(center + radius * (2 * torch.rand_like(radius) - 1))
        assert bool(((found.lower - 1e-9 <= z) & (z <= found.upper + 1e-9)).all())
    else:
        assert same(found, expected)
    assert torch.equal(b.center, center)
    assert torch.equal(b.radius, radius)
    if not on_set:
        return
    x = point(4, 8)
    assert same(outcome(lambda: tape.replay(x)), outcome(lambda: net(x.clone())))


def cut_is_possible(tape: Tape, v: int) -> bool:
    """Return whether a cut at node v is possible, by definition.

    The output must not be reachable from the input without passing v, and no call that the output then depends on may
    read, through another view, memory that v wrote to.

    There are three kinds of edges: a call uses a value; it reads memory that an earlier call wrote to; it reads weights
    or buffers that an earlier call wrote to. Weights and buffers stay in the network, so only writes after v count.
    """
    if v == 0:
        return True
    reached, read_after = {0}, False
    for n, node in enumerate(tape.nodes[1:], start=1):
        sources = {*node.refs, *node.after, *(i for i in node.state if i > v)}
        if n != v and sources & reached:
            reached.add(n)
    wanted = {tape.output}
    for n in range(tape.output, 0, -1):
        node = tape.nodes[n]
        if n in wanted and n != v:
            wanted |= {*node.refs, *node.after, *(i for i in node.state if i > v)}
            read_after |= v in node.after
    return tape.output not in reached and not read_after


@settings(max_examples=80)
@given(programs(STEPS))
def test_replay_starts_at_every_possible_cut(net: Program) -> None:
    tape = Tape.record(net, point(4, 8))
    x = point(4, 8)
    state = copy.deepcopy(net.state_dict())
    for v in [i for i, node in enumerate(tape.nodes) if node.shape is not None and node.from_input]:
        try:
            tape.check_cut(v)
        except UserError as error:
            assert not cut_is_possible(tape, v), f"{v} could be cut"
            sentence = str(error)
            assert tape.name(v) in sentence
            continue
        assert cut_is_possible(tape, v), f"{v} could not be cut"

        def whole() -> Any:
            net.load_state_dict(state)
            return tape.replay(x)

        def parts(v: int = v) -> Any:
            net.load_state_dict(state)
            return tape.replay(tape.replay(x, 0, v), v)

        assert same(outcome(parts), outcome(whole))


@given(programs(STEPS), st.data())
def test_parameters_with_gradients_are_listed(net: Program, data: st.DataObject) -> None:
    tape = Tape.record(net.eval(), point(4, 8))
    v = data.draw(st.sampled_from([i for i, node in enumerate(tape.nodes) if node.shape is not None]))
    if not tape.nodes[v].from_input:
        return
    x = point(4, 8)
    listed = tape.parameters_before(v)
    assert len({id(p) for p in listed}) == len(listed)
    value = outcome(lambda: tape.replay(x, 0, v).clone())
    for p in net.parameters():
        kept = p.detach().clone()
        with torch.no_grad():
            p.add_(torch.rand_like(p))
        if not same(outcome(lambda: tape.replay(x, 0, v)), value):
            assert any(p is q for q in listed)
        with torch.no_grad():
            p.copy_(kept)


MORE: dict[str, Forward] = {
    "a method": lambda net, x: net.c(net.a(x).relu().clamp(min=0.1)),
    "a tensor's own properties": lambda net, x: net.c(net.a(x).T.mT + x.ndim + x.shape[-1] + len(x)),
    "checkpointed": lambda net, x: net.c(checkpoint(net.a, x, use_reentrant=False)),
    "a constant on the left": lambda net, x: torch.ones(4, 3, dtype=x.dtype) @ net.c(x) + 1 / (3 + net.c(x[:1]) ** 2),
    "weights of numbers": lambda net, x: F.linear(x, torch.tensor([[1.0] * 6], dtype=x.dtype) * net.gate),
    "without gradient": lambda net, x: net.c(torch.no_grad()(net.a)(x)) * net.gate,
    "weights without gradient": lambda net, x: F.linear(net.a(x), torch.no_grad()(lambda: net.b.weight * net.gate)()),
    "its own gradient": lambda net, x: net.a(x) * torch.autograd.grad(net.b(x).sum(), net.b.weight)[0].sum(),
    "a masked write": lambda net, x: _masked(net.a(x)),
    "a written view, returned": lambda net, x: _written_base(net.a(x)),
    "the input, written": lambda net, x: net.c(x.relu_()),
    "noise": lambda net, x: net.c(x + torch.rand_like(x) + torch.rand(6, dtype=x.dtype) + F.dropout(x)),
    "the input": lambda net, x: x,
    "attention": lambda net, x: net.c(F.scaled_dot_product_attention(x, net.a(x), net.b(x))),
}


def _masked(y: Any) -> Any:
    y[y < 0] = 0.25
    return y


def _written_base(y: Any) -> Any:
    y.view(-1)[2:7].zero_()
    return y


@pytest.mark.parametrize("body", MORE.values(), ids=MORE.keys())
def test_unusual_networks(body: Forward) -> None:
    net = Net(body)
    tape = Tape.record(net, point())
    with torch.no_grad():  # as an optimizer does
        for p in net.parameters():
            p.add_(torch.rand_like(p))
    x = point()
    assert same(outcome(lambda: tape.replay(x)), outcome(lambda: net(x.clone())))
    assert same(outcome(lambda: gradients(net, tape.replay, x)), outcome(lambda: gradients(net, net, x)))


@pytest.mark.parametrize("training", [False, True])
def test_parametrized_weights(training: bool) -> None:
    p = nn.utils.parametrizations
    layers = [
        p.weight_norm(nn.Linear(6, 6)),
        nn.ReLU(),
        p.spectral_norm(nn.Linear(6, 6)),
        p.orthogonal(nn.Linear(6, 6)),
    ]
    net = nn.Sequential(*layers).train(training)
    original = copy.deepcopy(net)
    x = torch.randn(3, 6)
    tape = Tape.record(net, x)
    net.load_state_dict(original.state_dict())
    with torch.no_grad():
        for q, r in zip(net.parameters(), original.parameters(), strict=True):
            r.copy_(q.mul_(1.5))
    for _ in range(2):  # the second power iteration goes on from the first
        assert torch.equal(tape.replay(x), original(x))
    assert len(tape.parameters_before(tape.output)) == len(list(net.parameters()))


def test_recurrent_layers_and_attention() -> None:
    class Both(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.rnn, self.attention = nn.LSTM(6, 6, batch_first=True), nn.MultiheadAttention(6, 2, batch_first=True)
            self.encoder = nn.TransformerEncoderLayer(6, 2, 8, batch_first=True)

        def forward(self, x: Any) -> Any:
            x, _ = self.rnn(x)
            x = x + self.attention(x, x, x, need_weights=False)[0]
            return self.encoder(x)

    net, x = Both().eval(), torch.randn(2, 3, 6)
    tape = Tape.record(net, x)
    x = torch.randn(2, 3, 6)
    assert torch.allclose(tape.replay(x), net(x), atol=1e-6)  # outside of a recording torch uses a fused kernel


def test_hooks_that_change_inputs_or_outputs() -> None:
    net = Net(lambda net, x: net.c(net.a(x)))
    net.a.register_forward_hook(lambda module, args, output: output * 2)
    net.c.register_forward_pre_hook(lambda module, args: (args[0] + 1,))
    tape, x = Tape.record(net, point()), point()
    assert torch.equal(tape.replay(x), net(x))
    assert all("layer" in tape.name(i) for i in range(1, len(tape.nodes)))


def test_batchnorm_in_training_updates_statistics() -> None:
    net = Net(lambda net, x: net.c(net.norm(net.b(net.norm(net.a(x))))), training=True)
    original = copy.deepcopy(net)
    tape = Tape.record(net, point())
    net.load_state_dict(original.state_dict())
    x = point()
    assert torch.equal(tape.replay(x), original(x))
    for name in ("running_mean", "running_var"):
        assert torch.equal(getattr(net.norm, name), getattr(original.norm, name))


def test_buffers_do_not_cross_a_cut() -> None:
    """A running mean that the part before a cut writes to, and both parts read, does not cross the cut."""

    def body(net: Any, x: Any) -> Any:
        net.buffer.mul_(0.9).add_(x.detach().mean(0))
        return net.c(torch.tanh(net.b(net.a(x) * net.buffer)) * net.buffer)

    net = Net(body)
    original = copy.deepcopy(net)
    tape = Tape.record(net, point())
    net.load_state_dict(original.state_dict())
    (middle,) = [i for i in range(len(tape.nodes)) if tape.name(i) == "layer 'b' (linear)"]
    for _ in range(2):
        x = point()
        assert torch.equal(tape.replay(tape.replay(x, 0, middle), middle), original(x))
        assert torch.equal(net.buffer, original.buffer)


def test_no_cut_at_memory_written_through_another_view() -> None:
    def body(net: Any, x: Any) -> Any:
        out = torch.zeros(3, 6, dtype=x.dtype)
        view = out.view(-1)
        out[:] = net.a(x)
        return net.c(view.view(3, 6))

    net = Net(body)
    tape, x = Tape.record(net, point()), point()
    assert torch.equal(tape.replay(x), net(x))
    (written,) = [i for i, node in enumerate(tape.nodes) if node.func is Tensor.__setitem__]
    with pytest.raises(UserError, match="can't be cut at the call of __setitem__"):
        tape.check_cut(written)


def test_torch_function_modes_see_a_replay() -> None:
    """The statistics of a step are captured by the adversarial pass and reused by the bounds."""
    net = Net(lambda net, x: net.c(F.relu(net.norm(net.a(x)))), training=True)
    tape, x = Tape.record(net, point()), point()
    ball = Box(center=x, radius=0.1)
    with batchnorm.step(net, True):
        net(x)
        expected = net(ball)
    with batchnorm.step(net, True):
        tape.replay(x)
        assert same(tape.replay(ball), expected)
    with batchnorm.Population(), torch.no_grad():
        found = tape.replay(x)
    assert torch.equal(found, net.eval()(x))


def test_replay_does_not_write_to_its_input_set() -> None:
    def body(net: Any, x: Any) -> Any:
        return x.unflatten(1, (2, 3)).transpose(1, 2).reshape(3, 6).relu_()  # a copy, if x is a tensor

    net, b = Net(body), box((3, 6))
    expected = net(b.clone())
    assert same(Tape.record(net, point()).replay(b), expected)
    assert same(b, b)  # can be read


def test_replay_under_no_grad() -> None:
    net = Net(lambda net, x: net.c(net.a(x)))
    with torch.no_grad():
        tape = Tape.record(net, point())
        assert not tape.replay(point()).requires_grad
    assert tape.replay(point()).requires_grad
    with torch.inference_mode():
        tape = Tape.record(net, point())
    assert tape.replay(point()).requires_grad


# ---- unsupported networks


class Sign(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, x: Any) -> Any:
        return x.sign()

    @staticmethod
    def backward(ctx: Any, gradient: Any) -> Any:
        return gradient


class Reversal(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, x: Any) -> Any:
        return x

    @staticmethod
    def backward(ctx: Any, gradient: Any) -> Any:
        return -gradient


def _assign(net: Any, x: Any) -> Any:
    net.buffer = net.buffer + 1
    return net.a(x) * net.buffer


def _cached(net: Any, x: Any) -> Any:
    net.cache[:, 0].copy_(x[:, 0])
    return net.a(net.cache)


def _autocast(net: Any, x: Any) -> Any:
    with torch.autocast("cpu", dtype=torch.bfloat16):
        return net.a(x)


def _choice(net: Any, x: Any) -> Any:
    return net.a(x) if random.random() < 0.5 else net.b(x)


def _asserts(net: Any, x: Any) -> Any:
    assert isinstance(x, Tensor), "a tensor was expected"
    return net.a(x)


READS = "reads its numbers"
REFUSED: dict[str, tuple[Forward, str]] = {
    "bool": (lambda net, x: net.a(x) if x.sum() > 0 else net.b(x), READS),
    "bool of a weight": (lambda net, x: net.a(x) if net.gate > 0 else net.b(x), READS),
    "any": (lambda net, x: net.a(x) if torch.isnan(x).any() else net.b(x), READS),
    "item": (lambda net, x: net.a(x) * x.sum().item(), READS),
    "item of a weight": (lambda net, x: net.a(x) * net.gate.item(), READS),
    "float": (lambda net, x: net.a(x) * float(x.sum()), READS),
    "float of a buffer": (lambda net, x: net.a(x) * float(net.buffer[0]), READS),
    "int": (lambda net, x: net.a(x) * int(x.sum()), READS),
    "index": (lambda net, x: net.a(x) * [1, 2][x.sum().long() % 2], READS),
    "tolist": (lambda net, x: net.a(x) * x.tolist()[0][0], READS),
    "numpy": (lambda net, x: net.a(x) * x.detach().numpy().sum(), READS),
    "a random way": (lambda net, x: net.a(x) if torch.rand(1).item() < 0.5 else net.b(x), READS),
    "contains": (lambda net, x: net.a(x) if 0.0 in x else net.b(x), READS),
    "nonzero": (lambda net, x: net.a(x) * len(x.nonzero()), "the number of elements"),
    "a mask": (lambda net, x: net.a(x) * x[x > 0].numel(), "the number of elements"),
    "where": (lambda net, x: net.a(x) * torch.where(x > 0)[0].shape[0], "the number of elements"),
    "unique": (lambda net, x: net.a(x) * x.unique().shape[0], "the number of elements"),
    "a tuple": (lambda net, x: (net.a(x), x), "returns a tuple"),
    "a dict": (lambda net, x: {"logits": net.a(x)}, "returns a dict"),
    "nothing": (lambda net, x: None, "returns a NoneType"),
    "weights alone": (lambda net, x: net.a.weight * 2, "does not depend on its input"),
    "a buffer": (lambda net, x: net.buffer, "does not depend on its input"),
    "a new buffer": (_assign, "replaces 'buffer'"),
    "a cache": (_cached, "outside of forward"),
    "autocast": (_autocast, "autocast"),
    "a gradient of its own": (lambda net, x: net.c(Sign.apply(net.a(x))), "Sign, a torch.autograd.Function"),
    "only a gradient": (lambda net, x: net.c(Reversal.apply(net.a(x))), "Reversal, a torch.autograd.Function"),
    "of weights": (lambda net, x: F.linear(x, Sign.apply(net.a.weight)), "Sign, a torch.autograd.Function"),
    "reentrant": (lambda net, x: checkpoint(net.a, x, use_reentrant=True), "torch.autograd.Function"),
    "Python's dice": (_choice, "random"),
    "a hook": (lambda net, x: (net.a(x).register_hook(lambda g: g), net.a(x))[1], "register_hook"),
    "an assertion": (_asserts, "a tensor was expected"),
}


@pytest.mark.parametrize(("body", "words"), REFUSED.values(), ids=REFUSED.keys())
def test_unsupported_networks_are_refused(body: Forward, words: str) -> None:
    net = Net(body)
    state, cache = copy.deepcopy(net.state_dict()), net.cache
    with pytest.raises(UserError, match=words) as caught:
        Tape.record(net, point())
    sentence = str(caught.value)
    assert ";" in sentence
    assert sentence.endswith(".")
    assert "\n" not in sentence
    assert net.cache is cache
    assert all(torch.equal(t, state[name]) for name, t in net.state_dict().items())
    copy.deepcopy(net)
    Sign.apply(point())  # works again


def test_a_weight_computed_before_forward_is_refused() -> None:
    net = Net(lambda net, x: F.linear(x, net.kept))
    net.kept = net.a.weight * 2
    with pytest.raises(UserError, match="computed from weights before forward"):
        Tape.record(net, point())


def test_cumulative_batchnorm_is_refused_in_training_alone() -> None:
    net = Net(lambda net, x: net.norm(x))
    net.norm.momentum = None
    Tape.record(net, point())
    with pytest.raises(UserError, match="norm"):
        Tape.record(net.train(), point())


def test_scripted_modules_and_backward_hooks_are_refused() -> None:
    net = Net(lambda net, x: net.a(x))
    handle = net.a.register_full_backward_hook(lambda module, grad_in, grad_out: None)
    with pytest.raises(UserError, match="backward hooks"):
        Tape.record(net, point())
    handle.remove()
    Tape.record(net, point())


def test_another_batch_size_is_refused() -> None:
    net = Net(lambda net, x: net.c(net.a(x)) * x.size(0))
    tape = Tape.record(net, point())
    with pytest.raises(UserError, match=r"shape \(3, 6\) at the input, but the value has shape \(4, 6\)"):
        tape.replay(point(4, 6))


def test_a_value_of_a_finished_recording_is_refused() -> None:
    kept: list[Any] = []
    Tape.record(Net(lambda net, x: (kept.append(x), net.a(x))[1]), point())
    with pytest.raises(UserError, match="a finished recording"):
        kept[0] + 1


# ---- side effects


def test_recording_does_not_change_the_module() -> None:
    def body(net: Any, x: Any) -> Any:
        net.kept = [net.a(x)]  # an attribute
        return net.c(net.norm(net.kept[0]))

    net = Net(body)
    state, modes = copy.deepcopy(net.state_dict()), [m.training for m in net.modules()]
    tape = Tape.record(net, point().requires_grad_())
    assert all(torch.equal(t, state[name]) for name, t in net.state_dict().items())
    assert [m.training for m in net.modules()] == modes
    assert all(p.grad is None for p in net.parameters())
    assert isinstance(net.kept[0], Tensor)
    assert not any(isinstance(leaf, Traced) for node in tape.nodes for leaf in node.args)
    copied = copy.deepcopy(net)
    x = point()
    assert torch.equal(copied(x), net(x))


def test_values_are_dropped_after_their_last_use() -> None:
    net = Net(lambda net, x: net.c(net.b(net.a(x) * 2).exp() + x))
    with torch.no_grad():
        tape = Tape.record(net, point())
        alive: list[weakref.ref[Tensor]] = []
        for _, value in tape.trace(point()):
            alive.append(weakref.ref(value))
            del value
            assert sum(ref() is not None for ref in alive) <= 2
    assert [ref() is not None for ref in alive] == [False] * len(alive)


def test_recording_drops_its_values() -> None:
    seen: list[weakref.ref[Any]] = []
    kept: list[Any] = []

    def body(net: Any, x: Any) -> Any:
        y = net.a(x)
        kept.append(x)  # a traced value may outlive the recording
        seen.append(weakref.ref(y._value))
        return net.c(y)

    net = Net(body)
    tape = Tape.record(net, point())
    assert seen[0]() is None
    assert tape.nodes


def test_names_of_nodes() -> None:
    net = nn.Sequential(nn.Linear(6, 6), nn.Sequential(nn.ReLU(), nn.Linear(6, 2)))
    tape = Tape.record(net, torch.randn(3, 6))
    assert [tape.name(i) for i in range(4)] == [
        "the input",
        "layer '0' (linear)",
        "layer '1.0' (relu)",
        "layer '1.1' (linear)",
    ]
