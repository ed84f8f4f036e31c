"""Texts of several runs, rated by people who do not know whose they are."""
