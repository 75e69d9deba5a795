import jax
import jax.numpy as jnp
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from fedjax_het.client.objectives import cross_entropy, debiased_cross_entropy
from fedjax_het.client.objectives._debiased import DIVERGENCES, few_shot_classes, head_weight
from fedjax_het.errors import InputError
from fedjax_het.problem import ForwardPass
from fedjax_het.types import Batch, Broadcast, ClientData, ClientView, Examples, Outputs, Rows

RNG = np.random.default_rng(3)
NUM_CLASSES = 4
LOGITS, LABELS = RNG.normal(size=(8, NUM_CLASSES)), np.array([0, 1, 1, 2, 3, 3, 0, 2])
START, LOCAL, NOW = RNG.normal(size=(3, 5, NUM_CLASSES))


def head(kernel) -> dict:
    return {"classifier": {"kernel": jnp.asarray(kernel), "bias": jnp.zeros(np.shape(kernel)[1])}}


def forward(logits=LOGITS, labels=LABELS, mask=None, now=NOW, local=LOCAL, memory=None, count=8) -> ForwardPass:
    logits, labels = jnp.asarray(logits), jnp.asarray(labels)
    mask = jnp.ones(len(labels)) if mask is None else jnp.asarray(mask, float)
    owned = Rows(jnp.arange(8, dtype=jnp.int32), jnp.asarray(count, jnp.int32))
    data = ClientData(Examples(jnp.zeros(8), jnp.asarray(LABELS)), owned, owned, owned)
    start, local = {"params": head(START)}, {"params": head(local)}
    view = ClientView(Broadcast(None, {}, {}), memory or {}, {}, data, start, local, (), {}, None)
    return ForwardPass(None, head(now), {}, Outputs(logits, logits, {}), Batch(logits, labels, mask), view, None)


def by_hand(lam: float, few_shot=(2, 3), per: str = "weights") -> float:
    losses = -np.log(np.exp(LOGITS) / np.exp(LOGITS).sum(1, keepdims=True))[np.arange(8), LABELS]
    weights = np.where(np.isin(LABELS, few_shot), 1 + lam, 1.0)
    return float((weights * losses).sum() / (weights.sum() if per == "weights" else 8))


def row_mean(change) -> float:
    return float(np.linalg.norm(change, axis=0).mean())


@pytest.mark.extended
@pytest.mark.parametrize("per", ["weights", "batch"])
def test_lambda_per_epoch_uses_the_head_at_the_beginning_of_the_epoch(per):
    loss = jax.jit(debiased_cross_entropy((2, 3), normalise=per))(forward())
    assert float(loss) == pytest.approx(by_hand(row_mean(LOCAL - START), per=per), rel=1e-5)


@pytest.mark.extended
def test_lambda_per_step_uses_the_current_head():
    loss = jax.jit(debiased_cross_entropy((2, 3), "step"))(forward())
    assert float(loss) == pytest.approx(by_hand(row_mean(NOW - START)), rel=1e-5)


@pytest.mark.parametrize("is_known", [True, False])
def test_lambda_of_the_previous_round_uses_the_clients_last_head(is_known):
    memory = {"head": {"value": head(NOW)["classifier"], "is_known": jnp.asarray(is_known)}}
    loss = jax.jit(debiased_cross_entropy((2, 3), "prev_round"))(forward(memory=memory))
    assert float(loss) == pytest.approx(by_hand(row_mean(NOW - START) if is_known else 0.0), rel=1e-5)


@pytest.mark.parametrize(("few_shot", "local"), [((), LOCAL), ((2, 3), START)])
def test_without_few_shot_classes_or_without_drift_it_is_cross_entropy(few_shot, local):
    case = forward(local=local)
    np.testing.assert_allclose(
        jax.jit(debiased_cross_entropy(few_shot))(case), jax.jit(cross_entropy())(case), rtol=1e-6
    )


def test_in_a_batch_of_one_class_the_class_weight_cancels():
    case = forward(LOGITS, np.full(8, 2))
    np.testing.assert_allclose(jax.jit(debiased_cross_entropy((2,)))(case), jax.jit(cross_entropy())(case), rtol=1e-6)


def test_a_few_shot_class_that_is_not_in_the_batch_has_no_effect():
    case = forward(LOGITS, np.zeros(8, int))
    np.testing.assert_allclose(
        jax.jit(debiased_cross_entropy((3,), normalise="batch"))(case), jax.jit(cross_entropy())(case), rtol=1e-6
    )


@pytest.mark.extended
def test_divergence_per_class_weights_each_class_by_its_own_row():
    scores = jnp.zeros((1, NUM_CLASSES))
    term = debiased_cross_entropy((1, 2), divergence="per_class", normalise="batch")
    weights = [float(term(forward(scores, [c]))) / np.log(NUM_CLASSES) for c in range(NUM_CLASSES)]
    rows = np.linalg.norm(LOCAL - START, axis=0)
    np.testing.assert_allclose(weights, [1, 1 + rows[1], 1 + rows[2], 1], rtol=1e-5)


@pytest.mark.slow
@given(seed=st.integers(0, 1000), factor=st.floats(0.01, 100))
@settings(deadline=None, max_examples=20)
def test_divergences_are_homogeneous_and_invariant_to_rotation(seed, factor):
    rng = np.random.default_rng(seed)
    change, rotation = jnp.asarray(rng.normal(size=(5, 3))), np.linalg.qr(rng.normal(size=(5, 5)))[0]
    for divergence in DIVERGENCES.values():
        assert np.all(divergence(change) >= 0) and not np.any(divergence(0 * change))
        np.testing.assert_allclose(divergence(factor * change), factor * divergence(change), rtol=1e-4)
        np.testing.assert_allclose(divergence(rotation @ change), divergence(change), rtol=1e-4)


