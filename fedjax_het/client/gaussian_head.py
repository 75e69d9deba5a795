"""A head that follows from Gaussian features with a mean for each class and a common covariance (pFedFDA)."""

from collections.abc import Callable
from typing import Literal

import jax
import jax.numpy as jnp
from jaxtyping import Float

from fedjax_het._internal.decompositions import cho_solve, cholesky
from fedjax_het.algorithm import LocalUpdate, Problem
from fedjax_het.client.local_updates import wrap_training
from fedjax_het.client.objectives._supervised import count_classes
from fedjax_het.client.stored_features import StoredFeatures, rank_randomly, store_features
from fedjax_het.labels import cross_entropies
from fedjax_het.types import Array, ClientView, Key, Named, Params, Trained, Variables
from fedjax_het.validation import Count, validate_arguments

Ridge = Literal["diagonal", "released"]
_EPSILON = 1e-4  # of priors and covariances
_SPLITTING = 1 << 18  # does not collide with the small numbers that split a client's key
_GRID = tuple(number / 10 for number in range(11))


def discriminant_head(gaussian: Named, priors: Float[Array, "class"]) -> Params:
    """The dense head whose softmax is the posterior of the classes.

        kernel_c = S'^-1 mu_c,   bias_c = -mu_c' S'^-1 mu_c / 2 + log prior_c,   S' = (1 - eps) S + eps tr(S)/d I

    Args:
        gaussian: {"means" [class, feature], mu, "covariance" [feature, feature], S}.
        priors: Of the classes.
    """
    means, covariance = gaussian["means"], gaussian["covariance"]
    size = len(covariance)
    shrunk = (1 - _EPSILON) * covariance + _EPSILON * jnp.trace(covariance) / size * jnp.eye(size, dtype=means.dtype)
    kernel = cho_solve(cholesky(shrunk), means.T)
    bias = jnp.log(priors) - jnp.sum(means * kernel.T, axis=1) / 2
    return {"kernel": kernel, "bias": bias.astype(means.dtype)}


def class_priors(counts: Array) -> Array:
    """[class]: the shares of the classes, each increased by 1e-4."""
    shares = counts / jnp.maximum(jnp.sum(counts), 1) + _EPSILON
    return shares / jnp.sum(shares)


def estimate_gaussian(stored: StoredFeatures, fallback: Array, ridge: Ridge = "diagonal") -> Named:
    """{"means", "covariance"} of features; a class with fewer than two examples has the mean `fallback`.

        S = 1/(n - 1) sum_j (f_j - mu_{y_j}) (f_j - mu_{y_j})' + 1e-4 I        "released": + 1e-4 in all entries + I

    Args:
        stored: The features.
        fallback: [class, feature].
        ridge: As above.
    """
    precise = jax.lax.Precision.HIGHEST
    features = jnp.where(stored.is_example[:, None], stored.features, 0)
    member = jax.nn.one_hot(stored.labels, len(fallback), dtype=features.dtype) * stored.is_example[:, None]
    counts = jnp.sum(member, axis=0)[:, None]
    means = jnp.matmul(member.T, features, precision=precise) / jnp.maximum(counts, 1)
    means = jnp.where(counts > 1, means, fallback)
    centred = jnp.where(stored.is_example[:, None], features - means[stored.labels], 0)
    scatter = jnp.matmul(centred.T, centred, precision=precise) / jnp.maximum(jnp.sum(counts) - 1, 1)
    unit = jnp.eye(len(scatter), dtype=scatter.dtype)
    added = _EPSILON + unit if ridge == "released" else _EPSILON * unit
    return {"means": means, "covariance": scatter + added}


def interpolate(betas: Array, own: Named, common: Named) -> Named:
    """beta own + (1 - beta) common, for betas of the means and of the covariance [2]."""
    pairs = zip(("means", "covariance"), betas, strict=True)
    return {name: (beta * own[name] + (1 - beta) * common[name]).astype(own[name].dtype) for name, beta in pairs}


