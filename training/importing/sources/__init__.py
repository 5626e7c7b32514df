"""Sources: which samples a folder, table, array file or archive holds, without decoding any of them."""
