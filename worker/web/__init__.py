"""The service over HTTP: jobs in, states and events out, and a page to watch them."""
