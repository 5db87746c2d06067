"""The way from a loop nest to a ``Recurrence``, or to the reason why it is none.

Reading order: ``flatten`` (blocks and bindings away), ``nest`` (which loop is time, which are
lanes), ``access`` (what each written buffer is: history, state or scratch), ``symbolic`` (the
step as one expression), ``boundary`` (what the first step reads), ``rewrite`` (the body over
registers), ``assemble`` (all of it, in order).
"""

from tvm_scan.extraction.assemble import extract, extract_nest, most_telling, root_nests
from tvm_scan.extraction.nest import independent

__all__ = ["extract", "extract_nest", "independent", "most_telling", "root_nests"]
