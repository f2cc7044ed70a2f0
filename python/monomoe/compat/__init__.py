"""Entry points of other packages, by their names, arguments, shapes and meaning, on monomoe: a caller changes the import.

deep_gemm: the SM90 MegaMoE functions of DeepGEMM and its forks. flashinfer_megamoe: flashinfer.megamoe. docs/python.md says what differs.
"""
