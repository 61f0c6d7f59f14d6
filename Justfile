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

# Kill a job at random moments, many times over, and once at every step of every policy with every signal
kill rounds="10":
    for round in $(seq {{rounds}}); do .venv/bin/pytest -q tests/runner/test_kill.py || exit 1; done
    KILL_EVERY=1 .venv/bin/pytest -q tests/runner/test_signals.py

# A night in fast motion: 500 images, a sick runtime, kills, a full disk
night *arguments:
    PYTHONPATH=tests {{python}} -m crash.night {{arguments}}

# Cut jobs short in every way there is: states of a file system model, injected errors, a logged disk, a virtual machine
crash *arguments:
    PYTHONPATH=tests {{python}} -m crash {{arguments}}

# A tenth of each
crash-quick *arguments:
    PYTHONPATH=tests {{python}} -m crash --share 0.1 {{arguments}}

# Hostile files for everything that reads: Hypothesis, and atheris where it is installed
fuzz *arguments:
    PYTHONPATH=tests {{python}} -m fuzz.campaign {{arguments}}

# docs/manifest.schema.json, after a change of the manifest's model
schema:
    {{python}} docs/write_schema.py

# docs/report.png, from a finished 3 x 4 x 3 job
report-picture report:
    {{python}} -m studies.draw_report {{report}}

# What an audit of many pictures costs
audit-scale *arguments:
    {{python}} -m studies.audit_scale {{arguments}}

# How far the ETA after two images is from the time that the rest of a mixed job takes: two minutes
eta:
    {{python}} -m studies.eta

# A step under every staging at full size, and the host's maths beside PyTorch (extra `train`)
measure-step set:
    .venv/bin/anima-batch bench step --model-set {{set}} --threads 1
    .venv-train/bin/python -m studies.host_maths

# What a fleet of one board costs over running alone: some three minutes on two quiet cores
fleet-cost *arguments:
    {{python}} -m studies.fleet_cost {{arguments}}
