"""Anybody's table: how its columns are taken, read, encoded and split; see ``dataset.Table``."""
