"""Layers of transformers' models: Llama, Qwen2, Qwen3 and GPT-2, divided at their blocks."""

import json
from typing import Any

import torch
from torch import nn

from isobar_torch.document import InputError, read_json
from isobar_torch.workload import Workload

ROTARY = ("llama", "qwen2", "qwen3")


class Embedding(nn.Module):
    """Tokens to hidden states; in GPT-2 with positions and dropout."""

    def __init__(self, body: Any) -> None:
        super().__init__()
        is_gpt2 = hasattr(body, "wte")
        self.words = body.wte if is_gpt2 else body.embed_tokens
        self.positions = body.wpe if is_gpt2 else None
        self.dropout = body.drop if is_gpt2 else nn.Identity()

    def forward(self, tokens: torch.Tensor) -> torch.Tensor:
        hidden = self.words(tokens)
        if self.positions is not None:
            hidden = hidden + self.positions(torch.arange(tokens.shape[1], device=tokens.device))
        return self.dropout(hidden)


class Block(nn.Module):
    """A block. `rotary` makes the cosines and sines of rotary positions; None: the block needs none."""

    def __init__(self, block: nn.Module, rotary: nn.Module | None) -> None:
        super().__init__()
        self.block, self.rotary = block, rotary

    def forward(self, hidden: torch.Tensor) -> torch.Tensor:
        if self.rotary is None:
            output = self.block(hidden)
        else:
            places = torch.arange(hidden.shape[1], device=hidden.device).unsqueeze(0)
            output = self.block(hidden, attention_mask=None, position_ids=places,
                                position_embeddings=self.rotary(hidden, places))
        return output[0] if isinstance(output, tuple) else output


class Head(nn.Module):
    """The last norm and the projection to the vocabulary."""

    def __init__(self, norm: nn.Module, words: nn.Module) -> None:
        super().__init__()
        self.norm, self.words = norm, words

    def forward(self, hidden: torch.Tensor) -> torch.Tensor:
        return self.words(self.norm(hidden))


def check_model(file: str, workload: Workload) -> Any:
    """transformers' configuration in `file`. Raises InputError where it is another model than the workload's."""
    reader = read_json(file)
    reader.choice("model_type", (*ROTARY, "gpt2"))
    try:
        import transformers
    except ImportError:
        raise InputError("--model: transformers is not installed; pip install 'isobar-torch[models]'") from None
    config = transformers.AutoConfig.for_model(**json.loads(json.dumps(reader.value)))
    for what, there, here in (("layers", config.num_hidden_layers, workload.layers),
                              ("hidden width", config.hidden_size, workload.hidden),
                              ("vocabulary", config.vocab_size, workload.vocabulary)):
        if there != here:
            raise InputError(f"{file}: {what} {there}; {workload.file} has {here}")
    # The stages that have them hold a matrix each.
    config.tie_word_embeddings = False
    config.use_cache = False
    return config


def transformers_layers(config: Any, workload: Workload, numbers: range, seed: int,
                        device: torch.device) -> dict[str, nn.Module]:
    """The layers with these numbers, by name. Only they have memory; others stay on the meta device."""
    import transformers

    with torch.device("meta"):
        model = transformers.AutoModelForCausalLM.from_config(config, attn_implementation="sdpa")
    body = model.transformer if config.model_type == "gpt2" else model.model
    blocks = body.h if config.model_type == "gpt2" else body.layers
    rotary = None if config.model_type == "gpt2" else type(body.rotary_emb)(config).to(device)
    norm = body.ln_f if config.model_type == "gpt2" else body.norm
    names, layers = workload.names(), {}
    for i in numbers:
        layer: nn.Module
        if i == 0:
            layer = Embedding(body)
        elif i == workload.layers + 1:
            layer = Head(norm, model.lm_head)
        else:
            layer = blocks[i - 1]
        layer = layer.to_empty(device=device)
        for module in layer.modules():
            if isinstance(module, nn.LayerNorm):
                module.reset_parameters()
        for name, buffer in list(layer.named_buffers()):
            parent = layer.get_submodule(name.rpartition(".")[0])
            setattr(parent, name.rpartition(".")[2], _causal(buffer) if buffer.dtype == torch.bool else buffer)
        with torch.random.fork_rng(devices=[]):
            torch.manual_seed(seed * 1_000_003 + i)
            layer.apply(model._init_weights)
        layers[names[i]] = layer if i in (0, workload.layers + 1) else Block(layer, rotary)
    return layers


def _causal(mask: torch.Tensor) -> torch.Tensor:
    """GPT-2's buffer `bias`: which token sees which."""
    return torch.ones(mask.shape, dtype=torch.bool, device=mask.device).tril()
