"""Reports: Microsoft ArchProbe's files (`original`) and this package's own (`document`), which have the same keys and
more.
"""
