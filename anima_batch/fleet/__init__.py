"""Several machines, one job: Dask carries images to them and results back; an extra."""

from anima_batch.fleet.connection import Connection
from anima_batch.fleet.driver import make_on_fleet
from anima_batch.fleet.serving import serve_board

__all__ = ["Connection", "make_on_fleet", "serve_board"]
