"""Rules that choose the personal leaves of a model."""

import pytest
from flax import linen as nn

from fedjax_het import sharing
from fedjax_het.errors import InputError

PATHS = [
    "params/layer1/downsample_1/scale",
    "params/layer1/downsample_0/kernel",
    "batch_stats/layer1/downsample_1/mean",
    "params/bn_free_dense/kernel",
    "params/group/scale",
    "params/classifier/bias",
]
LAYERS = {
    "layer1": nn.Module,
    "layer1/downsample_0": nn.Conv,
    "layer1/downsample_1": nn.BatchNorm,
    "bn_free_dense": nn.Dense,
    "group": nn.GroupNorm,
    "classifier": nn.Dense,
}


def chosen_paths(rule):
    return sharing.personal_paths(rule, PATHS, LAYERS)


def test_norm_layers_are_recognized_by_class_and_not_by_name():
    assert chosen_paths(sharing.batch_norms) == {PATHS[0], PATHS[2]}
    assert chosen_paths(sharing.all_norms) == {PATHS[0], PATHS[2], PATHS[4]}


def test_a_subclass_of_a_norm_layer_is_personal():
    class Own(nn.BatchNorm):
        pass

    assert sharing.personal_paths(sharing.batch_norms, ["params/x/scale"], {"x": Own}) == {"params/x/scale"}


def test_patterns_choose_leaves_by_path():
    assert chosen_paths(sharing.personal("params/classifier/*")) == {PATHS[-1]}
    assert chosen_paths(sharing.share_all) == set()


def test_a_pattern_that_matches_no_leaf_is_refused():
    with pytest.raises(InputError, match=r"no leaf.*params/clasifier/\*"):
        chosen_paths(sharing.personal("params/clasifier/*"))


@pytest.mark.parametrize(
    ("rule", "message"),
    [
        (
            sharing.personal_layers(nn.LayerNorm),
            r"has no layer of class LayerNorm; .* are of class BatchNorm, Conv, De",
        ),
        (sharing.personal_layers(nn.Embed, nn.LayerNorm), r"has no layer of class Embed or LayerNorm"),
        (sharing.personal(), r"the rule 'personal\(\)' keeps none of the model's leaves personal \(params/layer1"),
        (lambda leaf: leaf.path.endswith("/bn"), r"'<lambda>' keeps none.*sharing=share_all"),
    ],
)
def test_a_rule_that_chooses_no_leaf_is_refused_unless_it_is_share_all(rule, message):
    with pytest.raises(InputError, match=message):
        chosen_paths(rule)


def test_the_error_names_layers_without_leaves():
    layers = {"norm": nn.BatchNorm, "head": nn.Dense}
    with pytest.raises(InputError, match=r"layers of class BatchNorm, but without parameters or statistics \(norm\)"):
        sharing.personal_paths(sharing.batch_norms, ["params/head/kernel"], layers)


def test_a_custom_rule_chooses_leaves():
    assert chosen_paths(lambda leaf: leaf.path.endswith("/bias")) == {PATHS[-1]}


def test_share_only_keeps_all_other_leaves_personal():
    assert chosen_paths(sharing.share_only("params/classifier/*", "params/group/*")) == set(PATHS[:4])
