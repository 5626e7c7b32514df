"""One training on several containers: the agent of a seat, its rank, what ranks share."""
