"""The only place that draws: `results` on stdout, `events` of a run on stderr and as JSON lines."""
