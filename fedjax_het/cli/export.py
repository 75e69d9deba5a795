"""Export of a run's model to PyTorch: fedjax-het export --workdir=runs/small --to=model.safetensors

The file holds the server's model after the last checkpoint as a state dict with torchvision's names, or HarmoFL's for
its U-Net. Personal leaves are the mean over the clients that have trained, as in evaluation.
"""

import argparse
import sys
from collections.abc import Sequence
from pathlib import Path

from fedjax_het.cli.configuration.command_line import with_exit_status
from fedjax_het.cli.runs.trained_model import TrainedModel, load_model
from fedjax_het.models import save_state_dict, unnamed_leaves


@with_exit_status()
def main(argv: Sequence[str]) -> int:
    """Run the command; return the exit status: 0, or 2 for an input error, which is printed on stderr."""
    parser = argparse.ArgumentParser(prog="fedjax-het export", description="Write a run's model for PyTorch.")
    parser.add_argument("--workdir", type=Path, required=True, help="the run directory")
    parser.add_argument("--to", type=Path, required=True, help="the file to write, .safetensors or .npz")
    parser.add_argument("--seed", type=int, help="one of the run's seeds (default: the first)")
    flags = parser.parse_args(argv)
    model = load_model(flags.workdir, flags.seed)
    write_model(flags.to, model)
    return 0


def write_model(file: Path, model: TrainedModel) -> None:
    """Write a model that has names in PyTorch to a file, and say so."""
    assert model.naming is not None
    save_state_dict(file, model.variables, model.naming)
    print(f"{file}: the model after {model.rounds} rounds")
    if rest := unnamed_leaves(model.variables, model.naming):
        print(f"left out, because they have no name in PyTorch: {', '.join(rest)}")


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
