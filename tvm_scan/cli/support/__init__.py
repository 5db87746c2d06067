"""What commands share.

``failure`` (one sentence, the fix, an exit code) and ``terminal`` (tables, JSON, text that is no
markup) import nothing heavy. ``load`` makes objects of what a user names, ``execute`` compiles and
calls them, and ``roof`` measures what this machine does at most.
"""
