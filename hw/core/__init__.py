"""The core in Amaranth: one component per file, named as the block it describes."""
