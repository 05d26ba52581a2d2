//! Compiles observations.

use std::time::Duration;

use super::compiler::{Compiler, Names};
use super::manifest;
use super::model::{Call, Observation};
use crate::template::Segment;

/// The default interval of an observation.
const EVERY: Duration = Duration::from_secs(30);
/// The shortest allowed interval.
const SHORTEST: Duration = Duration::from_secs(5);
/// The maximum number of bytes that are kept of an answer.
pub const MAX_ANSWER: usize = 64 << 10;

impl Compiler<'_> {
    /// Reports keys that only an observation may have in a ref to objects.
    pub(super) fn of_objects(&mut self, manifest: &manifest::Ref) {
        let every = manifest.every.as_ref().map(|every| every.error("package::value", NOT_OBSERVED));
        let expect = manifest.expect.as_ref().map(|expect| expect.error("package::value", NOT_OBSERVED));
        let only = manifest.only_in_runs.as_ref().map(|only| only.error("package::value", NOT_OBSERVED));
        let help = "remove it: objects are watched";
        self.diagnostics.extend(every.into_iter().chain(expect).chain(only).map(|error| error.help(help)));
    }

    /// Compiles an observation.
    pub(super) fn observation(&mut self, manifest: &manifest::Ref, names: &Names<'_>) -> Option<Observation> {
        let id = &manifest.id;
        let call = match (&manifest.exec, &manifest.http) {
            (Some(_), Some(_)) => {
                let error = id.error("package::value", "an observation has `exec` or `http`, not both");
                self.diagnostics.push(error.help("remove one of them"));
                return None;
            }
            (Some(exec), None) => self.exec(exec.0.as_ref()?, names).map(Call::Exec),
            (None, http) => {
                self.http(http.as_ref()?.0.as_ref()?, names).map(|http| Call::Http(Box::new(http)))
            }
        };
        let of_objects = [
            ("apiVersion", manifest.api_version.is_some()),
            ("kind", manifest.kind.is_some()),
            ("name", manifest.name.is_some()),
            ("selector", manifest.selector.is_some()),
            ("namespace", manifest.namespace.is_some()),
            ("namespaces", manifest.namespaces.is_some()),
            ("optional", manifest.optional.is_some()),
        ];
        for (field, _) in of_objects.iter().filter(|(_, is_given)| *is_given) {
            let message = format!("an observation has no `{field}`");
            self.diagnostics.push(id.error("package::value", message).help("remove it"));
        }
        let every = manifest.every.as_ref().map_or(EVERY, |every| every.value.0);
        if let Some(at) = manifest.every.as_ref().filter(|_| every < SHORTEST) {
            let message = "an observation is made every 5s at most";
            self.diagnostics.push(at.error("package::value", message).help("write every: 5s, or more"));
        }
        let is_exec = manifest.exec.is_some();
        let expect = match &manifest.expect {
            None => None,
            Some(at) => {
                if let (true, super::plan::manifest::Expect::Statuses(_)) = (is_exec, &at.value) {
                    let error = at.error("package::type", "a command has no status");
                    self.diagnostics.push(error.help("write an expression: expect: exitCode == 0"));
                    return None;
                }
                match self.expected(&at.value) {
                    None => return None,
                    expect => expect,
                }
            }
        };
        let only_in_runs = manifest.only_in_runs.as_ref().is_some_and(|only| only.value);
        let mut observation =
            Observation { call: call?, every, only_in_runs, expect, expect_reads: Vec::new() };
        let fields = observation.fields();
        let reads = observation.expect_site().map(|reads| &reads.paths).into_iter().flatten();
        observation.expect_reads = reads
            .filter(|path| fields.contains(&path.root.as_str()))
            .map(|path| [vec![path.root.clone()], plain_prefix(&path.segments)].concat())
            .collect();
        Some(observation)
    }
}

const NOT_OBSERVED: &str = "only an observation (`exec` or `http`) has this";

/// The path up to its first computed key. Everything below is kept.
pub(super) fn plain_prefix(path: &[Segment]) -> Vec<String> {
    path.iter()
        .map_while(|segment| match segment {
            Segment::Key(key) => Some(key.clone()),
            Segment::Index(_) | Segment::Any => None,
        })
        .collect()
}

#[cfg(test)]
mod tests;
