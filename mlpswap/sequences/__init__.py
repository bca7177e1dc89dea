"""The sequence-memorisation challenge: one hidden layer of ReLUs that stores (token, token) -> label facts.

Facts and the network stand in `facts` and `network`; every way to find the weights is one small file.
"""
