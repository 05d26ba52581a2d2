//! Programs of others on the embedded API that `operetta dev` serves: kubectl and Helm, which Go builds.

mod helm;
mod kubectl;
mod readme;
mod siblings;
mod versions;
mod workloads;
