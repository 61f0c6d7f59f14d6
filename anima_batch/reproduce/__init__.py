"""Making a picture again from its records alone, and telling how far the new one is from it."""

from anima_batch.reproduce.original import Original, read_original
from anima_batch.reproduce.reproduction import Reproduction, compare_made
from anima_batch.reproduce.undertaking import Undertaking, prepare_run

__all__ = ["Original", "Reproduction", "Undertaking", "compare_made", "prepare_run", "read_original"]
