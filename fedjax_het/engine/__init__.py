"""Runs algorithms: one compiled round, laid out on hardware, repeated, evaluated and kept."""

from fedjax_het.engine.checkpoint import Checkpoints, SavedCheckpoint, inspect_checkpoints
from fedjax_het.engine.cost import Facts
from fedjax_het.engine.evaluation import Evaluation, Metrics
from fedjax_het.engine.history import History, simulate
from fedjax_het.engine.layout import Layout, chunked, sharded, vmapped
from fedjax_het.engine.look import Measured
from fedjax_het.engine.participation import available, everyone, uniformly
from fedjax_het.engine.residence import Residence
from fedjax_het.engine.round import Round, RoundMetrics, make_round
from fedjax_het.engine.simulation import Simulation, is_personal_on_test
from fedjax_het.engine.store import ClientStore
from fedjax_het.engine.summaries import flat, summary
from fedjax_het.engine.tuning import Choice

__all__ = [
    "Checkpoints",
    "Choice",
    "ClientStore",
    "Evaluation",
    "Facts",
    "History",
    "Layout",
    "Measured",
    "Metrics",
    "Residence",
    "Round",
    "RoundMetrics",
    "SavedCheckpoint",
    "Simulation",
    "available",
    "chunked",
    "everyone",
    "flat",
    "inspect_checkpoints",
    "is_personal_on_test",
    "make_round",
    "sharded",
    "simulate",
    "summary",
    "uniformly",
    "vmapped",
]
