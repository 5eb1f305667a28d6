"""Reports in the formats of Microsoft's ArchProbe (`original`) and of this package (`document`).

This package's format has the same keys and more.
"""
