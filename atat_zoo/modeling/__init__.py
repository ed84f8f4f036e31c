"""The model and how it learns: the mathematics, networks, masks, estimators, curricula and objectives."""
