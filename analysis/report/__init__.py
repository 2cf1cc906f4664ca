"""The report: one self-contained HTML file with every table and figure, data health, provenance and sample rollouts.

``overview`` writes the sentences, ``health`` counts what went wrong, ``provenance`` says what was run, ``cost`` what it
took, ``rollouts`` draws the sample for the browser, ``page`` puts them into the template beside it. No external
resource: it opens offline, in light and dark.
"""
