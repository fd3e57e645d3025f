"""Doors: models as the tools of other projects hold them become ONNX or a program of ``torch.export``.

A door is a file of its own with one function, which a row of ``opening.py`` names. The work is done
by the best-kept converter there is, an optional package that is imported when such a model comes.
"""
