"""Doors: models as other projects hold them become ONNX or a program of ``torch.export``.

A door is a file of its own; ``opening.py`` chooses among them. The work is done by the best-kept
converter there is, an optional package that is imported when such a model comes.
"""
