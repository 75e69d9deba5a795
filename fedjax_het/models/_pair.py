"""Pairs of networks: a client's own, and a common one that is trained beside it (FML, FedKD)."""

from collections.abc import Callable
from typing import NamedTuple

import jax
import jax.numpy as jnp

from fedjax_het.models._adaptations import split_off
from fedjax_het.models._model import output_shapes
from fedjax_het.problem import Problem
from fedjax_het.types import (
    Array,
    ClientView,
    Context,
    Key,
    Leaf,
    LeafRule,
    Model,
    Named,
    Params,
    ServerState,
    Variables,
)

COMMON = "common"
"""The name of the common network in every collection of variables, and of its outputs in the extras."""
_ALONE = "common_alone"
_HIDDEN = "match"


def paired(common: Model | None = None, *, match_features: bool = False) -> Callable[[Model], Model]:
    """Add a common network to a model, to be trained beside it on the same batches.

    The outputs of the pair are those of the model itself, whose leaves keep their paths. The leaves of the common
    network are params/common/..., and extras["common"] are its {"features", "logits"}.

    Args:
        common: The common network; None: another copy of the model, with other random weights.
        match_features: Whether to add the map from the common network's features to those of the model,
            params/match/kernel [feature, feature], also extras["matched"].

    References:
        Shen et al., Federated Mutual Learning, 2020. arXiv:2006.16765
    """

    def adapt(model: Model) -> Model:
        other = model if common is None else common

        def init(key: Key, inputs: Array) -> Variables:
            own, beside = model.init(key, inputs), other.init(jax.random.fold_in(key, 1), inputs)
            variables = {
                name: own.get(name, {}) | ({COMMON: beside[name]} if name in beside else {})
                for name in sorted(own.keys() | beside.keys())
            }
            if match_features:
                widths = [output_shapes(*pair, inputs)[0].shape[-1] for pair in ((other, beside), (model, own))]
                kernel = jax.random.normal(jax.random.fold_in(key, 2), widths) / jnp.sqrt(widths[0])
                variables["params"] |= {_HIDDEN: {"kernel": kernel}}
            return variables

        def encode(variables: Variables, inputs: Array, context: Context) -> tuple[tuple[Array, Named], Variables]:
            own, beside = _split(variables)
            beside_context = context._replace(key=jax.random.fold_in(context.key, 1))
            (theirs, _), beside_state = other.encode(beside, inputs, beside_context)
            if _ALONE in variables["params"]:
                return (theirs, {}), {}
            (features, extras), state = model.encode(own, inputs, context)
            extras = extras | {COMMON: {"features": theirs, "logits": other.classify(beside["params"], theirs)}}
            if match_features:
                extras["matched"] = theirs @ variables["params"][_HIDDEN]["kernel"]
            state = {
                name: state.get(name, {}) | ({COMMON: beside_state[name]} if name in beside_state else {})
                for name in state.keys() | beside_state.keys()
            }
            return (features, extras), state

        def classify(params: Params, features: Array) -> Array:
            own, beside = _split({"params": params})
            if _ALONE in params:
                return other.classify(beside["params"], features)
            return model.classify(own["params"], features)

        def layers(inputs: Array) -> dict[str, type]:
            return {**model.layers(inputs), **{f"{COMMON}/{path}": kind for path, kind in other.layers(inputs).items()}}

        return model._replace(
            init=init,
            encode=encode,
            classify=classify,
            layers=layers,
            frozen=(*(_OwnRule(rule) for rule in model.frozen), *(_CommonRule(rule) for rule in other.frozen)),
            published=None,
            narrowed=None,
        )

    return adapt


def common_network(server: ServerState) -> Variables:
    """The server's variables, with a mark by which a pair has the outputs of its common network: for `evaluated`."""
    return server.shared | {"params": {**server.shared["params"], _ALONE: jnp.zeros(0)}}


def own_network(problem: Problem, view: ClientView, key: Key) -> Variables:
    """The client's variables without the mark of `common_network`, its own network: for `personalize`."""
    return split_off(view.start, _ALONE)[1]


def _split(variables: Variables) -> tuple[Variables, Variables]:
    """The variables of (the model itself, the common network)."""
    beside = {name: leaves[COMMON] for name, leaves in variables.items() if COMMON in leaves}
    rest = split_off(variables, _ALONE, _HIDDEN)[1]
    own = {name: {k: v for k, v in leaves.items() if k != COMMON} for name, leaves in rest.items()}
    return {name: leaves for name, leaves in own.items() if leaves or name not in beside}, beside


class _OwnRule(NamedTuple):
    """A rule for the leaves of the model itself."""

    rule: LeafRule

    def __call__(self, leaf: Leaf) -> bool:
        return leaf.path.split("/")[1] not in (COMMON, _HIDDEN) and self.rule(leaf)

    @property
    def patterns(self) -> tuple[str, ...]:
        return getattr(self.rule, "patterns", ())


class _CommonRule(NamedTuple):
    """A rule for the leaves of the common network, by their paths in the network alone."""

    rule: LeafRule

    def __call__(self, leaf: Leaf) -> bool:
        collection, name, *rest = leaf.path.split("/")
        return name == COMMON and self.rule(Leaf("/".join([collection, *rest]), leaf.layer))
