"""Exploring: designs for networks and limits, with what each costs and how that is known."""
