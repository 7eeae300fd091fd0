"""The completeness check between a family's weight table and a checkpoint's tensors."""

from models.naming import Source, match

WEIGHTS = {
    "embed.weight": "model.embed_tokens.weight",
    "layers.up.weight": Source("model.layers.{layer}.up.weight", lambda values, want: values.T),
}
PARAMETERS = {"embed.weight": (7, 3), "layers.up.weight": (2, 5, 3)}
TENSORS = {
    "model.embed_tokens.weight": (7, 3),
    "model.layers.0.up.weight": (3, 5),
    "model.layers.1.up.weight": (3, 5),
}


def test_a_complete_checkpoint_matches_layer_by_layer_after_its_transforms():
    """Oracle: the names written out."""
    found = match(WEIGHTS, PARAMETERS, TENSORS)
    assert found.problems == ()
    assert found.tensors == {
        "embed.weight": ("model.embed_tokens.weight",),
        "layers.up.weight": ("model.layers.0.up.weight", "model.layers.1.up.weight"),
    }


def test_missing_misshapen_and_unused_tensors_are_all_named():
    """Oracle: the sentences written out."""
    tensors = TENSORS | {"model.layers.1.up.weight": (5, 3), "model.layers.2.up.weight": (3, 5)}
    del tensors["model.embed_tokens.weight"]
    assert match(WEIGHTS, PARAMETERS, tensors).problems == (
        "missing: model.embed_tokens.weight [7, 3], for embed.weight",
        "shape: model.layers.1.up.weight is [3, 5], the config needs [5, 3]",
        "unused: model.layers.2.up.weight [3, 5]",
    )


def test_recomputed_buffers_vision_towers_draft_layers_and_tied_logits_may_be_left_over():
    """Oracle: tensors that published checkpoints carry beside the decoder."""
    extra = {
        "model.layers.0.self_attn.rotary_emb.inv_freq": (8,),
        "model.visual.blocks.0.norm.weight": (4,),
        "model.layers.2.eh_proj.weight": (3, 6),
        "model.layers.2.up.weight": (3, 5),
        "multi_modal_projector.linear.weight": (4, 4),
        "lm_head.weight": (7, 3),
    }
    assert match(WEIGHTS, PARAMETERS, TENSORS | extra).problems == ()
    untied = match(
        WEIGHTS | {"logits.weight": "lm_head.weight"},
        PARAMETERS | {"logits.weight": (8, 3)},
        TENSORS | extra,
    )
    assert untied.problems == ("shape: lm_head.weight is [7, 3], the config needs [8, 3]",)


def test_experts_are_tensors_of_their_own_or_one_tensor_a_layer():
    """Oracle: the names written out."""
    weights = {
        "layers.up.weight": (
            "{layer}.experts.{expert}.up",
            Source("{layer}.experts.up", lambda values, want: values.reshape(want)),
        )
    }
    parameters, stacks = {"layers.up.weight": (2, 2, 5, 3)}, {"layers.up.weight": (1, 3)}
    apart = {f"{layer}.experts.{expert}.up": (5, 3) for layer in (1, 3) for expert in (0, 1)}
    together = {"1.experts.up": (2, 15), "3.experts.up": (2, 15)}
    for tensors in (apart, together):
        found = match(weights, parameters, tensors, stacks)
        assert found.problems == () and found.tensors["layers.up.weight"] == tuple(tensors)
    assert match(weights, parameters, {}, stacks).problems[0] == (
        "missing: 1.experts.0.up [5, 3], for layers.up.weight"
    )
