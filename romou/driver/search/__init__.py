"""The search of a tuning run: its time, its records, and work that is done ahead."""
