"""The engine: compiles an algorithm's round, runs it on devices, evaluates it and keeps its state."""

from fedjax_het.engine.diagnose import DiagnosticValues
from fedjax_het.engine.early_stopping import EarlyStopping
from fedjax_het.engine.evaluation.client_statistics import (
    MAIN_SCORES,
    compute_statistics,
    flatten_evaluation,
    main_score,
    summarize_clients,
)
from fedjax_het.engine.evaluation.evaluate import Evaluation, Metrics
from fedjax_het.engine.evaluation.metrics import METRICS, PredictionMetric, check_metrics, find_metric
from fedjax_het.engine.evaluation.phase_metrics import PhaseMetrics
from fedjax_het.engine.evaluation.phase_statistics import continual_statistics, drift_statistics, summarize_phases
from fedjax_het.engine.evaluation.predictions import confusion_matrix
from fedjax_het.engine.execution.cost import RunCost
from fedjax_het.engine.execution.run_spec import OffloadPolicy
from fedjax_het.engine.feature_cache import cache_features
from fedjax_het.engine.history import History, simulate
from fedjax_het.engine.parallel.layout import Layout, chunked, sharded, vmapped
from fedjax_het.engine.parallel.runs import Sweep
from fedjax_het.engine.planning.autotune import LayoutChoice
from fedjax_het.engine.prediction import Prediction, predict
from fedjax_het.engine.round.program import Round, make_round
from fedjax_het.engine.round.records import RoundMetrics
from fedjax_het.engine.simulation import Simulation, is_personal_on_test
from fedjax_het.engine.storage.checkpoint import Checkpoints, SavedCheckpoint, inspect_checkpoints
from fedjax_het.engine.storage.client_store import ClientStore

__all__ = [
    "MAIN_SCORES",
    "METRICS",
    "Checkpoints",
    "ClientStore",
    "DiagnosticValues",
    "EarlyStopping",
    "Evaluation",
    "History",
    "Layout",
    "LayoutChoice",
    "Metrics",
    "OffloadPolicy",
    "PhaseMetrics",
    "Prediction",
    "PredictionMetric",
    "Round",
    "RoundMetrics",
    "RunCost",
    "SavedCheckpoint",
    "Simulation",
    "Sweep",
    "cache_features",
    "check_metrics",
    "chunked",
    "compute_statistics",
    "confusion_matrix",
    "continual_statistics",
    "drift_statistics",
    "find_metric",
    "flatten_evaluation",
    "inspect_checkpoints",
    "is_personal_on_test",
    "main_score",
    "make_round",
    "predict",
    "sharded",
    "simulate",
    "summarize_clients",
    "summarize_phases",
    "vmapped",
]
