"""Draft heads for toy targets: random ones, saved and loaded as trained ones are."""

import torch
from transformers import LlamaConfig

import toys
from specviz.distill.headnet import HeadNet, start_weights
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
    """Starts from the target's last layer, so that it agrees now and then."""
    table = target.model.get_input_embeddings().weight.detach()
    kept = torch.arange(0, len(table), 2) if kept is None else torch.tensor(kept)
    made = HeadNet(shape(kind, target, **more), table, len(kept))
    start_weights(made, target.model, [1, 0][: made.shape.num_layers], 0)
    with torch.no_grad():
        made.kept_ids.copy_(kept)
        if kind == "pruned":
            made.shift.normal_(generator=torch.Generator().manual_seed(1))
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
