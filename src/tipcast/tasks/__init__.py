"""Tasks: what is predicted, of which kind it is, and which rows have a target."""
