"""Import of people's own data: from folders, tables, arrays and archives to a version in the catalog."""
