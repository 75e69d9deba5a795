"""Whole aggregators of compressed updates: FedJAX's, which derive all random numbers from one key."""

from functools import partial

import jax
import jax.numpy as jnp
import numpy as np

from fedjax_het import uplink
from fedjax_het.uplink import _quantization as quantization
from tests.golden.cases import FLOAT32, Case, covers
from tests.golden.family_compression import ARITHMETIC, EXACT, count_bits, legacy_key


def round_leaf(leaf, key, rotation_key, levels):
    return quantization.round_uniformly(leaf, jax.random.uniform(key, leaf.shape, leaf.dtype), levels)


def rotate_leaf(leaf, key, rotation_key, levels):
    signs = quantization.draw_signs(rotation_key, leaf.ravel())
    rounded = round_leaf(quantization.rotate(leaf.ravel(), signs), key, None, levels)
    return quantization.rotate_back(rounded, signs, leaf.size).reshape(leaf.shape)


def drive_leaf(leaf, key, rotation_key, levels):
    signs = quantization.draw_signs(key, leaf.ravel())
    sent = quantization.send_signs(quantization.rotate(leaf.ravel(), signs), "unbiased")
    return quantization.rotate_back(sent, signs, leaf.size).reshape(leaf.shape)


def ternary_leaf(leaf, key, rotation_key, levels):
    return quantization.round_to_ternary(leaf, jax.random.uniform(key, leaf.shape, leaf.dtype), 2.5)


RULES = {
    "uniform": round_leaf,
    "uniform_arithmetic": round_leaf,
    "rotated": rotate_leaf,
    "drive": drive_leaf,
    "terngrad": ternary_leaf,
}


@covers("compression", "aggregators_*")
def aggregators(case: Case):
    levels, weights = int(case["num_levels"]), case["weights"]
    num_leaves = len(case.matching("r0_c0_p*"))

    def split(rule, key):
        """(the next round's key, the key of the rotation, those of the clients), as FedJAX splits them."""
        rotation, client_keys = key, []
        if rule is rotate_leaf:
            key, rotation = jax.random.split(key)
        key, sequence = jax.random.split(key)
        for _ in range(weights.shape[1]):
            sequence, own = jax.random.split(sequence)
            client_keys.append(own)
        return key, rotation, client_keys

    def aggregate(rule, key, clients, weights):
        """(the next round's key, the weighted mean)."""
        key, rotation, client_keys = split(rule, key)
        rotations, sent = jax.random.split(rotation, num_leaves), []
        for leaves, own in zip(clients, client_keys, strict=True):
            keys = jax.random.split(own, num_leaves)
            sent.append([rule(*inputs, levels) for inputs in zip(leaves, keys, rotations, strict=True)])
        return key, [jnp.average(jnp.stack(column), axis=0, weights=weights) for column in zip(*sent, strict=True)]

    data = lambda keys: jax.random.key_data(jnp.stack(keys))  # noqa: E731
    _, rotation, client_keys = split(rotate_leaf, legacy_key(case["key"]))
    yield case.compare("rotation_key_r0", jax.random.key_data(rotation), EXACT)
    yield case.compare("rotated_client_keys_r0", data(client_keys), EXACT)
    yield case.compare("uniform_client_keys_r0", data(split(round_leaf, legacy_key(case["key"]))[2]), EXACT)
    yield case.compare("drive_rotation_keys_r0", data(split(drive_leaf, legacy_key(case["key"]))[2]), EXACT)

    for name, rule in RULES.items():
        key, run = legacy_key(case["key"]), jax.jit(partial(aggregate, rule))
        for t, round_weights in enumerate(weights):
            clients = [[case[f"r{t}_c{i}_p{j}"] for j in range(num_leaves)] for i in range(weights.shape[1])]
            key, means = run(key, clients, round_weights)
            for j, mean in enumerate(means):
                yield case.compare(f"{name}_r{t}_p{j}", mean, FLOAT32)
    shapes = [case[f"r0_c0_p{j}"].shape for j in range(num_leaves)]
    stages = (uplink.quantize(levels), uplink.quantize(levels, rotated=True), uplink.drive(), uplink.terngrad())
    ours = [count_bits(stage, *shapes) for stage in stages]
    yield case.compare("bits_on_the_wire", ours)
    yield case.compare("uniform_num_bits", ours[0] * np.arange(1, len(weights) + 1), FLOAT32)
    case.excuse("uniform_arithmetic_num_bits", ARITHMETIC)
    for name in ("rotated_num_bits", "drive_num_bits", "terngrad_num_bits", "bits_expected"):
        case.excuse(name, "leaves out the padding, or counts a second scale, which is not sent")
