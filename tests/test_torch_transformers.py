"""Hugging Face's models with our scan: same outputs and gradients, and undone afterwards."""

import pytest

torch = pytest.importorskip("torch")
pytest.importorskip("transformers", reason="transformers is missing: its models are not run")

import tvm_scan.torch as ts  # noqa: E402
from tvm_scan.torch import huggingface  # noqa: E402

pytestmark = pytest.mark.filterwarnings("ignore::FutureWarning", "ignore::DeprecationWarning")
SIZES = {"vocab_size": 50, "hidden_size": 24, "num_hidden_layers": 2, "state_size": 4}


HEADS = {"num_heads": 4, "head_dim": 12, "n_groups": 2, "chunk_size": 8}
BAMBA = {
    **{n: SIZES[n] for n in ("vocab_size", "hidden_size", "num_hidden_layers")},
    **{"intermediate_size": 16, "num_attention_heads": 2, "num_key_value_heads": 2},
    **{"mamba_n_heads": 4, "mamba_d_head": 12, "mamba_n_groups": 2, "mamba_d_state": 4},
    **{"mamba_expand": 2, "mamba_chunk_size": 8, "attn_layer_indices": [1]},
}
#: Model type -> configuration, model, options, and how many of its layers have a scan.
KINDS = {
    "mamba": ("MambaConfig", "MambaForCausalLM", SIZES, 2),
    "falcon_mamba": ("FalconMambaConfig", "FalconMambaForCausalLM", SIZES, 2),
    "mamba2": ("Mamba2Config", "Mamba2ForCausalLM", SIZES | HEADS, 2),
    "bamba": ("BambaConfig", "BambaForCausalLM", BAMBA, 1),
}


def model_of(kind):
    import transformers

    torch.manual_seed(0)
    config, model, options, _ = KINDS[kind]
    return getattr(transformers, model)(getattr(transformers, config)(**options))


def run(model, ids):
    model.train()
    model.zero_grad()
    loss = model(ids, labels=ids).loss
    loss.backward()
    return loss.detach(), {n: p.grad.clone() for n, p in model.named_parameters()}


@pytest.fixture
def calls(monkeypatch):
    """How often our scan is called."""
    found = []

    def counted(scan):
        return lambda *arguments, **options: found.append(1) or scan(*arguments, **options)

    for name in ("selective_scan", "mamba_chunk_scan_combined"):
        monkeypatch.setattr(huggingface, name, counted(getattr(ts, name)))
    return found


@pytest.mark.parametrize("kind", KINDS)
def test_losses_and_gradients(kind, calls):
    model, ids = model_of(kind), torch.randint(0, 50, (2, 19))
    want, want_grads = run(model, ids)
    with ts.patch_transformers() as patch:
        assert kind in patch.models
        got, got_grads = run(model, ids)
    assert len(calls) == KINDS[kind][3]
    torch.testing.assert_close(got, want)
    for name, grad in got_grads.items():
        torch.testing.assert_close(grad, want_grads[name], rtol=1e-3, atol=1e-5, msg=name)
    again, _ = run(model, ids)
    assert len(calls) == KINDS[kind][3]
    assert torch.equal(again, want)


@pytest.mark.parametrize("kind", ["mamba", "mamba2"])
def test_generation(calls, kind):
    """The state after the prompt, which the steps start from, is ours."""
    model, ids = model_of(kind).eval(), torch.randint(0, 50, (1, 9))
    want = model.generate(ids, max_new_tokens=6, do_sample=False)
    with ts.patch_transformers():
        got = model.generate(ids, max_new_tokens=6, do_sample=False)
    assert len(calls) == 2
    assert torch.equal(got, want)


def test_patches_in_each_other():
    module = huggingface._module("mamba")
    original = module.mamba_selective_scan
    outer = ts.patch_transformers()
    ours = module.mamba_selective_scan
    assert ours is not original
    with ts.patch_transformers():
        assert module.mamba_selective_scan is ours
    assert module.mamba_selective_scan is ours
    outer.undo()
    outer.undo()
    assert module.mamba_selective_scan is original
    with pytest.raises(ZeroDivisionError, match="division"), ts.patch_transformers():
        1 / 0  # noqa: B018
    assert module.mamba_selective_scan is original


def test_another_version(monkeypatch):
    monkeypatch.setattr(huggingface, "_FAMILIES", {"no_such_scan": ("mamba",)})
    with pytest.raises(RuntimeError, match="expected a function no_such_scan"):
        ts.patch_transformers()
