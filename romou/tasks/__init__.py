"""What can be done with a task: extract it from a graph, make its knob space, build a kernel of a config."""
