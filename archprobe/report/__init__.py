"""Reports: Microsoft ArchProbe's files (`original`), and this package's own (`document`), which holds the same keys and more."""
