"""Readers of what an attempt does: logs, progress, exits, the host."""
