"""Costs of plans of CPUs: counts of a step (``step``), then one file for each kind of plan."""
