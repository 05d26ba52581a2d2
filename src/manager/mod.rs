//! The process that interprets packages.
