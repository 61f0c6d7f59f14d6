"""Programs behind the figures of docs/."""
