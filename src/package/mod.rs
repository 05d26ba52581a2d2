//! Packages: manifest types, loading, linting.
