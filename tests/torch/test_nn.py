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
