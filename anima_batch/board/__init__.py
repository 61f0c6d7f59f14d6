"""The board's timing table, and the simulation of a step that it gives: pure, knows nothing of a model set."""

from anima_batch.board.assumptions import Assumption, Weighed, list_assumptions, weigh_assumptions
from anima_batch.board.choice import Choice, Staging, list_choices, make_choice
from anima_batch.board.course import Conditions
from anima_batch.board.engine import Event
from anima_batch.board.simulation import Simulation, simulate
from anima_batch.board.table import BRANCHES, Branch, Branches, BranchTimes, Table, list_tables, load_table

__all__ = [
    "BRANCHES",
    "Assumption",
    "Branch",
    "BranchTimes",
    "Branches",
    "Choice",
    "Conditions",
    "Event",
    "Simulation",
    "Staging",
    "Table",
    "Weighed",
    "list_assumptions",
    "list_choices",
    "list_tables",
    "load_table",
    "make_choice",
    "simulate",
    "weigh_assumptions",
]
