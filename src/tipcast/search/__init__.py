"""Search: proposing parameters, trying them as tasks on the workers, and giving up on the worst early."""