@pytest.mark.extended
@pytest.mark.parametrize("now", [NOW, START])
def test_no_gradient_passes_through_lambda(now):
    """Also at the start, where the norm has no derivative."""
    term = debiased_cross_entropy((2, 3), "step")

    def loss(kernel, logits):
        return term(forward(logits=logits + jnp.sum(kernel), now=kernel))

    by_head, by_logits = jax.grad(loss, argnums=(0, 1))(jnp.asarray(now), jnp.asarray(LOGITS))
    assert np.all(np.isfinite(by_logits))
    np.testing.assert_allclose(by_head, 0, atol=1e-6)  # a common shift of logits has no effect; lambda has no gradient


@pytest.mark.extended
def test_padding_changes_nothing_and_an_empty_batch_is_zero():
    term = debiased_cross_entropy((2, 3))
    padded = forward(np.concatenate([LOGITS, 9 + LOGITS[:2]]), np.concatenate([LABELS, [3, 3]]), [1] * 8 + [0] * 2)
    np.testing.assert_allclose(term(padded), term(forward()), rtol=1e-6)
    value, gradient = jax.value_and_grad(lambda logits: term(forward(logits, mask=np.zeros(8))))(jnp.asarray(LOGITS))
    assert float(value) == 0 and not np.any(gradient)


@pytest.mark.extended
def test_the_loss_of_maps_is_the_mean_over_pixels():
    maps, labels = LOGITS.reshape(2, 2, 2, NUM_CLASSES), LABELS.reshape(2, 2, 2)
    term = debiased_cross_entropy((2, 3))
    np.testing.assert_allclose(term(forward(maps, labels)), term(forward()), rtol=1e-6)


@pytest.mark.extended
@pytest.mark.parametrize(
    ("labels", "count", "share", "expected"),
    [
        ([0] * 10 + [1] * 2 + [2] * 6, 18, 0.5, [False, True, False, False]),  # a mean of 6 for each of three
        ([0] * 10 + [1] * 3 + [2] * 5, 18, 0.5, [False, False, False, False]),  # three is not less than half of six
        ([0] * 10 + [1] * 3 + [2] * 5, 18, 1.0, [False, True, True, False]),
        ([0] * 5 + [1] * 5 + [3], 10, 0.5, [False, False, False, False]),  # the last is padding
        ([0] * 3, 0, 0.5, [False] * 4),
    ],
)
def test_few_shot_classes_are_those_below_a_share_of_the_mean_count(labels, count, share, expected):
    owned = Rows(jnp.arange(len(labels)), jnp.asarray(count))
    data = ClientData(Examples(jnp.zeros(len(labels)), jnp.asarray(labels)), owned, owned, owned)
    assert few_shot_classes(data, NUM_CLASSES, share).tolist() == expected


def test_by_default_few_shot_classes_follow_from_the_clients_counts():
    case = forward(count=5)  # one, two, one and one examples of the classes: none is under half of 5/4
    np.testing.assert_allclose(jax.jit(debiased_cross_entropy())(case), jax.jit(cross_entropy())(case), rtol=1e-6)
    assert float(jax.jit(debiased_cross_entropy(share=0.9))(case)) == pytest.approx(
        by_hand(row_mean(LOCAL - START), few_shot=(0, 2, 3)), rel=1e-5
    )


def test_the_weight_of_a_head_of_several_layers_is_that_of_the_last():
    params = {"classifier": {"dense_0": {"kernel": jnp.ones((5, 6))}, "dense_1": {"kernel": jnp.ones((6, 4))}}}
    assert head_weight(params, 4).shape == (6, 4)


def test_a_model_without_a_linear_head_is_refused():
    with pytest.raises(InputError, match=r"needs a weight .* at params/classifier, got nothing"):
        head_weight({"dense": jnp.ones((5, 4))}, 4)


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"lambda_every": "epochs"}, "lambda_every: unknown option 'epochs'. Did you mean 'epoch'"),
        ({"divergence": "l2"}, "divergence: unknown option 'l2'"),
        ({"normalise": "weight"}, "normalise: unknown option 'weight'. Did you mean 'weights'"),
        ({"share": 1.5}, "share: .* not 1.5"),
        ({"few_shot": [[0], [-1]]}, "few_shot: must be a list .* from 0"),
        ({"few_shot": [-1]}, "few_shot: must be a list .* from 0"),
    ],
)
def test_invalid_options_are_refused(options, message):
    with pytest.raises(InputError, match=message):
        debiased_cross_entropy(**options)


@pytest.mark.parametrize(("client", "few_shot"), [(0, (2, 3)), (1, ()), (7, ())])
def test_each_client_can_have_its_own_few_shot_classes(client, few_shot):
    case = forward()
    case = case._replace(view=case.view._replace(client=jnp.asarray(client)))
    by_client = jax.jit(debiased_cross_entropy([[2, 3], []]))(case)
    np.testing.assert_allclose(by_client, jax.jit(debiased_cross_entropy(few_shot))(case), rtol=1e-6)


def test_a_few_shot_class_that_the_head_does_not_have_is_refused():
    with pytest.raises(InputError, match=r"few_shot: \[1, 4\] names a class that is not among 0..3"):
        debiased_cross_entropy((1, 4))(forward())
