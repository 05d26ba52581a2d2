//! Reads the audit log of a control plane, which contains all answered requests.

use std::fs::File;
use std::io::{self, Read, Seek, SeekFrom};
use std::path::{Path, PathBuf};

use serde::Deserialize;

/// The audit policy: every request, without bodies and without the stage `RequestReceived`.
pub(super) const POLICY: &str = "apiVersion: audit.k8s.io/v1
kind: Policy
omitStages: [RequestReceived]
rules:
- level: Metadata
";

/// A position in an [`AuditLog`].
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Default)]
pub struct Mark(u64);

impl Mark {
    /// The start of the log.
    pub const START: Self = Self(0);
}

/// A reader of the log of kube-apiserver.
///
/// The server writes the entry of a request right after its answer. So the entry may be missing for a moment
/// after a test has seen the answer, and must be polled for.
#[derive(Debug, Clone)]
pub struct AuditLog {
    path: PathBuf,
}

/// One entry: a stage of a request.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct AuditEvent {
    /// The verb: `get`, `list`, `watch`, `create`, `update`, `patch`, `delete`, `deletecollection`.
    pub verb: String,
    /// The user's name, such as `admin`.
    pub user: String,
    /// The impersonated user; empty without impersonation.
    pub acting_as: String,
    /// The user agent of the client.
    pub user_agent: String,
    /// The API group; empty for the core group and for requests without a resource.
    pub group: String,
    /// The plural name of the resource, such as `pods`; empty for a path such as `/readyz`.
    pub resource: String,
    /// The subresource, such as `status`; empty without one.
    pub subresource: String,
    /// The namespace; empty for cluster-wide requests.
    pub namespace: String,
    /// The name of the object; empty for requests of collections and for creations with `generateName`.
    pub name: String,
    /// The path and query.
    pub uri: String,
    /// The HTTP status; 0 if it is unknown.
    pub code: u16,
    /// The stage: `ResponseStarted` (watches, logs and the like, and failed authentication),
    /// `ResponseComplete` or `Panic`.
    pub stage: String,
    /// The time at which the stage was reached, RFC 3339 with microseconds.
    pub time: String,
    /// The time at which the server had read the head of the request, in the same form.
    pub received: String,
    /// The audit id, which is the same for all stages of a request.
    pub id: String,
}

impl AuditEvent {
    /// Whether the request is counted by this entry: a watch is counted at its start, every other request
    /// after its answer.
    pub fn counts(&self) -> bool {
        // Long-running requests are logged at their start, refused or not, and again at their end.
        let long_running = self.verb == "watch"
            || matches!(self.subresource.as_str(), "attach" | "exec" | "log" | "portforward" | "proxy");
        self.stage == "ResponseStarted" || !long_running
    }

    /// Whether it is a watch with a streaming list.
    pub fn streams_list(&self) -> bool {
        self.verb == "watch" && self.uri.contains("sendInitialEvents=true")
    }

    /// Whether the request could change something. A dry run cannot.
    pub fn writes(&self) -> bool {
        !matches!(self.verb.as_str(), "get" | "list" | "watch" | "head" | "options")
            && !self.uri.contains("dryRun=All")
    }
}

impl AuditLog {
    /// A reader of the log at a path, which contains one JSON object per line.
    pub fn new(path: PathBuf) -> Self {
        Self { path }
    }

    /// The path of the log, which contains one JSON object per line.
    pub fn path(&self) -> &Path {
        &self.path
    }

    /// The present end of the log: the end of its last complete entry.
    pub fn mark(&self) -> io::Result<Mark> {
        let mut file = File::open(&self.path)?;
        let mut end = file.metadata()?.len();
        let mut chunk = [0; 4096];
        // The server may be writing an entry, so the last newline is searched backwards.
        while end > 0 {
            let start = end.saturating_sub(chunk.len() as u64);
            let chunk = &mut chunk[..usize::try_from(end - start).unwrap_or_default()];
            file.seek(SeekFrom::Start(start))?;
            file.read_exact(chunk)?;
            if let Some(newline) = chunk.iter().rposition(|byte| *byte == b'\n') {
                return Ok(Mark(start + newline as u64 + 1));
            }
            end = start;
        }
        Ok(Mark::START)
    }

    /// All entries since `mark`, oldest first. An incomplete entry is left for the next call.
    pub fn events_since(&self, mark: Mark) -> io::Result<Vec<AuditEvent>> {
        let mut file = File::open(&self.path)?;
        file.seek(SeekFrom::Start(mark.0))?;
        let mut bytes = Vec::new();
        file.read_to_end(&mut bytes)?;
        parse(&bytes)
    }

    /// One entry for each request since `mark`, see [`AuditEvent::counts`].
    pub fn requests_since(&self, mark: Mark) -> io::Result<Vec<AuditEvent>> {
        let mut events = self.events_since(mark)?;
        events.retain(AuditEvent::counts);
        Ok(events)
    }
}

