"""A simulator for heterogeneous federated learning in which a whole round is one XLA program."""

# ruff: noqa: E402
import gc as _gc
import sys as _sys
from types import ModuleType as _ModuleType

_is_collecting = _gc.isenabled()
_gc.disable()  # the imports make many objects and little garbage, and collections would take a sixth of their time

from fedjax_het import algorithms, data, diagnostics, mixing, models, privacy, sharing, topologies, tree, types, uplink
from fedjax_het._internal.public_names import show_public_names as _show_public_names
from fedjax_het.algorithm import (
    Aggregator,
    Algorithm,
    LocalUpdate,
    Memory,
    OutputMixture,
    Summary,
    Weighting,
)
from fedjax_het.client import (
    capacities,
    consistency,
    depths,
    episodes,
    gradients,
    local_updates,
    measures,
    memories,
    mixtures,
    objectives,
    personalization,
    schedules,
    sharpness,
)
from fedjax_het.engine import (
    Checkpoints,
    EarlyStopping,
    History,
    Prediction,
    Simulation,
    Sweep,
    cache_features,
    confusion_matrix,
    predict,
    simulate,
)
from fedjax_het.engine.evaluation import metrics
from fedjax_het.engine.parallel import layout
from fedjax_het.engine.round import asynchronous, participation, timing
from fedjax_het.errors import InputError
from fedjax_het.server import aggregators, summaries, weightings
from fedjax_het.server import optimizers as server_optimizers

__version__ = "0.1.0"
from fedjax_het.shared_models import SharedModels

__all__ = [
    "Aggregator",
    "Algorithm",
    "Checkpoints",
    "EarlyStopping",
    "History",
    "InputError",
    "LocalUpdate",
    "Memory",
    "OutputMixture",
    "Prediction",
    "SharedModels",
    "Simulation",
    "Summary",
    "Sweep",
    "Weighting",
    "__version__",
    "aggregators",
    "algorithms",
    "asynchronous",
    "cache_features",
    "capacities",
    "confusion_matrix",
    "consistency",
    "data",
    "depths",
    "diagnostics",
    "episodes",
    "gradients",
    "layout",
    "local_updates",
    "measures",
    "memories",
    "metrics",
    "mixing",
    "mixtures",
    "models",
    "objectives",
    "participation",
    "personalization",
    "predict",
    "privacy",
    "schedules",
    "server_optimizers",
    "sharing",
    "sharpness",
    "simulate",
    "summaries",
    "timing",
    "topologies",
    "tree",
    "types",
    "uplink",
    "weightings",
]

if _is_collecting:
    if not _gc.get_freeze_count():
        _gc.freeze()
        _gc.unfreeze()  # which makes the new objects old, so that the next collection does not visit them
    _gc.enable()
_show_public_names(_sys.modules[__name__])
for _module in map(globals().get, __all__):
    if isinstance(_module, _ModuleType):
        _show_public_names(_module)
