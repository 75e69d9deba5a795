import sys

from ..command import main
from . import EXPERIMENTS

if __name__ == "__main__":
    sys.exit(main(sys.argv[1:], "harmofl", EXPERIMENTS))
