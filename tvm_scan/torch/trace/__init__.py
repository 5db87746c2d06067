"""A user's function in one step, as text.

Read ``graph`` first, then ``sizes`` (those that vary), ``traced`` (traces in memory) and ``kept``
(on disk), and ``apart`` (traces that no transform sees).
"""