/// Parses the complete lines of a piece of the log.
fn parse(bytes: &[u8]) -> io::Result<Vec<AuditEvent>> {
    let complete = bytes.iter().rposition(|byte| *byte == b'\n').map_or(0, |end| end + 1);
    bytes[..complete]
        .split(|byte| *byte == b'\n')
        .filter(|line| !line.is_empty())
        .map(|line| Ok(serde_json::from_slice::<Raw>(line)?.into()))
        .collect()
}

/// The fields of `audit.k8s.io/v1` `Event` that are used.
#[derive(Deserialize)]
#[serde(rename_all = "camelCase")]
struct Raw {
    #[serde(rename = "auditID")]
    audit_id: String,
    stage: String,
    #[serde(rename = "requestURI")]
    request_uri: String,
    verb: String,
    user: RawUser,
    #[serde(default)]
    impersonated_user: RawUser,
    #[serde(default)]
    user_agent: String,
    #[serde(default)]
    object_ref: RawObject,
    #[serde(default)]
    response_status: RawStatus,
    stage_timestamp: String,
    request_received_timestamp: String,
}

#[derive(Deserialize, Default)]
struct RawUser {
    #[serde(default)]
    username: String,
}

#[derive(Deserialize, Default)]
#[serde(rename_all = "camelCase", default)]
struct RawObject {
    api_group: String,
    resource: String,
    subresource: String,
    namespace: String,
    name: String,
}

#[derive(Deserialize, Default)]
#[serde(default)]
struct RawStatus {
    code: u16,
}

impl From<Raw> for AuditEvent {
    fn from(raw: Raw) -> Self {
        Self {
            verb: raw.verb,
            user: raw.user.username,
            acting_as: raw.impersonated_user.username,
            user_agent: raw.user_agent,
            group: raw.object_ref.api_group,
            resource: raw.object_ref.resource,
            subresource: raw.object_ref.subresource,
            namespace: raw.object_ref.namespace,
            name: raw.object_ref.name,
            uri: raw.request_uri,
            code: raw.response_status.code,
            stage: raw.stage,
            time: raw.stage_timestamp,
            received: raw.request_received_timestamp,
            id: raw.audit_id,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn line(stage: &str, verb: &str, code: u16) -> String {
        format!(
            r#"{{"kind":"Event","auditID":"i","stage":"{stage}","requestURI":"/api/v1/pods?x=1","verb":"{verb}","user":{{"username":"admin","groups":["system:masters"]}},"userAgent":"t/1","objectRef":{{"resource":"pods","namespace":"n","apiVersion":"v1"}},"responseStatus":{{"metadata":{{}},"code":{code}}},"stageTimestamp":"2026-01-01T00:00:00.000000Z","requestReceivedTimestamp":"2026-01-01T00:00:00.000000Z"}}"#
        ) + "\n"
    }

    #[test]
    fn each_request_counts_once() {
        let cases = [
            ("ResponseComplete", "get", 200, true),
            ("ResponseComplete", "patch", 409, true),
            ("ResponseStarted", "watch", 200, true),
            ("ResponseComplete", "watch", 200, false),
            ("ResponseStarted", "watch", 403, true),
            ("ResponseStarted", "get", 401, true),
            ("Panic", "create", 500, true),
        ];
        for (stage, verb, code, counts) in cases {
            let events = parse(line(stage, verb, code).as_bytes()).unwrap();
            assert_eq!(events[0].counts(), counts, "{stage} {verb} {code}");
            assert_eq!((events[0].code, events[0].namespace.as_str()), (code, "n"));
        }
    }

    #[test]
    fn half_written_entries_are_left_for_the_next_read() {
        let dir = tempfile::tempdir().unwrap();
        let log = AuditLog::new(dir.path().join("audit.log"));
        let whole = line("ResponseComplete", "list", 200);
        std::fs::write(log.path(), &whole).unwrap();
        let mark = log.mark().unwrap();
        assert_eq!(log.requests_since(mark).unwrap(), []);
        std::fs::write(log.path(), format!("{whole}{whole}{}", &whole[..30])).unwrap();
        assert_eq!(log.requests_since(mark).unwrap().len(), 1);
        assert_eq!(log.mark().unwrap().0, 2 * whole.len() as u64, "not within an entry");
        assert_eq!(log.requests_since(Mark::START).unwrap().len(), 2);
    }

    #[test]
    fn request_without_a_resource_is_parsed() {
        let text = r#"{"auditID":"i","stage":"ResponseComplete","requestURI":"/readyz","verb":"get","user":{},"requestReceivedTimestamp":"r","stageTimestamp":"t"}"#;
        let events = parse(format!("{text}\n").as_bytes()).unwrap();
        assert_eq!((events[0].resource.as_str(), events[0].code, events[0].writes()), ("", 0, false));
    }

    #[test]
    fn streaming_list_is_recognised() {
        let text = line("ResponseStarted", "watch", 200);
        let list = text.replace("x=1", "watch=true&sendInitialEvents=true&resourceVersion=");
        let told: Vec<bool> =
            [text, list].iter().map(|text| parse(text.as_bytes()).unwrap()[0].streams_list()).collect();
        assert_eq!(told, [false, true]);
    }
}
