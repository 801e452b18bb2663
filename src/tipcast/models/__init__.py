"""Estimators: the one look-up of a model by device and reach, and the few classes a library lacks."""
