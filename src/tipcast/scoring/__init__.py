"""Scoring files with a saved model: what is due, the workers' tasks, the folder of scores, the
run's record.

It is a room below the jobs, as search is, since workers import it: a task must not load the jobs.
"""
