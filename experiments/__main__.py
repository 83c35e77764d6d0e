"""`python -m experiments`: train, run, tables, figures."""

import sys
from pathlib import Path

from experiments.train import TrainConfig, train

if __name__ == "__main__":
    name = sys.argv[2]
    train(name, Path("runs") / name, TrainConfig())
