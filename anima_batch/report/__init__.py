"""One self-contained page of a job: its pictures, what each took, how they compare, what went wrong."""

from anima_batch.report.page import Written, write_report

__all__ = ["Written", "write_report"]
