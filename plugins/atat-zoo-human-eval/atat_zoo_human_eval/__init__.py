"""Blind human evaluation of texts from several runs."""
