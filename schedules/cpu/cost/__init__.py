"""What plans of CPUs cost: counts of a step (``step``), then one file for each kind of plan."""
