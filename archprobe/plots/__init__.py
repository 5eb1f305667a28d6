"""Pictures of a report: each curve with the points found on it, the architecture, and one HTML page of all."""
