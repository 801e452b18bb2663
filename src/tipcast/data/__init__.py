"""Data: where trips come from, what their files mean, and how they become features and a label."""
