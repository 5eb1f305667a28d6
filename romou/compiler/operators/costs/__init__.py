"""The cost of a kernel by formulas over its knobs: usage, verdicts of the criteria, and estimated seconds.

Everything takes arrays over configs, so a whole space is priced at once, before anything is lowered.
"""
