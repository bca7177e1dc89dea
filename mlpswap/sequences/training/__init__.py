"""Gradient descent for many small networks at once."""
