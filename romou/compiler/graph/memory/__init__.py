"""Memory of a model: storage and workspaces planned, weights stored as kernels read them."""
