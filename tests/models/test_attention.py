"""Attention and the transformer block: against Flax's attention, grouped and fused projections, masks, gradients."""

import re
from functools import partial

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from flax import linen as nn

from fedjax_het import tree
from fedjax_het._internal.keys import make_key
from fedjax_het.models._attention import Attention, Block

KEY = make_key(0)
X = jax.random.normal(KEY, (2, 5, 8))
MASK = jnp.array([[1, 1, 1, 1, 0], [0, 0, 0, 0, 0]])


def random_variables(module, *inputs):
    shapes = jax.eval_shape(lambda: module.init(KEY, X, *inputs))
    leaves = tree.leaves_by_path(shapes).items()
    keys = jax.random.split(KEY, len(leaves))
    return tree.from_paths(
        {path: 0.5 * jax.random.normal(key, leaf.shape) for key, (path, leaf) in zip(keys, leaves, strict=True)}
    )


@pytest.mark.extended
@pytest.mark.parametrize("is_causal", [False, True])
def test_attention_and_its_first_weights_are_those_of_flax(is_causal):
    theirs, ours = nn.MultiHeadDotProductAttention(4), Attention(4, is_causal=is_causal)
    drawn = theirs.init(KEY, X)["params"]
    shapes = jax.eval_shape(ours.init, KEY, X)["params"]
    given = jax.tree.map(lambda leaf, shape: leaf.reshape(shape.shape), drawn, shapes)
    jax.tree.map(np.testing.assert_array_equal, ours.init(KEY, X)["params"], given)
    mask = nn.make_causal_mask(X[..., 0]) if is_causal else None
    expected = theirs.apply({"params": drawn}, X, mask=mask)
    np.testing.assert_allclose(ours.apply({"params": given}, X), expected, atol=1e-6)


@pytest.mark.extended
def test_a_fused_projection_is_the_three_projections_beside_each_other():
    separate, fused = Attention(4, 2, 6, use_bias=True), Attention(4, 2, 6, is_fused=True)
    params = random_variables(separate)["params"]
    joined = [params[name] for name in ("query", "key", "value")]
    joined = {name: jnp.concatenate([layer[name] for layer in joined], -1) for name in ("kernel", "bias")}
    assert joined["kernel"].shape == (8, 48)
    y = fused.apply({"params": {"qkv": joined, "out": params["out"]}}, X)
    np.testing.assert_allclose(y, separate.apply({"params": params}, X), atol=1e-6)


@pytest.mark.extended
def test_grouped_queries_share_the_keys_and_values_of_their_group():
    grouped, all_heads = Attention(4, 2), Attention(4)
    params = random_variables(grouped)["params"]
    repeated = {
        name: jax.tree.map(lambda x: jnp.repeat(x.reshape(*x.shape[:-1], 2, 2), 2, -2).reshape(*x.shape[:-1], 8), layer)
        for name, layer in params.items()
        if name in ("key", "value")
    }
    y = all_heads.apply({"params": params | repeated}, X)
    np.testing.assert_allclose(grouped.apply({"params": params}, X), y, atol=1e-6)


@pytest.mark.slow
def test_masked_keys_have_no_influence_and_rows_without_keys_no_nan():
    block = Block(partial(Attention, 2), 16)
    variables = random_variables(block, False)
    run = lambda variables, x: block.apply(variables, x, False, MASK)  # noqa: E731
    changed = run(variables, X.at[0, 4].set(9.0))
    np.testing.assert_array_equal(changed[0, :4], run(variables, X)[0, :4])
    gradients = jax.grad(lambda *given: jnp.sum(run(*given) ** 2), argnums=(0, 1))(variables, X)
    assert all(np.isfinite(leaf).all() for leaf in jax.tree.leaves((changed, gradients)))


@pytest.mark.extended
def test_rotary_scores_depend_on_distances_alone():
    attention = Attention(2)
    variables = random_variables(attention)

    def run(start):
        angles = jnp.tile((start + jnp.arange(5.0))[:, None] * jnp.array([1.0, 0.1]), 2)[None]
        return attention.apply(variables, X, None, (jnp.cos(angles), jnp.sin(angles)))

    np.testing.assert_allclose(run(0.0), run(7.0), atol=1e-5)
    assert not np.allclose(run(0.0), attention.apply(variables, X), atol=1e-3)


@pytest.mark.extended
@pytest.mark.parametrize("is_post_norm", [False, True])
def test_a_block_follows_its_formula(is_post_norm):
    block = Block(partial(Attention, 2), 16, is_post_norm=is_post_norm, activation="swiglu", layer_scale=1e-2)
    variables = random_variables(block, False)
    params = variables["params"]
    norms = [lambda x, index=index: nn.LayerNorm().apply({"params": params[f"norm_{index}"]}, x) for index in range(2)]
    dense = lambda name, x: x @ params[name]["kernel"] + params[name]["bias"]  # noqa: E731
    mlp = lambda x: dense("dense_1", jax.nn.silu(dense("dense_gate", x)) * dense("dense_0", x))  # noqa: E731
    branches = [lambda x: Attention(2).apply({"params": params["attention"]}, x), mlp]
    x = X
    for index, (norm, branch) in enumerate(zip(norms, branches, strict=True)):
        y = params[f"layer_scale_{index}"] * branch(x if is_post_norm else norm(x))
        x = norm(x + y) if is_post_norm else x + y
    np.testing.assert_allclose(block.apply(variables, X, False), x, atol=1e-5)
    np.testing.assert_array_equal(block.init(KEY, X, False)["params"]["layer_scale_1"], np.full(8, np.float32(1e-2)))


def test_a_frozen_kernel_is_multiplied_once_for_all_clients():
    block = Block(partial(Attention, 2, is_fused=True), 16)
    variables = random_variables(block, False)
    run = jax.vmap(lambda x: block.apply(variables, x, False))
    text = str(jax.make_jaxpr(run)(X[None]))
    products = re.findall(r"dot_general\[\s*dimension_numbers=\(\(.*?\), \((.*?)\)\)", text)
    compiled = re.findall(r"f32\[\d+,\d+\] = narrow_product", text)  # without an axis of clients
    assert products.count("[], []") + len(compiled) == 4  # qkv, out, dense_0 and dense_1


@pytest.mark.slow
@pytest.mark.parametrize("is_fused", [False, True])
def test_the_first_outputs_of_a_block_alone_are_those_of_the_whole_block(is_fused):
    block = Block(partial(Attention, num_heads=2, is_fused=is_fused), hidden=5)
    x = jax.random.normal(make_key(0), (2, 6, 4))
    params = block.init(make_key(1), x, False)
    first = block.apply(params, x, False, num_outputs=1)
    assert first.shape == (2, 1, 4)
    np.testing.assert_allclose(first, block.apply(params, x, False)[:, :1], rtol=1e-5, atol=1e-6)
