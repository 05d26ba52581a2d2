//! Tests of the whole API: recorded answers of a real server, and what no fixture has.

mod access;
mod lateness;
mod recorded;
mod replayed;
