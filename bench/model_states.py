"""The state of a model between calls, as a flat list of tensors that goes in and comes out."""

from __future__ import annotations

from typing import Any

__all__ = ["Decode", "Prefill"]

#: Models whose state is an argument of their own, and those that keep it in their modules.
_ARGUMENT, _ATTRIBUTES = ("RwkvForCausalLM",), ("RecurrentGemmaForCausalLM",)


def _call(model: Any, ids: Any, states: Any, seen: int) -> tuple[Any, ...]:
    """Logits, then the state behind ``ids``; `states` is None before the first token."""
    kind = type(model).__name__
    if kind in _ARGUMENT:
        given = None if states is None else [s.clone() for s in states]
        out = model(input_ids=ids, state=given, use_cache=True)
        return (out.logits, *out.state)
    if kind in _ATTRIBUTES:
        return _in_modules(model, ids, states, seen)
    from transformers import DynamicCache

    cache = DynamicCache(config=model.config)
    for at, layer in enumerate(cache.layers if states is not None else []):
        _restore(layer, *states[2 * at : 2 * at + 2])
    # The pure state-space models name it after its contents, the hybrids after attention; those
    # are told where they are, as Bamba does not look into its cache for that.
    if "mamba" in kind.lower():
        named = {"cache_params": cache}
    else:
        named = {"past_key_values": cache, "position_ids": _places(ids, seen)}
    logits = model(input_ids=ids, use_cache=True, **named).logits
    return (logits, *(s for layer in cache.layers for s in _parts(layer)))


def _places(ids: Any, seen: int) -> Any:
    import torch

    return torch.arange(seen, seen + ids.shape[1]).unsqueeze(0)


def _is_recurrent(layer: Any) -> bool:
    return hasattr(layer, "recurrent_states")


def _restore(layer: Any, first: Any, second: Any) -> None:
    if _is_recurrent(layer):
        layer.lazy_initialization(conv_states=first, recurrent_states=second)
        layer.conv_states[0], layer.recurrent_states[0] = first.clone(), second.clone()
        layer.has_previous_state[0] = True
    else:
        layer.lazy_initialization(first, second)
        layer.keys, layer.values = first, second


def _parts(layer: Any) -> tuple[Any, Any]:
    if _is_recurrent(layer):
        return layer.conv_states[0], layer.recurrent_states[0]
    return layer.keys, layer.values


def _in_modules(model: Any, ids: Any, states: Any, seen: int) -> tuple[Any, ...]:
    import torch
    from transformers import DynamicCache

    blocks = [layer.temporal_block for layer in model.model.layers]
    for at, block in enumerate(blocks):
        shape = (ids.shape[0], block.lru_width)
        # What `_setup_cache` of the model makes, which is skipped where a cache is given.
        first = torch.zeros(*shape, block.conv1d_width - 1) if states is None else states[2 * at]
        second = torch.zeros(shape) if states is None else states[2 * at + 1]
        block.conv1d_state, block.rg_lru.recurrent_states = first, second
    # Without the masks, which a cache of no attention at all cannot give in transformers 5.23.
    out = model(
        input_ids=ids,
        position_ids=_places(ids, seen),
        attention_mask={"sliding_attention": None},
        past_key_values=DynamicCache(config=model.config),
        use_cache=True,
    )
    after = [s for block in blocks for s in (block.conv1d_state, block.rg_lru.recurrent_states)]
    for block in blocks:
        block.conv1d_state = block.rg_lru.recurrent_states = None
    return (out.logits, *after)


def _modules() -> tuple[type, type]:
    import torch

    class Prefill(torch.nn.Module):
        """Logits of a whole sequence; with `keep`, also the state behind it."""

        def __init__(self, model: Any, keep: bool = False) -> None:
            super().__init__()
            self.model, self.keep = model, keep

        def forward(self, ids: Any) -> Any:
            if not self.keep:
                return (self.model(input_ids=ids, use_cache=False).logits,)
            return _call(self.model, ids, None, 0)

    class Decode(torch.nn.Module):
        """Logits of one token behind `seen` others, given the state, and the next state."""

        def __init__(self, model: Any, seen: int) -> None:
            super().__init__()
            self.model, self.seen = model, seen

        def forward(self, ids: Any, *states: Any) -> Any:
            return _call(self.model, ids, states, self.seen)

    return Prefill, Decode


def Prefill(model: Any, keep: bool = False) -> Any:
    """A module that runs a whole sequence."""
    return _modules()[0](model, keep)


def Decode(model: Any, seen: int) -> Any:
    """A module that runs one token from the state behind `seen` tokens."""
    return _modules()[1](model, seen)
