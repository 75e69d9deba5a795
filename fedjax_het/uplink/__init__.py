"""The stages of an uplink: what happens to a client's finished update before the server combines it.

An algorithm takes them in the order in which they apply, `dataclasses.replace(fedavg(), uplink=(clip(1.0),))`; a
config names them, `config.uplink = ({"name": "clip", "norm": 1.0},)`.
"""

from fedjax_het.algorithm import Sent, Stage, StageView
from fedjax_het.uplink._clipping import clip

STAGES = {stage.__name__: stage for stage in (clip,)}
"""The stages by name."""

__all__ = ["STAGES", "Sent", "Stage", "StageView", "clip"]
