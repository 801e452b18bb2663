"""Backends: clusters of workers and their frame libraries; the only room that knows about
devices.
"""
