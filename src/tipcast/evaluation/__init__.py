"""Evaluation: metrics at any number of rows, plots and the report made of them."""
