"""Reports as pictures: HTML files that need nothing else, neither a server nor the network.

A page is sections of parts (``parts``); ``page`` writes it with the scripts of the charts that it
has. ``run``, ``compare`` and ``sweep`` make the pages of these commands.
"""
