"""Prompt files and pictures of other programs, and our own pictures, as job files."""

from anima_batch.importers.importing import Dialect, ImportedJob, import_files

__all__ = ["Dialect", "ImportedJob", "import_files"]
