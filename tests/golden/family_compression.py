"""Compressors of the uplink with the draws of FedJAX and of the papers' authors, and error feedback around them."""

from functools import partial
from types import SimpleNamespace

import jax
import jax.numpy as jnp
import numpy as np

from fedjax_het import uplink
from fedjax_het._internal.keys import make_key
from fedjax_het.algorithm import Stage, StageView
from fedjax_het.uplink import _quantization as quantization
from fedjax_het.uplink import _sparsification as sparsification
from tests.golden.cases import Case, covers

EXACT = 1e-12
ARITHMETIC = "what arithmetic coding takes is not counted"
DRIVE_NAN = "0 / 0 where every entry is zero"


def count_bits(stage: Stage, *shapes: tuple[int, ...]) -> float:
    leaves = [jax.ShapeDtypeStruct(shape, np.float32) for shape in shapes]
    return stage.bits(0.0, {"params": leaves})


def send(stage: Stage, updates, memory=None, key: int = 0):
    """(decoded updates, client memory) for updates [client, d] that clients send at the same time."""
    keys = jax.random.split(make_key(key), len(updates))
    tree = lambda rows: {"params": {"w": jnp.asarray(rows)}}  # noqa: E731

    def send_update(update, memory, key):
        sent = stage.send(update, StageView(None, (), memory, 0, len(updates), key, key))
        return sent.update, sent.memory

    sent, kept = jax.jit(jax.vmap(send_update))(tree(updates), () if memory is None else tree(memory), keys)
    return np.asarray(sent["params"]["w"]), np.asarray(kept["params"]["w"]) if memory is not None else None


def receive(stage: Stage, mean, state=None, present: int = 1, num_clients: int = 1):
    """The server's result for a plain mean over the clients present; the new state of EF21 is the same."""
    server = SimpleNamespace(is_present=jnp.ones(present, bool), num_clients=num_clients)
    known = SimpleNamespace(server=server, state=() if state is None else {"params": {"w": jnp.asarray(state)}})
    update, _ = stage.receive({"params": {"w": jnp.asarray(mean)}}, known)
    return np.asarray(update["params"]["w"])


def legacy_key(data):
    return jax.random.wrap_key_data(jnp.asarray(data), impl="threefry2x32")


@covers("compression", "quantize_*")
def quantize(case: Case):
    v, levels = case["v"], int(case["num_levels"])
    uniform = case["uniform"]
    yield case.compare("uniform", jax.random.uniform(legacy_key(case["key"]), v.shape, "float32"), EXACT)
    to_levels = jax.jit(quantization.round_uniformly, static_argnums=2)
    to_ternary = jax.jit(quantization.round_to_ternary, static_argnums=2)
    yield case.compare("out", to_levels(v, uniform, levels))
    yield case.compare("binary", to_levels(v, uniform, 2))
    size = float(np.abs(v).max())  # equal entries deviate by rounding only
    yield case.compare("terngrad", to_ternary(v, uniform, 2.5), scale=size)
    wide, draws = v.astype(np.float64), uniform.astype(np.float64)
    yield case.compare("out_f64", to_levels(wide, draws, levels), 1e-9)
    yield case.compare("terngrad_f64", to_ternary(wide, draws, 2.5), 1e-9, scale=size)
    yield case.compare("bits_fixed", count_bits(uplink.quantize(levels), v.shape), 1e-12)
    yield case.compare("bits_ternary_needed", count_bits(uplink.terngrad(), v.shape), 1e-12)
    case.excuse("bits_*arithmetic*", ARITHMETIC)
    case.excuse("bits_terngrad_fixed", "counts a second scale, which is not sent")


@covers("compression", "rotation_*")
def rotation(case: Case):
    x, signs = case["x"], case["signs"]
    yield case.compare("signs", quantization.draw_signs(legacy_key(case["key"]), jnp.asarray(x).ravel()), EXACT)
    flat, signs = jnp.asarray(x).ravel(), jnp.asarray(signs, x.dtype)
    rotated = quantization.rotate(flat, signs)
    yield case.compare("rotated", rotated)
    yield case.compare("back", quantization.rotate_back(rotated, signs, flat.size).reshape(x.shape))
    wide = quantization.rotate(flat.astype(jnp.float64), signs.astype(jnp.float64))
    yield case.compare("rotated_f64", wide, 1e-9)


