"""Choices: what can be chosen, who chooses it, and files of choices.

::

    vdla run MODEL --json report.json           says per layer which knobs, and who chose them
    vdla run MODEL --knobs report.json          makes the same choices again
"""
