"""Groups: several workers train one job together."""
