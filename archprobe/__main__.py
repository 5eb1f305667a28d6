"""The command ``archprobe`` as ``python -m archprobe``."""

from archprobe.cli import main

if __name__ == "__main__":
    main()
