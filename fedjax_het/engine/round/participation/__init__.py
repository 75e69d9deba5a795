"""Participation rules: which clients take part in a round."""

from fedjax_het.engine.round.participation._divfl import divfl
from fedjax_het.engine.round.participation._fedcor import fedcor
from fedjax_het.engine.round.participation._oort import oort
from fedjax_het.engine.round.participation._record import (
    POLL_BYTES,
    REPORT,
    Known,
    Participation,
    Poll,
    Told,
    count_draws,
    derive_keys,
    know_nothing,
    remember,
)
from fedjax_het.engine.round.participation._rules import (
    bernoulli,
    draw_without_replacement,
    full,
    min_slots,
    overflow_probability,
    poisson,
    trace,
    uniform,
)
from fedjax_het.engine.round.participation._selection import active_fl, pow_d, rpow_d
from fedjax_het.engine.round.participation._spaced import cyclic, waiting

SELECTIONS = {"pow_d": pow_d, "rpow_d": rpow_d, "active_fl": active_fl, "oort": oort, "divfl": divfl, "fedcor": fedcor}
"""Rules that read what clients report."""
PARTICIPATIONS = {"trace": trace, "poisson": poisson, "cyclic": cyclic, "waiting": waiting, **SELECTIONS}
"""Rules by their config names; the default is `uniform` or `bernoulli`, from cohort_size and availability."""

__all__ = [
    "PARTICIPATIONS",
    "POLL_BYTES",
    "REPORT",
    "SELECTIONS",
    "Known",
    "Participation",
    "Poll",
    "Told",
    "active_fl",
    "bernoulli",
    "count_draws",
    "cyclic",
    "derive_keys",
    "divfl",
    "draw_without_replacement",
    "fedcor",
    "full",
    "know_nothing",
    "min_slots",
    "oort",
    "overflow_probability",
    "poisson",
    "pow_d",
    "remember",
    "rpow_d",
    "trace",
    "uniform",
    "waiting",
]
