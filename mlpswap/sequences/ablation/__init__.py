"""Toy models with and without each of their parts."""
