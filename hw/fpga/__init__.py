"""From a core to a bitstream: synthesis, floorplan, devices and their tools."""
