"""Federation: the mount of a cluster, referrals to other clusters, and the links to parent and
children.
"""
