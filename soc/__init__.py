"""A model on a system on a chip: its image, the firmware that runs it, the simulation of both."""