def cross_validated_loss(
    stored: StoredFeatures, is_first: Array, common: Named, priors: Array, ridge: Ridge, betas: Array
) -> Array:
    """[]: the sum over two folds of the mean cross-entropy of the head of the other fold's interpolated Gaussian.

    Args:
        stored: The features.
        is_first: [capacity], the examples of the first fold.
        common: The Gaussian of the server.
        priors: Of the classes.
        ridge: As in `estimate_gaussian`.
        betas: As in `interpolate`.
    """

    def evaluate(is_training: Array) -> Array:
        training = stored._replace(is_example=stored.is_example & is_training)
        own = estimate_gaussian(training, common["means"], ridge)
        head = discriminant_head(interpolate(betas, own, common), priors)
        logits = jnp.matmul(stored.features, head["kernel"], precision=jax.lax.Precision.HIGHEST) + head["bias"]
        is_held = stored.is_example & ~is_training
        losses = jnp.where(is_held, cross_entropies(logits, stored.labels), 0)
        return jnp.sum(losses) / jnp.maximum(jnp.sum(is_held), 1)

    return evaluate(is_first) + evaluate(~is_first)


@validate_arguments
def adapted_gaussian(
    num_betas: Literal[1, 2] = 1, ridge: Ridge = "diagonal", batch_size: Count = 50
) -> Callable[[Problem, ClientView, Key, Variables], Named]:
    """The Gaussian of a client's features, interpolated with the received one.

    The betas are those of 0, .1, ..., 1 with the lowest loss in two-fold cross-validation, with random folds; without
    examples, 0.

    Args:
        num_betas: One beta, or one for the means and one for the covariance.
        ridge: As in `estimate_gaussian`.
        batch_size: Examples per step; does not affect the result.
    """
    grid = [(a, b) for a in _GRID for b in _GRID] if num_betas == 2 else [(a, a) for a in _GRID]

    def adapt(problem: Problem, view: ClientView, key: Key, variables: Variables) -> Named:
        common, stored = view.received.shared["gaussian"], store_features(problem, view, variables, batch_size)
        priors = class_priors(count_classes(view.data, len(common["means"])))
        ranks = rank_randomly(jax.random.fold_in(key, _SPLITTING), stored.is_example)
        is_first = ranks < view.data.train.count // 2
        betas = jnp.array(grid, stored.features.dtype)
        losses = jax.lax.map(
            lambda pair: cross_validated_loss(stored, is_first, common, priors, ridge, pair), betas, batch_size=11
        )
        return interpolate(betas[jnp.argmin(losses)], estimate_gaussian(stored, common["means"], ridge), common)

    return adapt


AdaptRule = Callable[[Problem, ClientView, Key, Variables], Named]


def discriminant_start(problem: Problem, view: ClientView, key: Key) -> Variables:
    """A start rule: the head of the received Gaussian, with the client's own class priors."""
    del problem, key
    return _with_head(view, view.start, view.start["gaussian"])


def discriminant_model(adapt: AdaptRule) -> Callable[[Problem, ClientView, Key], Variables]:
    """The received extractor with the head of the client's adapted Gaussian."""
    return lambda problem, view, key: _with_head(view, view.start, adapt(problem, view, key, view.start))


def _with_head(view: ClientView, variables: Variables, gaussian: Named) -> Variables:
    head = discriminant_head(gaussian, class_priors(count_classes(view.data, len(gaussian["means"]))))
    return variables | {"params": variables["params"] | {"classifier": head}}


def sending_gaussian(local_update: LocalUpdate, adapt: AdaptRule) -> LocalUpdate:
    """Train, and send the adapted Gaussian of the trained features."""

    def train(rule: Callable[..., Trained], problem: Problem, view: ClientView, key: Key) -> Trained:
        trained = rule(problem, view, key)
        gaussian = adapt(problem, view, key, trained.variables)
        return trained._replace(variables=trained.variables | {"gaussian": gaussian})

    return wrap_training(local_update, train)
