"""The database of tuned schedules that ships with Romou: data only, read by `romou/tuner/records/database.py`."""
