"""The lowest layer: errors, options, knob spaces, tasks as data, limits, the environment. Nothing here imports TVM."""
