"""Clipping of updates to a norm."""

from typing import Literal

from fedjax_het.algorithm import Sent, Stage, StageView
from fedjax_het.noise import clip_layers, clip_norm
from fedjax_het.types import Variables
from fedjax_het.validation import Positive, validate_arguments

Collections = Literal["params", "all"]


@validate_arguments
def clip(norm: Positive, per_layer: bool = False, collections: Collections = "params") -> Stage:
    """Scale down every update whose norm exceeds a bound.

        u <- u min(1, C / |u|)

    The norm is computed in float32. Updates of norm C or less, including zeros, are unchanged to the bit.

    Args:
        norm: C, in units of the parameters; typically 0.1 to 1.
        per_layer: Whether each of the l tensors is clipped separately to C / sqrt(l), which bounds the norm of the
            whole update by C.
        collections: "params" sends other collections (batch statistics) unchanged; "all" clips all as one vector.

    Raises:
        InputError: The bound is not positive.

    References:
        McMahan et al., Learning Differentially Private Recurrent Language Models, ICLR 2018. arXiv:1710.06963
    """

    def send(update: Variables, view: StageView) -> Sent:
        return Sent(clip_layers(update, norm) if per_layer else clip_norm(update, norm))

    return Stage(send=send, collections=collections)
