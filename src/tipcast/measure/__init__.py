"""Measuring: the clock of a job's phases, the memory of its processes, what the machine and its environment have."""
