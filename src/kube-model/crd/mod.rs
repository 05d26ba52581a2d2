//! What the API server says of CRDs.

mod names;
mod rules;

pub use names::{default_names, unique_names};
pub use rules::{At, Findings, Refusal, Rules, compile_rules};
