"""The model in a process of its own: what it is asked, and who waits for it. Nothing imported here loads a runtime."""

from anima_batch.worker.deadlines import Deadlines
from anima_batch.worker.messages import Opened, Opening, StepTaken, WorkerFault
from anima_batch.worker.model import ModelWorker

__all__ = ["Deadlines", "ModelWorker", "Opened", "Opening", "StepTaken", "WorkerFault"]
