"""Operators' requests about armed entries: plans, the calls of a change, drift, releases."""
