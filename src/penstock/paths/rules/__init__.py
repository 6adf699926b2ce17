"""The kernels that decide: one file for each rule, over one shape of state; `families` calls the one that is asked for.

Numba keeps no compiled kernel that takes functions, so a rule is asked for by its number.
"""
