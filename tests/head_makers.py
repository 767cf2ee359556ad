"""Draft heads for toy targets: random ones, saved and loaded as trained ones are."""

import torch
import toys
from transformers import LlamaConfig

from specviz.distill.headfit import fit_states, start_weights
from specviz.distill.headnet import HeadNet
from specviz.drafts.head import HeadShape
from specviz.drafts.head_file import load_head, save_head


def shape(kind: str, target, **more) -> HeadShape:
    config = target.config
    sizes = {
        "hidden_size": config.hidden_size,
        "inner_size": config.intermediate_size,
        "num_layers": 1,
        "num_heads": config.num_attention_heads,
        "num_kv_heads": config.num_key_value_heads,
        "head_dim": config.hidden_size // config.num_attention_heads,
        "rope_theta": 10_000.0,
        "norm_eps": 1e-5,
    }
    return HeadShape(kind=kind, **{**sizes, **more})


def net(kind: str, target, kept=None, **more) -> HeadNet:
    """Random where it learns and the target's own where it copies; half of the tokens are kept."""
    table = target.model.get_input_embeddings().weight.detach()
    kept = torch.arange(0, len(table), 2) if kept is None else torch.tensor(kept)
    made = HeadNet(shape(kind, target, **more), table, len(kept))
    start_weights(made, target.model, list(range(made.shape.num_layers)), 0)
    with torch.no_grad():
        made.kept_ids.copy_(kept)
        if kind == "pruned":
            made.shift.normal_(generator=torch.Generator().manual_seed(1))
        for layer in made.layers:  # they start at zero, which would hide mistakes
            layer.out.weight.normal_(std=0.1, generator=torch.Generator().manual_seed(2))
            layer.down.weight.normal_(std=0.1, generator=torch.Generator().manual_seed(3))
    return made


def save(folder, made: HeadNet, target) -> None:
    folder.mkdir(exist_ok=True)
    save_head(folder, made.shape, dict(made.named_parameters()), made.kept_ids, target.name, made.table)


def head(folder, kind: str, target, **more):
    """A source for `target`."""
    save(folder, net(kind, target, **more), target)
    return load_head(folder, kind, target)


def tied(**more):
    """A target whose head is its embeddings."""
    return toys.loaded(toys.build(LlamaConfig(**{**toys.SHAPE, "tie_word_embeddings": True, **more})), "TIED")


def agreeing(folder, kind: str, target):
    """A source that agrees partly: the target's only layer with noise, or states guessed by regression."""
    made = net(kind, target, kept=range(toys.VOCAB))
    generator = torch.Generator().manual_seed(3)
    with torch.no_grad():
        if kind == "pruned":
            theirs, ours = target.model.model.layers[0], made.layers[0]
            made.shift.zero_()
            ours.out.weight.copy_(theirs.self_attn.o_proj.weight)
            ours.down.weight.copy_(theirs.mlp.down_proj.weight)
            ours.down.weight += 0.05 * torch.randn(ours.down.weight.shape, generator=generator)
        else:
            texts = torch.randint(toys.VOCAB, (400, 24), generator=generator)
            states = target.model.get_decoder()(texts).last_hidden_state
            inside = torch.ones(400, 23, dtype=torch.bool)
            fit_states(made, lambda: [(texts[:, 1:], states, inside)])
    save(folder, made, target)
    return load_head(folder, kind, target)
