"""Values of settings: cleaned, secrets redacted, directories of this machine."""
