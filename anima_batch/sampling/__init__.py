"""Flow-matching sampling: schedules, noise, solvers, guidance, forecasts; knows a model only as a velocity."""

from anima_batch.sampling.checks import Problem, check_request
from anima_batch.sampling.flow_match import guide, make_sigmas
from anima_batch.sampling.noise import make_noise
from anima_batch.sampling.policies import Stream, VelocityModel, computed_steps, planned_passes
from anima_batch.sampling.sample import initial_state, sample
from anima_batch.sampling.state import (
    Array,
    ForecastState,
    HistoryEntry,
    SamplerState,
    SolverState,
    StepReport,
    pack_state,
    unpack_state,
)
from anima_batch.sampling.state_faults import find_state_fault

__all__ = [
    "Array",
    "ForecastState",
    "HistoryEntry",
    "Problem",
    "SamplerState",
    "SolverState",
    "StepReport",
    "Stream",
    "VelocityModel",
    "check_request",
    "computed_steps",
    "find_state_fault",
    "guide",
    "initial_state",
    "make_noise",
    "make_sigmas",
    "pack_state",
    "planned_passes",
    "sample",
    "unpack_state",
]
