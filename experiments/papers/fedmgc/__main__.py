import sys

from experiments.papers.command import main
from experiments.papers.fedmgc import EXPERIMENTS

if __name__ == "__main__":
    sys.exit(main(sys.argv[1:], "fedmgc", EXPERIMENTS))
