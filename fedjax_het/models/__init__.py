"""Networks: a feature extractor and a head, as pure functions."""

from fedjax_het.models.cnn import cnn, lenet
from fedjax_het.models.densenet import DENSENET_NAMES, densenet121, harmofl_densenet
from fedjax_het.models.mlp import mlp
from fedjax_het.models.model import from_flax
from fedjax_het.models.precision import computed_in
from fedjax_het.models.projection import projected
from fedjax_het.models.resnet import RESNET_NAMES, resnet18, resnet50
from fedjax_het.models.unet import UNET_NAMES, unet

MODELS = {
    "mlp": mlp,
    "lenet": lenet,
    "cnn": cnn,
    "resnet18": resnet18,
    "resnet50": resnet50,
    "densenet121": densenet121,
    "harmofl_densenet": harmofl_densenet,
    "unet": unet,
}
TORCH_NAMES = {
    "resnet18": RESNET_NAMES,
    "resnet50": RESNET_NAMES,
    "densenet121": DENSENET_NAMES,
    "harmofl_densenet": DENSENET_NAMES,
    "unet": UNET_NAMES,
}
"""What PyTorch code calls the layers of a model, for `pretrained.save`; those that are missing have no names there."""

__all__ = [
    "MODELS",
    "TORCH_NAMES",
    "cnn",
    "computed_in",
    "densenet121",
    "from_flax",
    "harmofl_densenet",
    "lenet",
    "mlp",
    "projected",
    "resnet18",
    "resnet50",
    "unet",
]
