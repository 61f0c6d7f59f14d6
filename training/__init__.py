"""Trains the built-in model set on scenes that the project draws itself."""
