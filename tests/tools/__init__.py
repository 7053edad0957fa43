"""Tools for development: notebooks, documents, coverage, seeded defects, other machines."""
