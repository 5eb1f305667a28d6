"""Models for several shapes, and for sizes at run time."""
