"""Reproductions: python -m experiments.papers fedld --what=table2 --scale=cpu --data=cxr.npz"""

import importlib
import sys
from collections.abc import Sequence
from pathlib import Path

from experiments.run import Runner, parse_paths
from experiments.spec import PRETRAINED, Experiment, Settings
from experiments.tables import to_csv, to_markdown
from fedjax_het.cli.configuration.command_line import make_parser, split_overrides, with_exit_status
from fedjax_het.cli.runs import json_files, plots
from fedjax_het.errors import InputError, nearest

PAPERS = {
    "fedld": "tables and figures of FedLD",
    "fedmgc": "tables and figures of FedMGC",
    "fedrd": "tables and figures of FedRD",
    "harmofl": "tables and figures of HarmoFL",
    "fl_simulator": "FL-Simulator's table of CIFAR-10",
    "baselines": "all algorithms on real data with skewed classes",
}


@with_exit_status("stopped; the same command resumes")
def main(argv: Sequence[str]) -> int:
    """Run the command of a paper: 0 = all is done, 1 = some runs failed, 2 = an input error."""
    if not argv or argv[0] not in PAPERS:
        lines = [f"  {name:14}{title}" for name, title in PAPERS.items()]
        print("\n".join(["usage: python -m experiments.papers NAME --help", "", *lines]))
        if not argv or argv[0] in ("--help", "-h"):
            return 0 if argv else 2
        raise InputError(f"there is no paper '{argv[0]}'. {nearest(argv[0], PAPERS)}")
    paper, *rest = argv
    experiments = importlib.import_module(f"experiments.papers.{paper}").EXPERIMENTS
    own, common = split_overrides(rest)
    parser = make_parser(
        f"python -m experiments.papers {paper}",
        "Train a table or figure of the paper and compare the results with the printed values.",
        ", for example --config.model.pretrained=FILE, where the paper's own scale requires it",
    )
    parser.add_argument("--what", required=True, choices=experiments, help="the table or figure")
    parser.add_argument("--scale", default="cpu", choices=("smoke", "cpu", "paper"), help="the size of the experiment")
    parser.add_argument("--data", action="append", default=[], metavar="PATH", help="PATH, or NAME=PATH for each file")
    parser.add_argument("--workdir", type=Path, default=Path("runs") / "papers" / paper, help="folder of the results")
    flags = parser.parse_args(own)
    is_done, text = reproduce(experiments[flags.what], flags.scale, flags.data, common, flags.workdir, flags.what)
    print(text)
    return int(not is_done)


def reproduce(
    experiment: Experiment, scale: str, data: Sequence[str], common: Settings, workdir: Path, name: str
) -> tuple[bool, str]:
    """Train the runs that are not finished, and write the comparison.

    Args:
        experiment: the table or figure.
        scale: the name of the scale.
        data: the values of --data.
        common: the user's settings for all runs.
        workdir: the folder of runs and results.
        name: the name of the experiment.

    Returns:
        (whether all runs are done, the comparison as Markdown).

    Raises:
        InputError: The scale, the data or the settings cannot be used.
    """
    if scale not in experiment.scales:
        raise InputError(f"--scale={scale}: '{name}' exists at {', '.join(experiment.scales)}. Choose one of these.")
    paths = parse_paths(experiment.scales[scale].data, data)
    if (weights := experiment.scales[scale].pretrained) and PRETRAINED not in common:
        raise InputError(
            f"--scale={scale}: training starts from {weights}. Set --config.{PRETRAINED}=FILE.safetensors "
            f"(or .npz, PyTorch's state dict), or --config.{PRETRAINED}=none for random weights, which the "
            "result then states."
        )
    runner = Runner(experiment, scale, common, paths, workdir)
    workdir.mkdir(parents=True, exist_ok=True)

    def write() -> tuple[bool, str]:
        entries, runs = runner.read_entries(), runner.read_runs()
        text = to_markdown(experiment, scale, entries, common, runner.failed, runs)
        json_files.write(workdir / f"{name}-{scale}.md", text)
        json_files.write(workdir / f"{name}-{scale}.csv", to_csv(entries))
        return all(entry.seeds for entry in entries), text

    runner.train(write)
    if experiment.draw:
        path = workdir / f"{name}-{scale}.png"
        plots.write_drawing(path, experiment.draw, runner.read_entries(), runner.read_runs())
    return write()


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
