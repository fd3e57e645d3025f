"""What a tiling costs: the entries that it needs, and the cycles of a model of the pipeline."""
