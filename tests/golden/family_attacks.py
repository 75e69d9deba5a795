"""Attacks: ByzFL's, ALIE's authors' and those of the authors of bucketing and mimicry."""

import jax
import jax.numpy as jnp
import numpy as np

from fedjax_het import data
from fedjax_het._internal.keys import make_key
from fedjax_het.algorithm import CorruptView, StageView
from fedjax_het.data.federation import Federation, Fractions
from fedjax_het.data.preparation import Preparation
from fedjax_het.types import Broadcast
from fedjax_het.uplink import STAGES
from fedjax_het.uplink._attacks import Direction, largest_z, mimic
from tests.golden.cases import Case, covers
from tests.golden.replay import client_data


def said_by(name: str, stack: np.ndarray, num_attackers: int, **options) -> np.ndarray:
    """The common update of the attackers, whose rows follow these honest rows."""
    size = len(stack) + num_attackers
    rows = {"params": {"w": jnp.concatenate([jnp.asarray(stack), jnp.zeros((num_attackers, stack.shape[1]))])}}
    stage = STAGES[name](clients=tuple(range(len(stack), size)), **options)
    view = CorruptView(Broadcast(0, {}, {}), jnp.arange(size), jnp.ones(size, bool), size, (), make_key(0))
    sent = np.asarray(jax.jit(lambda rows: stage.corrupt(rows, view))(rows)["params"]["w"])
    assert np.array_equal(sent[: len(stack)], stack) and np.all(sent[len(stack) :] == sent[-1])
    return sent[-1]


@covers("attacks", "stack_*")
def stack_attacks(case: Case):
    stack, f = case["H"], int(case["f"])
    yield case.compare("sign_flip_mean", said_by("attack_inner_product", stack, f, factor=1.0))
    for name in case.matching("ipm_*"):
        factor = float(name.removeprefix("ipm_"))
        yield case.compare(name, said_by("attack_inner_product", stack, f, factor=factor))
    hide, scale = "attack_little_is_enough", float(np.abs(stack).max())
    for name in case.matching("alie_plus_*"):
        options = {"z": float(name.removeprefix("alie_plus_")), "sign": "plus", "deviation": "sample"}
        yield case.compare(name, said_by(hide, stack, f, **options), scale=scale)
    yield case.compare("alie_authors_minus_1.5", said_by(hide, stack, f), scale=scale)
    yield case.compare("alie_zmax_minus", said_by(hide, stack, f, z="largest", deviation="sample"), scale=scale)
    yield case.compare("z_max", largest_z(len(stack) + f, f), scale=1.0)

    flip = STAGES["attack_sign_flip"](clients=range(len(stack)))
    yield case.compare("sign_flip_own", _send(flip, stack))
    gaussian = STAGES["attack_gaussian"](2.0, 0.5, clients=(0,))
    unit = STAGES["attack_gaussian"](clients=(0,))
    normal = (_send(gaussian, stack[:1])[0] - 0.5) / 2  # the distribution is the code's, the samples are JAX's
    yield case.compare("gaussian_0.5_2", 0.5 + 2 * case["standard_normal"])
    assert np.allclose(normal, _send(unit, stack[:1])[0], atol=1e-12)

    flipped = data.flip_labels(clients=(0,))(_federation_of(case["labels"]))
    yield case.compare("labels_flipped_10", flipped.examples.labels)
    case.excuse("opt_*", "attacks that search for the worst factor against the server's rule are not built")

    @jax.jit
    def choose(place):
        zeros, everyone = {"w": jnp.zeros(stack.shape[1])}, jnp.ones(len(stack), bool)
        frozen = Direction(jnp.array(1), zeros, zeros, place)
        return mimic(frozen, {"w": jnp.asarray(stack)}, jnp.arange(len(stack)), everyone, 1)[1]

    for place, name in ((0, "mimic_0"), (len(stack) - 1, "mimic_last")):
        yield case.compare(name, stack[int(choose(place))])


def _federation_of(labels: np.ndarray) -> Federation:
    """One client with all examples, and ten classes."""
    clients = client_data(np.zeros((len(labels), 1)), labels, [len(labels)])
    names = tuple(map(str, range(10)))
    nothing = Fractions(None, None, None)
    return Federation("golden", clients, None, None, {}, names, ("0",), (), Preparation(None, None), nothing)


def _send(stage, stack: np.ndarray) -> np.ndarray:
    """The updates that clients send, each with the same keys."""

    @jax.jit
    @jax.vmap
    def send(row, client):
        keys = make_key(3), make_key(4)
        view = StageView(Broadcast(0, {}, {}), (), (), client, len(stack), *keys)
        return stage.send({"params": {"w": row}}, view).update["params"]["w"]

    return np.asarray(send(jnp.asarray(stack), jnp.arange(len(stack))))


@covers("attacks", "mimic_*")
def mimicry(case: Case):
    stacks, num_warmup = case["X"], int(case["warmup"])
    size, is_min = stacks.shape[1], case.name.endswith("argmin")
    known = Direction(jnp.array(0), {"w": jnp.zeros(stacks.shape[2])}, {"w": jnp.asarray(case["z0"])}, jnp.array(0))
    step = jax.jit(
        lambda known, stack: mimic(known, stack, jnp.arange(size), jnp.ones(size, bool), num_warmup, is_min=is_min)
    )
    kept = {"target": [], "sent": [], "z": [], "mu": []}
    for stack in stacks:
        known, place = step(known, {"w": jnp.asarray(stack)})
        for name, value in (
            ("target", known.target),
            ("sent", stack[place]),
            ("z", known.axis["w"]),
            ("mu", known.mean["w"]),
        ):
            kept[name].append(np.asarray(value))
    for name, values in kept.items():
        yield case.compare(name, np.stack(values))


@covers("attacks", "alie_zmax_table")
def quantiles(case: Case):
    yield case.compare("z_max", jax.jit(jax.vmap(largest_z))(jnp.asarray(case["n"]), jnp.asarray(case["f"])))
