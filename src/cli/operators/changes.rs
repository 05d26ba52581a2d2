//! Prints what a package would change: in full instead of applying it, or in a few lines before it is applied.

use std::sync::Arc;

use super::Failure;
use super::shared::End;
use crate::cli::command::Format;
use crate::cli::connect::Server;
use crate::cli::{out, preview};
use crate::package::Package;
use crate::preview::Report;

/// Previews all instances. `namespace`: that of the manager. `take_over_from`: the packages from which CRDs are taken over.
async fn report(
    server: &Server,
    package: &Arc<Package>,
    (namespace, take_over_from): (&str, &[String]),
) -> Result<Report, Failure> {
    let input = preview::Input {
        cluster: &server.cluster,
        server_version: &server.version,
        package,
        scope: &preview::Scope::All,
        manager_namespace: Some(namespace),
        take_over_from,
    };
    Ok(preview::preview(input).await?)
}

/// Prints what would change, as `operetta preview` does, with its exit codes. `others`: the packages that would be installed or upgraded
/// first.
pub(super) async fn print(
    server: &Server,
    (others, package): (&[&Arc<Package>], &Arc<Package>),
    about: (&str, &[String]),
    (output, fail_on): (Option<Format>, &[preview::FailOn]),
) -> End {
    let mut reports = Vec::new();
    for other in others {
        reports.push(report(server, other, (about.0, &[])).await?);
    }
    let report = report(server, package, about).await?;
    Ok(preview::print(output, fail_on, (&reports, &report), false))
}

/// Says in a few lines what is about to change. What cannot be previewed is applied all the same: the manager checks a
/// revision before it makes it active.
pub(super) async fn tell(server: &Server, package: &Arc<Package>, about: (&str, &[String])) {
    match report(server, package, about).await {
        Ok(report) => {
            for line in preview::brief(&report) {
                out::note(line);
            }
            if let Some(problem) = report.problems.first() {
                let others = match report.problems.len() {
                    1 => String::new(),
                    count => format!(", and {} other problems", count - 1),
                };
                out::note(format!("warning: the preview is incomplete: {problem}{others}"));
            }
        }
        Err(failure) => out::note(format!("warning: there is no preview: {}", failure.message)),
    }
}
