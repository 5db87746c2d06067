"""Hugging Face's models with our scan: same outputs and gradients, and undone afterwards."""

import pytest

torch = pytest.importorskip("torch")
pytest.importorskip("transformers", reason="transformers is missing: its models are not run")

import tvm_scan.torch as ts  # noqa: E402
from tests.support.tiers import SEED, longer  # noqa: E402
from tvm_scan.torch import huggingface  # noqa: E402

pytestmark = pytest.mark.filterwarnings("ignore::FutureWarning", "ignore::DeprecationWarning")
SIZES = {"vocab_size": 50, "hidden_size": 24, "num_hidden_layers": 2}
ATTENTION = {"intermediate_size": 16, "num_attention_heads": 2, "num_key_value_heads": 2}
HEADS = {
    **{"mamba_n_heads": 4, "mamba_d_head": 12, "mamba_n_groups": 2, "mamba_d_state": 4},
    **{"mamba_expand": 2, "mamba_chunk_size": 8},
}
MIXED = SIZES | ATTENTION
#: Model type -> the beginning of its names, options, and how many scans a forward pass has.
KINDS = {
    "mamba": ("Mamba", SIZES | {"state_size": 4}, 2),
    "falcon_mamba": ("FalconMamba", SIZES | {"state_size": 4}, 2),
    "jamba": (
        "Jamba",
        MIXED
        | {"attn_layer_offset": 1, "attn_layer_period": 2, "expert_layer_offset": 1}
        | {"expert_layer_period": 2, "num_experts": 2, "mamba_d_state": 4, "mamba_dt_rank": 4},
        1,
    ),
    "zamba": (  # three layers, one of which is a Mamba layer alone; two heads each
        "Zamba",
        MIXED
        | {"num_hidden_layers": 3, "layer_types": ["mamba", "hybrid", "hybrid"]}
        | {"mamba_d_state": 4, "mamba_dt_rank": 4, "n_mamba_heads": 2}
        | {"attention_hidden_size": 48, "attention_head_dim": 24},
        6,
    ),
    "mamba2": (
        "Mamba2",
        SIZES | {"state_size": 4, "num_heads": 4, "head_dim": 12, "n_groups": 2, "chunk_size": 8},
        2,
    ),
    "bamba": ("Bamba", MIXED | HEADS | {"attn_layer_indices": [1]}, 1),
    "falcon_h1": ("FalconH1", MIXED | HEADS | {"mamba_d_ssm": 48}, 2),
    "granitemoehybrid": (
        "GraniteMoeHybrid",
        MIXED
        | HEADS
        | {"layer_types": ["mamba", "attention"], "num_local_experts": 2}
        | {"num_experts_per_tok": 1, "shared_intermediate_size": 16},
        1,
    ),
    "nemotron_h": (
        "NemotronH",
        MIXED
        | {"layers_block_type": ["mamba", "attention"], "mamba_num_heads": 4, "n_groups": 2}
        | {"mamba_head_dim": 12, "ssm_state_size": 4, "chunk_size": 8, "head_dim": 12},
        1,
    ),
    "zamba2": (
        "Zamba2",
        MIXED
        | {"layers_block_type": ["mamba", "hybrid"], "mamba_d_state": 4, "mamba_ngroups": 2}
        | {"mamba_headdim": 12, "n_mamba_heads": 4, "mamba_expand": 2, "chunk_size": 8}
        | {"num_mem_blocks": 1, "use_shared_attention_adapter": False, "adapter_rank": 2},
        2,
    ),
}


def model_of(kind):
    """A model whose scan matters: with the usual first weights, of 0.02, it does not."""
    import transformers

    torch.manual_seed(0)
    name, options, _ = KINDS[kind]
    if not hasattr(transformers, f"{name}Config"):
        pytest.skip(f"this version of transformers has no {name}")
    config = getattr(transformers, f"{name}Config")(**options)
    model = getattr(transformers, f"{name}ForCausalLM")(config)
    with torch.no_grad():
        for weight in model.parameters():
            if weight.dim() > 1:
                weight.normal_(std=weight[0].numel() ** -0.5)
    return model


def prompt():
    """Two rows of tokens, the first with padding on its left."""
    generator = torch.Generator().manual_seed(0)
    ids = torch.randint(3, 50, (2, 19), generator=generator)
    mask = torch.ones_like(ids)
    mask[0, :5] = 0
    return {"input_ids": ids, "attention_mask": mask}


def run(model, given):
    model.train()
    model.zero_grad()
    out = model(**given, labels=given["input_ids"])
    out.loss.backward()
    grads = {n: p.grad.clone() for n, p in model.named_parameters() if p.grad is not None}
    return out.logits.detach(), grads


