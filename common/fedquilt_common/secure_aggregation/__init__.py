"""Secure aggregation: clients hide their replies in a sum, so the coordinator learns nothing but their mean.

Bonawitz et al., "Practical Secure Aggregation for Privacy-Preserving Machine Learning", CCS 2017, figure 4, against
parties that follow the protocol but look at all that they receive. Each pair of clients agrees on a mask that one adds
and the other subtracts. Shares of the secrets let the coordinator remove the masks of clients that drop out.
"""
