"""`fleet-worker`: this machine as a board of a fleet, for as long as it is wanted."""

from __future__ import annotations

import asyncio
import contextlib
import re
import signal
import socket
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import dask
from distributed import TimeoutError as DaskTimeoutError
from distributed import Worker

from anima_batch.errors import UsageError
from anima_batch.files import lock_folder, make_folder
from anima_batch.fleet.board import Board
from anima_batch.fleet.connection import CONNECT_SECONDS, Connection, silence_dask
from anima_batch.fleet.messages import NPU

AGAIN_SECONDS = 2.0  # between two tries to reach the scheduler

# No profiler that looks at each thread a hundred times a second, no limit on memory that Dask would guess.
DASK = {
    "distributed.worker.profile.enabled": False,
    "distributed.worker.memory.target": False,
    "distributed.worker.memory.spill": False,
    "distributed.worker.memory.pause": False,
    "distributed.worker.memory.terminate": False,
    "distributed.comm.timeouts.connect": "10s",
}

Tell = Callable[[str], None]


def serve_board(connection: Connection, workspace: Path, name: str | None, tell: Tell) -> int:
    """Serve until SIGINT or SIGTERM, and wait for the scheduler where there is none; the signal that ended it.

    The first signal lets the step at hand end, the second ends the process at once. Raises UsageError for a bad name
    and FolderLockedError where a board of that name serves on this storage already.
    """
    name = socket.gethostname() if name is None else name
    if not re.fullmatch(r"[A-Za-z0-9][A-Za-z0-9._-]{0,62}", name):
        raise UsageError(f"--name: must be letters, digits, '.', '_' and '-', at most 63, got {name!r}")
    connection.security()  # files that are no certificates are told before anything is tried
    board = Board(name, workspace, tell)
    make_folder(board.scratch)
    silence_dask()
    with lock_folder(board.scratch), dask.config.set(DASK):
        return asyncio.run(_serve(connection, board, tell))


async def _serve(connection: Connection, board: Board, tell: Tell) -> int:
    stop: asyncio.Future[int] = asyncio.get_running_loop().create_future()
    _catch_signals(stop, board, tell)
    is_waiting_told = False
    while not stop.done():
        executor = ThreadPoolExecutor(1, "npu")  # the model's process lives as long as the thread that made it
        worker = _make_worker(connection, board, executor)
        try:
            await worker
        except (OSError, DaskTimeoutError, RuntimeError, ValueError) as error:  # ValueError: the name is still taken
            if not is_waiting_told:
                tell(f"{board.name}: {connection.describe_silence(error)}; waiting for it")
            is_waiting_told = True
            await worker.close(executor_wait=False)
            executor.shutdown(wait=False)
            with contextlib.suppress(asyncio.TimeoutError):
                await asyncio.wait_for(asyncio.shield(stop), AGAIN_SECONDS)
            continue
        tell(f"{board.name}: serves {connection.address}")
        is_waiting_told = False
        await asyncio.wait({asyncio.ensure_future(worker.finished()), stop}, return_when=asyncio.FIRST_COMPLETED)
        await _leave(worker, board, executor)
        if not stop.done():
            tell(f"{board.name}: the scheduler is gone")
    return stop.result()


def _make_worker(connection: Connection, board: Board, executor: ThreadPoolExecutor) -> Worker:
    return Worker(
        connection.address,
        name=board.name,
        nthreads=1,
        executor=executor,
        resources={NPU: 1},
        security=connection.security(),
        local_directory=str(board.scratch),
        host="127.0.0.1" if connection.is_local else None,
        dashboard_address="127.0.0.1:0",  # Dask starts it even so, and it asks nobody for a certificate
        memory_limit=0,
        death_timeout=CONNECT_SECONDS,  # not for ever: a signal is to be heard
        plugins=(board,),
    )


async def _leave(worker: Worker, board: Board, executor: ThreadPoolExecutor) -> None:
    """Let the step at hand end, and hand over what came of it, before the board is gone or joins again."""
    with contextlib.suppress(RuntimeError):  # where Dask closed it already, the image ended, too
        executor.submit(board.close)
    await asyncio.to_thread(executor.shutdown)
    board.abandon()
    await worker.close()


def _catch_signals(stop: asyncio.Future[int], board: Board, tell: Tell) -> None:
    loop = asyncio.get_running_loop()

    def note(number: int) -> None:
        board.stopping = True
        for caught in (signal.SIGINT, signal.SIGTERM):
            loop.remove_signal_handler(caught)
            signal.signal(caught, signal.SIG_DFL)
        tell(f"{board.name}: stopping after this step; a second signal stops at once")
        if not stop.done():
            stop.set_result(number)

    for number in (signal.SIGINT, signal.SIGTERM):
        loop.add_signal_handler(number, note, number)