def generated(model, given):
    """Tokens and scores of a prompt and six steps, which start from the state after it."""
    model.eval()
    options = {"max_new_tokens": 6, "do_sample": False, "pad_token_id": 0, "eos_token_id": None}
    out = model.generate(**given, **options, output_scores=True, return_dict_in_generate=True)
    return out.sequences, torch.stack(out.scores)


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
def test_outputs_gradients_and_generation(kind, calls):
    model, given, scans = model_of(kind), prompt(), KINDS[kind][2]
    want, want_grads = run(model, given)
    want_tokens = generated(model, given)
    with ts.patch_transformers() as patch:
        assert kind in patch.models
        got, got_grads = run(model, given)
        assert len(calls) == scans
        got_tokens = generated(model, given)
    assert len(calls) == 2 * scans
    torch.testing.assert_close(got, want, rtol=1e-4, atol=1e-4)
    assert got_grads.keys() == want_grads.keys()
    for name, grad in got_grads.items():
        torch.testing.assert_close(grad, want_grads[name], rtol=1e-3, atol=1e-5, msg=name)
    assert torch.equal(got_tokens[0], want_tokens[0])
    torch.testing.assert_close(got_tokens[1], want_tokens[1], rtol=1e-4, atol=1e-4)
    again, _ = run(model, given)
    assert len(calls) == 2 * scans
    assert torch.equal(again, want)


@pytest.mark.parametrize("kind", longer(list(KINDS)[SEED % 3 :: 3], list(KINDS)))
def test_gradients_have_as_many_digits(kind):
    """Of every parameter, beside those of the unpatched model; both against float64."""
    model, given = model_of(kind), prompt()
    exact = model_of(kind).double()
    exact.config._experts_implementation = "eager"  # the others have no float64
    want, plain = run(exact, given)[1], run(model, given)[1]
    with ts.patch_transformers():
        got = run(model, given)[1]
    for name, grad in want.items():
        error, other = (float((t[name] - grad).abs().max()) for t in (got, plain))
        assert error <= 3 * other + 1e-6 * float(grad.abs().max()), name


@pytest.mark.parametrize("kind", ["mamba", "mamba2"])
def test_the_scan_matters(kind, monkeypatch):
    """A wrong scan would be seen by the test above."""
    model, given = model_of(kind), prompt()
    want, _ = run(model, given)
    for name in ("selective_scan", "mamba_chunk_scan_combined"):
        monkeypatch.setattr(huggingface, name, lambda x, *_, **__: torch.zeros_like(x))
    with ts.patch_transformers():
        got, _ = run(model, given)
    assert (got - want).abs().max() > 0.1


@pytest.mark.parametrize("kind", ["mamba", "bamba"])
def test_bfloat16(kind):
    model, given = model_of(kind).bfloat16(), prompt()
    want, _ = run(model, given)
    want_tokens = generated(model, given)
    with ts.patch_transformers():
        got, _ = run(model, given)
        got_tokens = generated(model, given)
    # Some ten roundings to 8 bits, of numbers up to 4, in one order or another.
    torch.testing.assert_close(got, want, rtol=0.05, atol=0.1)
    # The first score is of the same tokens; later tokens may differ.
    torch.testing.assert_close(got_tokens[1][0], want_tokens[1][0], rtol=0.05, atol=0.1)


def test_a_prompt_in_pieces():
    """Mamba-2 goes on from the cache with more than one token: the state enters our scan."""
    model, ids = model_of("mamba2").eval(), prompt()["input_ids"]
    with torch.no_grad(), ts.patch_transformers():
        whole = model(ids).logits
        first = model(ids[:, :12], use_cache=True)
        rest = model(ids[:, 12:], cache_params=first.cache_params, use_cache=True).logits
    torch.testing.assert_close(torch.cat((first.logits, rest), 1), whole, rtol=1e-4, atol=1e-4)


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


def test_undone_everywhere():
    """Every name of every model's module is what it was."""
    models = [model for family in huggingface._FAMILIES.values() for model in family]
    before = {model: dict(vars(huggingface._module(model))) for model in models}
    patch = ts.patch_transformers()
    replaced = [m for m in models if vars(huggingface._module(m)) != before[m]]
    assert sorted(replaced) == sorted(patch.models)
    patch.undo()
    assert all(vars(huggingface._module(model)) == before[model] for model in models)


def test_another_version(monkeypatch):
    monkeypatch.setattr(huggingface, "_FAMILIES", {"no_such_scan": ("mamba",)})
    with pytest.raises(RuntimeError, match="expected a function no_such_scan"):
        ts.patch_transformers()
