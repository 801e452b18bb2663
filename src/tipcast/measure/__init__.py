"""Measuring: the clock of a job's phases and what it shows, and the code and versions that a result
comes from.
"""
