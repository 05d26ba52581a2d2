//! Typed, injection-proof templates and expressions.
