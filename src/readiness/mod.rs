//! Whether an object is ready, by the kstatus rules.
