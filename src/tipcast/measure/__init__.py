"""Measuring: the clock of a job's phases and the memory of its processes."""
