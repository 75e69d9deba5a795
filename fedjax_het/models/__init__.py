"""Networks: a feature extractor and a head, as pure functions."""

from fedjax_het.models.cnn import cnn, lenet
from fedjax_het.models.mlp import mlp
from fedjax_het.models.model import from_flax
from fedjax_het.models.precision import computed_in
from fedjax_het.models.projection import projected

MODELS = {"mlp": mlp, "lenet": lenet, "cnn": cnn}

__all__ = ["MODELS", "cnn", "computed_in", "from_flax", "lenet", "mlp", "projected"]
