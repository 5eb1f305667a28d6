"""The recording of a phone, for costs and schedules of its GPU."""
