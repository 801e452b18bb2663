"""Taxi trips of New York: all that knows what a trip is."""
