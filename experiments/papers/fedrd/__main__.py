import sys

from experiments.papers.command import main
from experiments.papers.fedrd import EXPERIMENTS

if __name__ == "__main__":
    sys.exit(main(sys.argv[1:], "fedrd", EXPERIMENTS))
