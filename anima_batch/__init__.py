"""Overnight batches of the Anima text-to-image model, resumable, recorded, auditable."""

__version__ = "0.1.0"
