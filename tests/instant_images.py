"""Images that cost a board nothing, for a driver that is to be measured alone."""

from __future__ import annotations

import numpy as np
from distributed import get_worker

from anima_batch.fleet.messages import Assignment, Made
from anima_batch.runner.image_log import ImageLog
from anima_batch.runner.record import Outcome
from anima_batch.sampling import make_sigmas


def make_instantly(assignment: Assignment) -> Made:
    """What `make_assigned` gives, without any of its work."""
    board = next(plugin for plugin in get_worker().plugins.values() if hasattr(plugin, "scratch"))
    request = assignment.planned.image.request
    pixels = np.zeros((request.height, request.width, 3), np.uint8)
    pixels[:, :, 0] = request.seed % 251
    pixels[0, 0, 1] = 1
    latents = np.full((16, request.height // 8, request.width // 8), request.seed, np.float32)
    outcome = Outcome(
        log=ImageLog().begin_run([], 0.0, board.name),
        sigmas=make_sigmas(request.schedule, request.steps, request.shift),
        noise_sha256="0" * 64,
        latents=latents,
    )
    model = board._model
    return Made(board.name, model.provenance.environment, outcome, pixels)
