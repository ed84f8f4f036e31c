"""The entry point for launchers: `composer -n 8 -m atat_zoo.train EXPERIMENT` runs `atat train` on several ranks."""

from atat_zoo.cli import run
from atat_zoo.cli.train_command import train

if __name__ == "__main__":
    run(train, "atat_zoo.train")
