"""Operators as tensor expressions, and their schedules per target."""
