"""`python -m atat_zoo` runs the command `atat`."""

from atat_zoo.cli import main

if __name__ == "__main__":
    main()
