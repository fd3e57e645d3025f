"""The accelerator: operators on its units, schedules, tiles, instructions, order and tokens."""
