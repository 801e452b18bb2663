"""Scoring files with a saved model: what is due, the workers' tasks, the folder of scores, the
run's record.
"""
