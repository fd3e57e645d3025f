"""A core in standard cells: area, longest path and energy, from a Liberty file."""
