"""Tools of schedules: blocks, loops, pieces of TIR."""
