"""Hugging Face's models with our scan: same outputs and gradients, and undone afterwards."""

import pytest

torch = pytest.importorskip("torch")
pytest.importorskip("transformers", reason="transformers is missing: its models are not run")

import tvm_scan.torch as ts  # noqa: E402
from tests.support.tiers import SEED, longer  # noqa: E402
from tvm_scan.torch import huggingface, replacements  # noqa: E402

pytestmark = pytest.mark.filterwarnings("ignore::FutureWarning", "ignore::DeprecationWarning")
SIZES = {"vocab_size": 50, "hidden_size": 24, "num_hidden_layers": 2}
ATTENTION = {"intermediate_size": 16, "num_attention_heads": 2, "num_key_value_heads": 2}
SCANS = ("selective_scan", "mamba_chunk_scan_combined", "gated_delta_rule", "kda")
HEADS = {
    **{"mamba_n_heads": 4, "mamba_d_head": 12, "mamba_n_groups": 2, "mamba_d_state": 4},
    **{"mamba_expand": 2, "mamba_chunk_size": 8},
}
MIXED = SIZES | ATTENTION
DELTA = {
    **{"linear_num_key_heads": 2, "linear_num_value_heads": 4, "linear_key_head_dim": 6},
    **{"linear_value_head_dim": 5, "layer_types": ["linear_attention", "full_attention"]},
    **{"head_dim": 12},
}
EXPERTS = {
    **{"num_experts": 2, "num_experts_per_tok": 1, "moe_intermediate_size": 16},
    **{"shared_expert_intermediate_size": 16},
}
KIMI = {
    **{"layer_types": ["linear_attention", "full_attention"], "kv_lora_rank": 8},
    **{"mlp_layer_types": ["dense", "dense"], "moe_intermediate_size": 16, "num_local_experts": 2},
    **{"num_experts_per_tok": 1, "qk_nope_head_dim": 6, "qk_rope_head_dim": 4, "v_head_dim": 6},
    **{"bos_token_id": 1, "eos_token_id": 2, "pad_token_id": 0},
}
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
    "qwen3_next": ("Qwen3Next", MIXED | DELTA | EXPERTS, 1),
    "qwen3_5": ("Qwen3_5", MIXED | DELTA, 1),
    "qwen3_5_moe": ("Qwen3_5Moe", MIXED | DELTA | EXPERTS, 1),
    "qwen4_exp": (
        "Qwen4Exp",
        {k: v for k, v in MIXED.items() if k != "intermediate_size"}
        | DELTA
        | EXPERTS
        | {"hc_count": 2, "hc_lowrank": 4, "indexer_n_heads": 2, "indexer_kv_heads": 1}
        | {"indexer_head_dim": 12, "indexer_budget": 64, "indexer_compress_ratio": 4},
        1,
    ),
    "olmo_hybrid": (
        "OlmoHybrid",
        {k: v for k, v in (MIXED | DELTA).items() if k != "head_dim"}
        | {"linear_num_key_heads": 4, "pad_token_id": 0, "bos_token_id": 1, "eos_token_id": 2},
        1,
    ),
    "kimi_linear": ("KimiLinear", MIXED | KIMI | {"linear_num_heads": 2, "linear_head_dim": 6}, 1),
    "bailing_hybrid": (
        "BailingHybrid",
        MIXED | KIMI | {"head_dim": 6, "n_group": 1, "topk_group": 1},
        1,
    ),
}
#: Those whose single steps of decoding run here, too.
STEPPED = ("qwen3_next", "qwen3_5", "qwen3_5_moe", "qwen4_exp", "olmo_hybrid", "kimi_linear")
STEPPED += ("bailing_hybrid",)


def model_of(kind):
    """A model whose scan matters: with the usual first weights, of 0.02, it does not."""
    import transformers

    torch.manual_seed(0)
    name, options, _ = KINDS[kind]
    configs = [c for c in (f"{name}TextConfig", f"{name}Config") if hasattr(transformers, c)]
    if not configs:
        pytest.skip(f"this version of transformers has no {name}")
    config = getattr(transformers, configs[0])(**options)
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

    for name in SCANS:
        monkeypatch.setattr(replacements, name, counted(getattr(replacements, name)))
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
    after = 2 * scans + (5 * scans if kind in STEPPED else 0)
    assert len(calls) == after
    torch.testing.assert_close(got, want, rtol=1e-4, atol=1e-4)
    assert got_grads.keys() == want_grads.keys()
    for name, grad in got_grads.items():
        torch.testing.assert_close(grad, want_grads[name], rtol=1e-3, atol=1e-5, msg=name)
    assert torch.equal(got_tokens[0], want_tokens[0])
    torch.testing.assert_close(got_tokens[1], want_tokens[1], rtol=1e-4, atol=1e-4)
    again, _ = run(model, given)
    assert len(calls) == after
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


def zeros(q, k, v, *_, **__):
    """Of a delta rule: outputs and states."""
    return torch.zeros_like(v), v.new_zeros(v.shape[0], v.shape[2], k.shape[3], v.shape[3])


@pytest.mark.parametrize("kind", ["mamba", "mamba2", "qwen3_next", "kimi_linear"])
def test_the_scan_matters(kind, monkeypatch):
    """A wrong scan would be seen by the test above."""
    model, given = model_of(kind), prompt()
    want, _ = run(model, given)
    for name in ("selective_scan", "mamba_chunk_scan_combined"):
        monkeypatch.setattr(replacements, name, lambda x, *_, **__: torch.zeros_like(x))
    for name in ("gated_delta_rule", "kda"):
        monkeypatch.setattr(replacements, name, zeros)
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


