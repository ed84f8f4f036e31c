"""The mathematics of masked diffusion, and the interfaces that denoisers and stateful components implement.

Symbols follow MDLM (Sahoo et al., NeurIPS 2024). Shapes: B sequences, L tokens,
V predictable tokens, N predicted positions. The mask token m has id V.
"""
