"""Documents, for the tests of documentation."""
