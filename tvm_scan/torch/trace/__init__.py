"""A user's function in one step, as text.

Read ``graph`` first, then ``results`` (what it returns), ``sizes`` (those that vary), ``traced``
(traces in memory) with ``reads`` (how long they hold), ``stored_traces`` (on disk), ``apart``
(traces that no transform sees), and ``lowered`` (the text as a loop over time).
"""
