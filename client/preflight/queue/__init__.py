"""Jobs in the queue, read as untrusted: RQ's hash, payload, options, signature, ids."""
