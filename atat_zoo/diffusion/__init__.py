"""The mathematics as pure functions of tensors.

Symbols follow MDLM (Sahoo et al., NeurIPS 2024). Shapes: B sequences, L tokens,
V predictable tokens, N positions that are asked for. The mask token m has id V.
"""