@covers("compression", "drive_*")
def drive(case: Case):
    x, signs = jnp.asarray(case["x"]), jnp.asarray(case["signs"])
    rotated = quantization.rotate(x, signs)
    yield case.compare("rotated", rotated)
    sent = {scale: quantization.send_signs(rotated, scale) for scale in ("unbiased", "min_mse")}
    back = {scale: quantization.rotate_back(values, signs, x.size) for scale, values in sent.items()}
    is_zero = not case["x"].any()
    yield case.compare("out_paper", back["unbiased"])
    yield case.compare("out_min_mse", back["min_mse"])
    yield case.compare("scale_min_mse", abs(sent["min_mse"][0]))
    if is_zero:
        yield case.contain("scale", abs(sent["unbiased"][0]), 0.0, DRIVE_NAN, "zero")
        yield case.contain("out", back["unbiased"], np.zeros(x.size), DRIVE_NAN, "zeros")
        case.excuse("sent_signs", "of zeros only the scale matters")
    else:
        yield case.compare("scale", abs(sent["unbiased"][0]))
        yield case.compare("out", back["unbiased"])
        yield case.compare("sent_signs", jnp.sign(sent["unbiased"]))
    yield case.compare("bits", count_bits(uplink.drive(), x.shape))
    case.excuse("plus_*", "DRIVE+ is not offered")


@covers("compression", "qsgd_*")
def qsgd(case: Case):
    v, uniform, steps = case["v"], case["uniform"], int(case["s"])
    out = quantization.round_by_norm(v, 1 - uniform, steps)  # this code rounds up where a draw is large
    yield case.compare("out", out)
    yield case.compare("out_third_party", out, 1e-6)
    yield case.compare("out_lower_draw", quantization.round_by_norm(v, uniform, steps))
    norm = np.linalg.norm(v)
    yield case.compare("levels", out * steps / (norm or 1))
    yield case.compare("bits_fixed", count_bits(uplink.qsgd(steps), v.shape))
    if v.any():
        plain, _ = send(uplink.qsgd(steps), v[None])
        divided, _ = send(uplink.qsgd(steps, feedback="classic"), v[None], np.zeros_like(v[None]))
        largest = np.argmax(np.abs(plain))
        yield case.compare("variance_bound", plain[0, largest] / divided[0, largest] - 1)
    else:
        case.excuse("variance_bound", "zeros are sent as zeros, whatever they are divided by")
    if "terngrad_noclip_third_party" in case:
        yield case.compare("terngrad_noclip_third_party", quantization.round_to_ternary(v, 1 - uniform, None), 1e-6)
    case.excuse("bits_third_party", "log2 s bits cannot tell s + 1 levels")
    case.excuse("bits_arithmetic", ARITHMETIC)


@covers("compression", "randk_*")
def random_k(case: Case):
    x, k = jnp.asarray(case["x"]), int(case["k"])
    kept = sparsification.keep_places(x, jnp.asarray(case["index"]))
    yield case.compare("out_unscaled", kept)
    yield case.compare("out", kept * (x.size / k))
    yield case.compare("bits_shared_seed", count_bits(uplink.random_k(k / x.size), x.shape))
    yield case.compare("bits_with_index", count_bits(uplink.top_k(k / x.size), x.shape))


@covers("compression", "vote_*")
def vote(case: Case):
    x = case["X"]
    two, three = uplink.majority_vote(1.0), uplink.majority_vote(1.0, three_valued=True)
    sent, _ = send(two, x)
    yield case.compare("sent", sent, EXACT)
    yield case.compare("sum_of_sent", sent.sum(axis=0), EXACT)
    yield case.compare("vote_packed", receive(two, sent.mean(axis=0), present=len(x)), EXACT)
    sent, _ = send(three, x)
    yield case.compare("sum_of_signs", sent.sum(axis=0), EXACT)
    yield case.compare("vote_three_valued", receive(three, sent.mean(axis=0), present=len(x)), EXACT)
    yield case.compare("bits_up", count_bits(two, x.shape[1:]))
    case.excuse("bits_down", "the whole model goes down, which a client needs that missed a round")
    case.excuse("bits_packed_up", "padded to words of 32 bits, which no message needs")


