"""Pictures: trees of plans as text and SVG, plots, and the pages that commands write.

Read ``tree_text`` first, then ``tree_svg``: both draw what a plan's ``picture`` says, for a
recurrence whose words are in ``equation``. ``page`` is the frame of a page and ``plot`` its
charts; ``report_page`` and ``compile_page`` are whole ones.
"""
