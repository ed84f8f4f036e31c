"""The model as loaded, and the texts that it writes: samplers, guidance, infilling."""
