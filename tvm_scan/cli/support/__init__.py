"""Functions that commands share.

Without TVM: ``failure`` (one sentence, the fix, an exit code), ``options`` (arguments that several
commands have), ``paths`` (what is looked for before anything else), ``terminal`` (tables, JSON,
text that is no markup), ``summaries`` (records as tables show them), ``asked`` (the words by which
a record was tuned) and ``costs``.

With it: ``load`` makes objects of what a user names, ``programs`` functions to tune, ``models``
modules of model files, ``records`` databases, ``sides`` what is compared, ``arrays`` what is run
on; ``execute`` compiles and calls, ``rerun`` runs records again, ``exchange`` changes a database,
``tuned`` gathers what a report shows, ``roof`` measures what this machine does at most, and
``mamba_layer`` is the demo's model in NumPy.
"""
