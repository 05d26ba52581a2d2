//! A Kubernetes control plane on this machine.
