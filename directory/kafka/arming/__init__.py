"""What operators ask about armed entries: plans, the calls of a change, drift, releases."""
