"""What the facade is made of: a model compiled, measured, checked and assembled."""
