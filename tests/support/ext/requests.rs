//! The requests of managers in the audit log.

use std::fmt::Write as _;

use k8s_openapi::jiff::Timestamp;
use operetta::local::{AuditEvent, AuditLog, Mark};

use crate::support::rights;

/// Whether a request is the manager's: the components have their own users, and requests by tests have the
/// user agent of kubectl or of the control plane.
pub fn is_managers(event: &AuditEvent) -> bool {
    (event.user == "admin" || event.user == rights::user(operetta::rights::MANAGER))
        && !event.user_agent.starts_with("kubectl")
        && !event.user_agent.starts_with("operetta-local/")
}

/// Whether a request is about the Lease for leader election, which is not reconciliation.
pub fn is_lease(event: &AuditEvent) -> bool {
    event.resource == "leases"
}

/// The manager's requests since a mark in the audit log.
pub fn managers_requests(audit: &AuditLog, mark: Mark) -> Vec<AuditEvent> {
    let mut requests = audit.requests_since(mark).expect("the audit log");
    requests.retain(is_managers);
    requests
}

/// When the API server answered a request.
pub fn time_of(event: &AuditEvent) -> Timestamp {
    event.time.parse().expect("RFC 3339")
}

/// Requests, one a line, for messages.
pub fn list(requests: &[AuditEvent]) -> String {
    requests.iter().fold(String::new(), |mut text, r| {
        let _ = writeln!(text, "{} {} {} {} ({})", r.time, r.verb, r.uri, r.code, r.user_agent);
        text
    })
}
