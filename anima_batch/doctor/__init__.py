"""What a machine can run, what on it does not fit together, and the fix."""

from anima_batch.doctor.check import Check, exit_code
from anima_batch.doctor.examination import examine, judge

__all__ = ["Check", "examine", "exit_code", "judge"]
