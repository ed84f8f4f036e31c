"""Load a trained model and generate text with samplers, guidance and infilling."""
