"""Configuration: where conf/ is, the typed schemas of the jobs, and the errors every room
raises.
"""
