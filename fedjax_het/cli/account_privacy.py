"""Privacy accounting without training: fedjax-het privacy --probability=0.1 --rounds=512 ...

With --noise_multiplier it prints the epsilon, with --epsilon the smallest noise multiplier. Exit status: 0, or 2 for an
input error, printed on stderr.
"""

import argparse
import sys
from collections.abc import Mapping, Sequence
from typing import Any, get_args

from fedjax_het.cli.configuration.command_line import with_exit_status
from fedjax_het.errors import InputError
from fedjax_het.privacy import (
    Accountant,
    FixedSizeSampling,
    LocalNoise,
    PoissonSampling,
    Sampling,
    Unit,
    epsilon,
    noise_multiplier,
    resolve_accountant,
)


def read_sampling(flags: argparse.Namespace) -> Sampling:
    """The sampling of clients.

    Raises:
        InputError: The flags describe no sampling or several, or a number is out of range.
    """
    sampling = {name: getattr(flags, name) for name in ("probability", "cohort_size", "num_clients", "slots")}
    unit = {"unit": None if flags.unit == "client" else flags.unit}
    if flags.noise_at == "clients":
        _refuse(unit, "with --noise_at=clients, which protects clients")
        _refuse(sampling, "with --noise_at=clients, where sampling gives no protection")
        return LocalNoise()
    if (flags.probability is None) == (flags.cohort_size is None):
        raise InputError(
            "give --probability for Poisson sampling, or --cohort_size and --num_clients for cohorts of one size."
        )
    if flags.probability is not None:
        return PoissonSampling(flags.probability, flags.num_clients, flags.slots, flags.unit)
    _refuse({"slots": flags.slots, **unit}, "with --cohort_size")
    if flags.num_clients is None:
        raise InputError("--cohort_size: needs --num_clients, too.")
    return FixedSizeSampling(flags.num_clients, flags.cohort_size)


def _refuse(flags: Mapping[str, Any], reason: str) -> None:
    """Raise InputError for the first flag that is given."""
    for name, value in flags.items():
        if value is not None:
            raise InputError(f"--{name}: has no effect {reason}. Leave it out.")


@with_exit_status()
def main(argv: Sequence[str]) -> int:
    """Run the command; return the exit status."""
    parser = argparse.ArgumentParser(
        prog="fedjax-het privacy", description="Compute epsilon from noise, or noise from epsilon.", allow_abbrev=False
    )
    given = parser.add_mutually_exclusive_group(required=True)
    given.add_argument("--noise_multiplier", type=float, help="the noise on the sum of updates over their bound")
    given.add_argument("--epsilon", type=float, help="the epsilon that all rounds together may cost")
    parser.add_argument("--rounds", type=int, required=True, help="the number of rounds")
    parser.add_argument("--delta", type=float, required=True, help="well below one over the number of clients")
    parser.add_argument("--probability", type=float, help="Poisson sampling: of each client in each round")
    parser.add_argument(
        "--unit", choices=get_args(Unit), default="client", help="what is sampled; rounds are then steps"
    )
    parser.add_argument("--slots", type=int, help="Poisson sampling: the places of a round (default: enough)")
    parser.add_argument("--num_clients", type=int, help="all clients")
    parser.add_argument("--cohort_size", type=int, help="a fixed number of clients per round")
    parser.add_argument("--noise_at", choices=("server", "clients"), default="server", help="who adds the noise")
    parser.add_argument("--accountant", choices=get_args(Accountant), default="auto", help="default: the tighter one")
    flags = parser.parse_args(argv)
    sampling, rest = read_sampling(flags), (flags.rounds, flags.delta, flags.accountant)
    if flags.epsilon is None:
        value, z = epsilon(flags.noise_multiplier, sampling, *rest), flags.noise_multiplier
    else:
        value, z = flags.epsilon, noise_multiplier(flags.epsilon, sampling, *rest)
    print(f"epsilon {value:.5g} at delta {flags.delta:g} after {flags.rounds} rounds, to {sampling.neighbors}")
    print(f"noise multiplier {z:.6g}, {sampling}; {resolve_accountant(sampling, flags.accountant).upper()} accountant")
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
