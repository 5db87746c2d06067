"""The layers: a sequence, its pieces, and its steps agree; weights load; gradients arrive."""

import pytest

torch = pytest.importorskip("torch")

from tvm_scan.torch import nn  # noqa: E402

LAYERS = {
    "Mamba": lambda: nn.Mamba(8, d_state=4, d_conv=3),
    "LRU": lambda: nn.LRU(8, 6),
    "MinGRU": lambda: nn.MinGRU(8, 5),
}


@pytest.mark.parametrize("name", LAYERS)
def test_sequence_pieces_and_steps_agree(name):
    torch.manual_seed(0)
    layer, x = LAYERS[name](), torch.randn(2, 11, 8)
    whole, last = layer(x)
    state, pieces = None, []
    for piece in x.split(4, 1):
        y, state = layer(piece, state)
        pieces.append(y)
    torch.testing.assert_close(torch.cat(pieces, 1), whole, rtol=1e-4, atol=1e-5)
    state, steps = layer.initial_state(2), []
    for t in range(x.shape[1]):
        y, state = layer.step(x[:, t], state)
        steps.append(y)
    torch.testing.assert_close(torch.stack(steps, 1), whole, rtol=1e-4, atol=1e-5)
    torch.testing.assert_close(state, last, rtol=1e-4, atol=1e-5)


@pytest.mark.parametrize("name", LAYERS)
def test_every_parameter_has_the_gradient_of_the_steps(name):
    torch.manual_seed(0)
    layer, x = LAYERS[name](), torch.randn(2, 6, 8)
    parameters = list(layer.parameters())
    (layer(x)[0] ** 2).sum().backward()
    state, loss = layer.initial_state(2), 0
    for t in range(x.shape[1]):
        y, state = layer.step(x[:, t], state)
        loss = loss + (y**2).sum()
    wanted = torch.autograd.grad(loss, parameters)
    got = tuple(p.grad for p in parameters)
    torch.testing.assert_close(got, wanted, rtol=1e-3, atol=1e-4)


def test_mamba_has_the_parameters_of_mamba_ssm():
    layer = nn.Mamba(16)
    shapes = {name: tuple(p.shape) for name, p in layer.named_parameters()}
    assert shapes == {
        "A_log": (32, 16),
        "D": (32,),
        "in_proj.weight": (64, 16),
        "conv1d.weight": (32, 1, 4),
        "conv1d.bias": (32,),
        "x_proj.weight": (33, 32),
        "dt_proj.weight": (32, 1),
        "dt_proj.bias": (32,),
        "out_proj.weight": (16, 32),
    }


def test_mamba_loads_hugging_face_weights():
    transformers = pytest.importorskip("transformers")
    config = transformers.MambaConfig(hidden_size=16, num_hidden_layers=1, vocab_size=11)
    from transformers.models.mamba.modeling_mamba import MambaMixer

    mixer = MambaMixer(config, layer_idx=0)
    layer = nn.Mamba(16)
    layer.load_state_dict(mixer.state_dict())
    x = torch.randn(2, 9, 16)
    torch.testing.assert_close(layer(x)[0], mixer(x), rtol=1e-4, atol=1e-5)


def test_lru_checks_its_radii():
    with pytest.raises(ValueError, match="radii with 0 < low <= high < 1"):
        nn.LRU(4, 4, radii=(0.5, 1.0))


def _states(state):
    return state._asdict() if isinstance(state, tuple) else {"state": state}


def _calls(name):
    """Every wrong call of a layer, with a word of the message that says what is wrong."""
    layer, x = LAYERS[name](), torch.randn(2, 5, 8)
    state = layer.initial_state(2)
    for wrong in (x[..., :7], x[0], x[None], torch.tensor(1.0), x.mT):
        yield lambda x=wrong: layer(x), "x of (batch, length, d_model) with d_model 8"
    for wrong in (x[:, 0, :7], x, x[0, 0]):
        yield lambda x=wrong: layer.step(x, state), "x of (batch, d_model) with d_model 8"
    for wrong in (x.long(), x.bool(), x.to(torch.complex64)):
        yield lambda x=wrong: layer(x), "x of"
    if name != "LRU":
        yield lambda: layer(x.double()), "x of torch.float32"
        yield lambda: layer.step(x[:, 0].half(), state), "x of torch.float32"
    for key, part in _states(state).items():
        integers = torch.zeros_like(part, dtype=torch.int64)
        for wrong in (part[:1], part[..., :-1], part[None], part[0], integers):
            bad = state._replace(**{key: wrong}) if isinstance(state, tuple) else wrong
            yield lambda s=bad: layer(x, s), f"{key} of"
            yield lambda s=bad: layer.step(x[:, 0], s), f"{key} of"
    kind = "MambaState" if name == "Mamba" else "a tensor"
    for wrong in (None, 1, "zeros", [state], ()):
        yield lambda s=wrong: layer.step(x[:, 0], s), kind


@pytest.mark.parametrize("name", LAYERS)
def test_what_does_not_fit_is_said(name):
    for call, word in _calls(name):
        with pytest.raises(ValueError, match=rf"tvm_scan.torch.nn.{name}: expected .*; ") as raised:
            call()
        assert word in str(raised.value)


def test_sizes_are_integers_above_zero():
    for wrong in (0, -1, 2.0, "8", None, True):
        for make in (nn.Mamba, lambda n: nn.LRU(n, 4), lambda n: nn.LRU(4, n)):
            with pytest.raises(ValueError, match="as an integer above 0"):
                make(wrong)
        for arguments in ((wrong, 4), (4, wrong)):
            with pytest.raises(ValueError, match="as an integer above 0"):
                nn.MinGRU(*arguments)


@pytest.mark.parametrize("name", LAYERS)
def test_one_exported_program_for_all_batches(name):
    layer = LAYERS[name]()
    batch = torch.export.Dim("batch")
    program = torch.export.export(layer, (torch.randn(3, 5, 8),), dynamic_shapes=({0: batch},))
    for size in (2, 7):
        x = torch.randn(size, 5, 8)
        torch.testing.assert_close(program.module()(x), layer(x), rtol=1e-4, atol=1e-5)
