"""Who calls: certificates, tokens, and the principals that they stand for."""
