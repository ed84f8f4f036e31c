"""Loading a trained model and generating text: samplers, guidance, infilling."""
