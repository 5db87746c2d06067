"""Records on disk, and plans found in them again. Read ``database`` first.

``names``, ``files``, ``lines``, ``rows``, ``host`` and ``summary`` import no TVM: a table of
records needs no others.
"""
