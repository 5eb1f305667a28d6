"""The cost of a kernel by its usage: verdicts of the criteria, estimated seconds, and the configs to begin with.

Everything takes arrays over configs, so a whole space is priced at once, before anything is lowered.
"""
