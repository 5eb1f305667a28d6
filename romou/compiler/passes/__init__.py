"""TIR passes, one file each. `pipeline.py` shows their order."""
