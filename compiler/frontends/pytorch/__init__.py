"""The reader of programs of torch.export."""
