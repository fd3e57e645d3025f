"""Graph passes: nodes become what the accelerator has."""
