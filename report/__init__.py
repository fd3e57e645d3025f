"""What a run tells: reports, bounds of performance, and differences between two reports."""
