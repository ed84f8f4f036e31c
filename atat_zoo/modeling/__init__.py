"""The model and its training: networks, masks, estimators, curricula and objectives."""
