"""Networks: a feature extractor and a head, as pure functions."""

from collections.abc import Callable, Mapping

from fedjax_het.models._adaptations import (
    probabilistic,
    projected,
    with_empty_parameter,
    with_feature_shape,
    with_image_shape,
    with_logit_shape,
)
from fedjax_het.models._adapter_terms import merge_adapters, remove_adapters
from fedjax_het.models._amplitude import Band, FirstAverage, amplitude_normalised
from fedjax_het.models._bert import BERT_NAMES, DISTILBERT_NAMES, ROBERTA_NAMES, bert, distilbert, roberta
from fedjax_het.models._bottleneck import bottleneck
from fedjax_het.models._clip import clip
from fedjax_het.models._cnn import cnn, lenet
from fedjax_het.models._conditional import with_gate, with_valve
from fedjax_het.models._context import ContextSettings, Position, context
from fedjax_het.models._densenet import DENSENET_NAMES, densenet121, harmofl_densenet
from fedjax_het.models._dual_lora import dual_lora
from fedjax_het.models._efficientnet import EFFICIENTNET_NAMES, efficientnet_lite0
from fedjax_het.models._exits import with_exits
from fedjax_het.models._frozen import freeze, no_adapter, train_only
from fedjax_het.models._generator import with_generator
from fedjax_het.models._gpt2 import GPT2_NAMES, gpt2
from fedjax_het.models._grouped import grouped, select_network
from fedjax_het.models._layers import Conv, UpConv, avg_pool, max_pool
from fedjax_het.models._llama import LLAMA_NAMES, llama
from fedjax_het.models._lora import AdapterSettings, LowRank, lora, lora_scale, server_kernels
from fedjax_het.models._mixture import mixture
from fedjax_het.models._mlp import mlp
from fedjax_het.models._model import from_flax, narrow_layers
from fedjax_het.models._neighbours import with_neighbours
from fedjax_het.models._norms import NORMS, StaticBatchNorm, norm
from fedjax_het.models._ordinal import ordinal
from fedjax_het.models._pair import common_network, own_network, paired
from fedjax_het.models._peft_files import save_adapters
from fedjax_het.models._personal_context import low_rank_context, transported_context
from fedjax_het.models._personal_parts import HeadStart, with_feature_shift, with_gaussian, with_personal_head
from fedjax_het.models._precision import Precision, computed_in
from fedjax_het.models._pretrained import Names, Naming, unnamed_leaves
from fedjax_het.models._pretrained_lora import pretrained_lora
from fedjax_het.models._published import Published, save_published, save_state_dict, starting_from
from fedjax_het.models._resnet import RESNET_NAMES, resnet18, resnet50
from fedjax_het.models._sequences import LSTM, lstm, transformer
from fedjax_het.models._simplex_frame import framed
from fedjax_het.models._unet import UNET_NAMES, unet
from fedjax_het.models._vision_names import CLIP_NAMES, VIT_NAMES
from fedjax_het.models._visual_prompts import visual_prompts
from fedjax_het.models._vit import vit
from fedjax_het.models._weight_files import read_state_dict
from fedjax_het.types import Model

MODELS = {
    model.__name__: model
    for model in (
        mlp,
        lenet,
        cnn,
        resnet18,
        resnet50,
        densenet121,
        harmofl_densenet,
        efficientnet_lite0,
        unet,
        lstm,
        transformer,
        bert,
        roberta,
        distilbert,
        gpt2,
        llama,
        vit,
        clip,
    )
}
ADAPTERS: Mapping[str, Callable[..., Callable[[Model], Model]]] = {
    "none": no_adapter,
    "freeze": freeze,
    "train_only": train_only,
    "lora": lora,
    "pretrained_lora": pretrained_lora,
    "bottleneck": bottleneck,
    "visual_prompts": visual_prompts,
    "context": context,
}
"""What `config.model.adapter` can do to a model before it is trained, by name."""
TORCH_NAMES: Mapping[str, Names | Mapping[str, Naming]] = {
    **dict.fromkeys(("resnet18", "resnet50"), RESNET_NAMES),
    **dict.fromkeys(("densenet121", "harmofl_densenet"), DENSENET_NAMES),
    "efficientnet_lite0": EFFICIENTNET_NAMES,
    "unet": UNET_NAMES,
    "bert": BERT_NAMES,
    "roberta": ROBERTA_NAMES,
    "distilbert": DISTILBERT_NAMES,
    "gpt2": GPT2_NAMES,
    "llama": LLAMA_NAMES,
    "vit": VIT_NAMES,
    "clip": CLIP_NAMES,
}
"""PyTorch names of a model's layers, for `save_state_dict`, or {outputs: names}; other models have none."""

__all__ = [
    "ADAPTERS",
    "LSTM",
    "MODELS",
    "NORMS",
    "TORCH_NAMES",
    "AdapterSettings",
    "Band",
    "ContextSettings",
    "Conv",
    "FirstAverage",
    "HeadStart",
    "LowRank",
    "Names",
    "Naming",
    "Position",
    "Precision",
    "Published",
    "StaticBatchNorm",
    "UpConv",
    "amplitude_normalised",
    "avg_pool",
    "bert",
    "bottleneck",
    "clip",
    "cnn",
    "common_network",
    "computed_in",
    "context",
    "densenet121",
    "distilbert",
    "dual_lora",
    "efficientnet_lite0",
    "framed",
    "freeze",
    "from_flax",
    "gpt2",
    "grouped",
    "harmofl_densenet",
    "lenet",
    "llama",
    "lora",
    "lora_scale",
    "low_rank_context",
    "lstm",
    "max_pool",
    "merge_adapters",
    "mixture",
    "mlp",
    "narrow_layers",
    "norm",
    "ordinal",
    "own_network",
    "paired",
    "pretrained_lora",
    "probabilistic",
    "projected",
    "read_state_dict",
    "remove_adapters",
    "resnet18",
    "resnet50",
    "roberta",
    "save_adapters",
    "save_published",
    "save_state_dict",
    "select_network",
    "server_kernels",
    "starting_from",
    "train_only",
    "transformer",
    "transported_context",
    "unet",
    "unnamed_leaves",
    "vit",
    "with_empty_parameter",
    "with_exits",
    "with_feature_shape",
    "with_feature_shift",
    "with_gate",
    "with_gaussian",
    "with_generator",
    "with_image_shape",
    "with_logit_shape",
    "with_neighbours",
    "with_personal_head",
    "with_valve",
]
