"""The board's timing table, and the simulation of a step that it gives: pure, knows nothing of a model set."""

from anima_batch.board.choice import Choice, list_choices
from anima_batch.board.course import Conditions
from anima_batch.board.engine import Event
from anima_batch.board.simulation import Simulation, simulate
from anima_batch.board.table import BRANCHES, Branch, Branches, BranchTimes, Table, list_tables, load_table

__all__ = [
    "BRANCHES",
    "Branch",
    "BranchTimes",
    "Branches",
    "Choice",
    "Conditions",
    "Event",
    "Simulation",
    "Table",
    "list_choices",
    "list_tables",
    "load_table",
    "simulate",
]
