"""Power cuts, kills and storage errors at every point of a job, by four methods, in one table."""