def packed(lengths, generator):
    """One row of sequences, and what transformers' collator says of where they begin."""
    ids = torch.randint(3, 50, (1, sum(lengths)), generator=generator)
    ends = torch.tensor([0, *lengths]).cumsum(0).to(torch.int32)
    numbers = torch.repeat_interleave(torch.arange(len(lengths)), torch.tensor(lengths))
    return {
        "input_ids": ids,
        "position_ids": torch.cat([torch.arange(n) for n in lengths])[None],
        "cu_seq_lens_q": ends,
        "cu_seq_lens_k": ends,
        "max_length_q": max(lengths),
        "max_length_k": max(lengths),
        "seq_idx": numbers[None].to(torch.int32),
    }


#: Without attention, which keeps packed sequences apart by kernels of its own alone. The models
#: named Mamba do not hand on what they are told of packed sequences.
RECURRENT = {
    "bamba": {"attn_layer_indices": []},
    "qwen3_next": {"layer_types": ["linear_attention"] * 2},
    "kimi_linear": {"layer_types": ["linear_attention"] * 2},
}


@pytest.mark.parametrize("named", ["both", "offsets"])
@pytest.mark.parametrize("kind", RECURRENT)
def test_packed_sequences(kind, named, monkeypatch):
    """Logits and gradients of sequences in one row are those of each by itself."""
    name, options, scans = KINDS[kind]
    monkeypatch.setitem(KINDS, kind, (name, options | RECURRENT[kind], scans))
    model, lengths = model_of(kind), [7, 1, 11]
    given = packed(lengths, torch.Generator().manual_seed(0))
    if named == "offsets":
        del given["seq_idx"]
    weights = torch.linspace(-1, 1, 50)
    with ts.patch_transformers():
        got = model(**given, use_cache=False).logits[0]
        (got * weights).sum().backward()
        got_grads = {n: p.grad.clone() for n, p in model.named_parameters() if p.grad is not None}
        model.zero_grad()
        rows = given["input_ids"].split(lengths, 1)
        parts = [model(ids, use_cache=False).logits[0] for ids in rows]
        (torch.cat(parts) * weights).sum().backward()
    torch.testing.assert_close(got, torch.cat(parts), rtol=1e-4, atol=1e-4)
    for parameter, grad in got_grads.items():
        want = dict(model.named_parameters())[parameter].grad
        assert (grad - want).abs().max() <= 1e-4 * want.abs().max() + 1e-6, parameter


@pytest.mark.parametrize("kind", ["bamba", "qwen3_next"])
def test_offsets_that_do_not_reach_the_end_are_refused(kind, monkeypatch):
    name, options, scans = KINDS[kind]
    monkeypatch.setitem(KINDS, kind, (name, options | RECURRENT[kind], scans))
    given = packed([7, 12], torch.Generator().manual_seed(0))
    ends = torch.tensor([0, 7, 18], dtype=torch.int32)
    with ts.patch_transformers(), pytest.raises(ValueError, match="rising from 0 to 19"):
        model_of(kind)(**given | {"cu_seq_lens_q": ends}, use_cache=False)


def test_numbers_of_sequences_without_offsets_are_refused():
    model = model_of("qwen3_next")
    given = packed([7, 12], torch.Generator().manual_seed(0))
    with ts.patch_transformers(), pytest.raises(ValueError, match="pass the model cu_seq_lens_q"):
        model(input_ids=given["input_ids"], seq_idx=given["seq_idx"])


@pytest.mark.parametrize("wants_state", [False, True])
def test_a_layer_of_glm5_next(wants_state, calls):
    """Of a model for images and text, so that the layer alone is run."""
    module = huggingface._module("glm5_next")
    transformers = pytest.importorskip("transformers")
    if module is None or not hasattr(transformers, "Glm5NextTextConfig"):
        pytest.skip("this version of transformers has no GLM5-Next")
    torch.manual_seed(0)
    config = transformers.Glm5NextTextConfig(
        hidden_size=24, linear_head_dim=6, linear_num_heads=2, num_hidden_layers=1,
        layer_types=["linear_attention"], mlp_layer_types=["dense"],
    )  # fmt: skip
    layer = module.Glm5NextTextLinearAttention(config, 0)
    with torch.no_grad():
        for weight in layer.parameters():
            weight.normal_(std=weight[0].numel() ** -0.5 if weight.dim() > 1 else 0.5)
    x = torch.randn(2, 19, 24)
    cache = (lambda: transformers.DynamicCache(config=config)) if wants_state else (lambda: None)

    def outcome():
        layer.zero_grad()
        out = layer(x, cache_params=cache())
        out.square().sum().backward()
        return out.detach(), {n: p.grad.clone() for n, p in layer.named_parameters()}

    want, want_grads = outcome()
    with ts.patch_transformers() as patch:
        assert "glm5_next" in patch.models
        got, got_grads = outcome()
    assert len(calls) == 1
    torch.testing.assert_close(got, want, rtol=1e-4, atol=1e-5)
    for name, grad in got_grads.items():
        torch.testing.assert_close(grad, want_grads[name], rtol=1e-3, atol=1e-5, msg=name)


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
    monkeypatch.setattr(huggingface, "_FAMILIES", {("no_such_scan",): ("mamba",)})
    with pytest.raises(RuntimeError, match="expected a function no_such_scan"):
        ts.patch_transformers()
