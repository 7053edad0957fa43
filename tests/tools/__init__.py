"""Tools for development: notebooks, documents, coverage, seeded defects, hostile environments."""
