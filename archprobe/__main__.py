"""``python -m archprobe`` is ``archprobe``."""

from archprobe.cli import main

if __name__ == "__main__":
    main()
