"""A shared low-rank adapter and a client's own, mixed by constant shares or by the input (FedDPA)."""

from collections.abc import Callable, Sequence

import jax.numpy as jnp

from fedjax_het import tree
from fedjax_het.models._lora import LOCAL, SHARED, add_adapters, lora_scale
from fedjax_het.types import Array, Context, Model, Named, Variables
from fedjax_het.validation import Count, FractionBelowOne, Positive, validate_arguments


@validate_arguments
def dual_lora(
    rank: Count = 8,
    alpha: Positive | None = None,
    *,
    targets: str | Sequence[str] = "*",
    rank_stabilized: bool = False,
    dropout: FractionBelowOne = 0.0,
    train_head: bool = True,
) -> Callable[[Model], Model]:
    """Freeze a model, and add two trained low-rank terms to the chosen layers, one of them for a client's own use.

        y = x W + b + s (x A) B + s' (x A') B'

    A' and B' are the leaves local_a and local_b of a layer, which begin as A and B do, with another random A'. The
    scales are the leaves adapter/scale s and adapter/local_scale s', which is 0 at first.

    Variables may also have the leaf adapter/references, inputs [examples, ...]. The scales of an input are then (s - c
    s', c s'), with c the mean cosine of its features to those of the references, all with W + s A' B'. Features of
    several positions are averaged over positions.

    Args:
        rank: As in `lora`, as are all arguments.
        alpha: As in `lora`.
        targets: As in `lora`.
        rank_stabilized: As in `lora`.
        dropout: As in `lora`.
        train_head: As in `lora`.

    Raises:
        InputError: As for `lora`.

    References:
        Yang, Long, Shen, Jiang and Blumenstein, Dual-Personalizing Adapter for Federated Foundation Models, NeurIPS
        2024. arXiv:2403.19211
    """
    scale = lora_scale(rank, alpha, rank_stabilized)
    add = add_adapters((SHARED, LOCAL), rank, scale, targets, dropout, train_head, own_scale=True)

    def adapt(model: Model) -> Model:
        both = add(model)

        def encode(variables: Variables, inputs: Array, context: Context) -> tuple[tuple[Array, Named], Variables]:
            adapter = variables["adapter"]
            if "references" not in adapter:
                return both.encode(variables, inputs, context)

            def encode_at(
                scale: Array, local_scale: Array, inputs: Array, mask: Array
            ) -> tuple[tuple[Array, Named], Variables]:
                own = variables | {"adapter": {"scale": scale, "local_scale": local_scale}}
                return both.encode(own, inputs, context._replace(mask=mask))

            def find_direction(inputs: Array, mask: Array) -> Array:
                features = encode_at(jnp.zeros_like(adapter["scale"]), adapter["scale"], inputs, mask)[0][0]
                mean = features.reshape(len(features), -1, features.shape[-1]).mean(axis=1)
                return mean / tree.positive_or_one(jnp.linalg.norm(mean, axis=-1, keepdims=True))

            references = adapter["references"]
            center = find_direction(references, jnp.ones(len(references), context.mask.dtype)).mean(axis=0)
            local = find_direction(inputs, context.mask) @ center * adapter["local_scale"]
            return encode_at(adapter["scale"] - local, local, inputs, context.mask)

        return both._replace(encode=encode)

    return adapt