@covers("compression", "topk_ef_*")
def feedback(case: Case):
    tape, lr, k = case["tape"], float(case["lr"]), int(case["k"])
    steps, num_clients, size = tape.shape[0] - 1, *tape.shape[1:]
    top_k = partial(uplink.top_k, k / size)
    x, memory, kept = case["x0"], np.zeros((num_clients, size)), {"x": [], "memory": [], "sent": []}
    for gradients in tape[:steps]:
        sent, memory = send(top_k(feedback="classic"), lr * gradients, memory)
        x = x - sent.mean(axis=0)
        for name, value in (("x", x), ("memory", memory), ("sent", sent)):
            kept[name].append(value)
    for name, values in kept.items():
        yield case.compare(f"ef_{name}", np.stack(values))
    for name, rule, start in (
        ("ef21_paper_start", "ef21", np.zeros_like(tape[0])),
        ("ef21", "ef21", tape[0]),
        ("ef21_plus", "ef21+", tape[0]),
    ):
        stage, h, x, xs, hs = top_k(feedback=rule), start, case["x0"], [], []
        mean = h.mean(axis=0)
        if name == "ef21_paper_start":
            sent, h = send(stage, tape[0], h)
            mean = receive(stage, sent.mean(axis=0), mean, num_clients, num_clients)
        hs.append(h)
        for gradients in tape[1:]:
            x = x - lr * mean
            sent, h = send(stage, gradients, h)
            mean = receive(stage, sent.mean(axis=0), mean, num_clients, num_clients)
            xs.append(x)
            hs.append(h)
        yield case.compare(f"{name}_x", np.stack(xs))
        yield case.compare(f"{name}_g", np.stack(hs), scale=1e-12)
    yield case.compare("bits_fixed", count_bits(top_k(), (size,)))
    case.excuse("bits_authors", "the places of the entries are sent, too")
    case.excuse("bits_index_entropy", "places are sent as numbers of a fixed length")


@covers("compression", "federated_ef_*")
def partial_participation(case: Case):
    updates, selected, weights = case["updates"], case["selected"], case["n_samples"]
    num_clients, size = len(weights), updates.shape[-1]
    top_k = partial(uplink.top_k, int(case["k"]) / size)
    memory, h, mean = np.zeros((num_clients, size)), np.zeros((num_clients, size)), np.zeros(size)
    ours = {name: [] for name in ("sent", "memory", "aggregate", "ef21_memory", "ef21_aggregate")}
    for update, cohort in zip(updates, selected, strict=True):
        sent, memory[cohort] = send(top_k(feedback="classic"), update, memory[cohort])
        difference, h[cohort] = send(top_k(feedback="ef21"), update, h[cohort])
        mean = receive(top_k(feedback="ef21"), difference.mean(axis=0), mean, len(cohort), num_clients)
        aggregate = np.average(sent, axis=0, weights=weights[cohort])
        for name, value in zip(ours, (sent, memory, aggregate, h, mean), strict=True):
            ours[name].append(np.array(value))
    for name, values in ours.items():
        yield case.compare(name, np.stack(values))


@covers("compression", "ef_sign_*")
def sign_with_memory(case: Case):
    tape, lr, momentum = case["tape"], float(case["lr"]), float(case["momentum"])
    decay, has_memory = float(case["weight_decay"]), "memory True" in case.meta["notes"]
    options = {"scaled": "scaled_sign" in case.meta["notes"], "feedback": "classic" if has_memory else "none"}
    stage = uplink.sign(three_valued=True, **options)  # this code's sign of zero is zero, though it counts one bit
    inside, outside = (lr, 1.0) if options["scaled"] else (1.0, lr)  # signs without a scale are of size lr here
    x, velocity, memory, xs, memories = case["x0"], np.zeros(tape.shape[1]), np.zeros((1, tape.shape[1])), [], []
    for gradient in tape:
        velocity = momentum * velocity + gradient + decay * x
        sent, kept = send(stage, inside * velocity[None], memory if has_memory else None)
        memory = kept if has_memory else memory
        x = x - outside * sent[0]
        xs.append(x)
        memories.append(outside * memory[0])
    yield case.compare("x", np.stack(xs))
    yield case.compare("memory", np.stack(memories), scale=1e-12)
    yield case.compare("bits", count_bits(uplink.sign(**options), x.shape))
