"""Runtimes that execute one subgraph; nothing here knows Anima."""
