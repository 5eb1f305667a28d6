"""Reports: Microsoft ArchProbe's files (`original`) and this package's format (`document`), which has the same keys and
more.
"""
