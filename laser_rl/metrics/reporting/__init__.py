"""What a report is made of.

`subject` reads a run directory; the modules called `…_sections` turn it into the records of `document`; `html`, `markdown` and `tidy` write
those. No number is computed while it is written, so that the three cannot disagree.
"""
