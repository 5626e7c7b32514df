"""Jobs an hour: several at a time as the worker packs them, against one at a time."""
