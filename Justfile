# What is too long for every submission, or makes things that are kept. `just --list` shows all.

python := ".venv/bin/python"

# An environment with every tool, the package from this folder
setup:
    python3 -m venv .venv
    .venv/bin/pip install -q -e '.[dev]'

# All tests
test *arguments:
    .venv/bin/pytest {{arguments}}

# What .ci/run checks besides the tests
lint:
    .venv/bin/ruff check .
    .venv/bin/ruff format --check .
    .venv/bin/mypy
    .venv/bin/lint-imports

# Make the built-in model set anew: the same bytes every time
picture-book:
    rm -rf anima_batch/models/picture-book
    {{python}} -m training.picture_book anima_batch/models/picture-book

# The figures of docs/measurements.md that come from commands
measure:
    .venv/bin/anima-batch bench checkpoint
    {{python}} docs/measure.py

# Full size with random weights: an hour beside Diffusers (extra `train`), 12 GB of disk; goes on where it was
rehearse *arguments:
    {{python}} -m studies.rehearse {{arguments}}

# The tables of docs/policies.md: some 20 minutes on two quiet cores
policies:
    {{python}} -m studies.quality --json outputs/policies.json

# docs/demo.png, from a new run of the demo
demo-picture:
    rm -rf outputs/demo manifests/demo
    .venv/bin/anima-batch run jobs/demo.toml
    {{python}} -m studies.draw_demo

# Kill a job at random moments, many times over
kill rounds="10":
    for round in $(seq {{rounds}}); do .venv/bin/pytest -q tests/runner/test_kill.py || exit 1; done
