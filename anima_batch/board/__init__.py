"""The board's timing table, and the simulation of a step that it gives: pure, knows nothing of a model set."""

from anima_batch.board.table import BRANCHES, Branch, Branches, BranchTimes, Table, list_tables, load_table

__all__ = ["BRANCHES", "Branch", "BranchTimes", "Branches", "Table", "list_tables", "load_table"]
