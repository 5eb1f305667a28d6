"""The public functions, one file each. `romou.__all__` lists their names."""
