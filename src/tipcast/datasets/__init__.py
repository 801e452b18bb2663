"""Datasets: where rows come from, what their columns mean, and how they become features and a
target.
"""
