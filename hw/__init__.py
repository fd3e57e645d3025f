"""The accelerator in Amaranth: one Component per file, named as the block it describes."""
