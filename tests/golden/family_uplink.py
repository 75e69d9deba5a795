"""The order of the stages between a client's finished update and the server."""

import jax.numpy as jnp
import numpy as np

from fedjax_het import uplink
from fedjax_het.uplink import _quantization as quantization
from tests.golden.cases import Case, covers
from tests.golden.family_compression import send


@covers("uplink", "compose_*")
def compose(case: Case):
    updates, weights, size = case["updates"], case["n_samples"], case["updates"].shape[1]
    clip = uplink.clip(float(case["clip"]))
    clipped, _ = send(clip, updates)
    yield case.compare("clipped", clipped)
    rounded = np.stack(
        [
            quantization.round_uniformly(jnp.asarray(row), draws, int(case["num_levels"]))
            for row, draws in zip(clipped, case["uniform"], strict=True)
        ]
    )
    yield case.compare("clip_then_quantise", rounded)
    yield case.compare("norm_after_quantise", np.linalg.norm(rounded, axis=1))
    bounded, _ = send(clip, rounded)
    yield case.compare("clip_quantise_clip", bounded)
    noise = float(case["noise_multiplier"]) * float(case["clip"]) * case["standard_normal"]
    for name, rows in (("dp_mean", clipped), ("dp_mean_quantised", bounded)):
        yield case.compare(name, (rows.sum(axis=0) + noise) / float(case["expected_clients"]))
    # The part removed by a clip after the compressor is lost: the memory has only the compressor's error.
    top_k = uplink.top_k(int(case["k"]) / size, feedback="classic")
    sent, memory = send(top_k, updates, case["memory"])
    yield case.compare("ef_sent", sent)
    yield case.compare("memory_forgets_clipped", memory)
    arrived, _ = send(clip, sent)
    yield case.compare("ef_sent_clipped", arrived)
    yield case.compare("memory_keeps_clipped", memory + sent - arrived)
    attacked = np.where(case["is_attacker"][:, None], -3 * arrived, arrived)
    yield case.compare("attacked", attacked)
    at_server, _ = send(clip, attacked)  # a bound at the server also holds for attackers
    yield case.compare("server_bounded", at_server)
    yield case.compare("weighted_mean_server_bounded", np.average(at_server, axis=0, weights=weights))
