"""Options and caches of the test suite."""
