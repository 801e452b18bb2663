"""Backends: which workers there are and which frame library they use; the only room that knows a device."""
