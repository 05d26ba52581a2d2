//! What the repositories of a registry have, and how requests read and change it.

use std::collections::BTreeMap;

use operetta_registry::Digest;
use serde_json::{Value, json};

use super::Fault;
use super::http::{Reply, Request, error, reply};

/// What the repositories have.
#[derive(Clone, Default, PartialEq, Eq)]
pub(crate) struct Content {
    /// By repository and digest.
    blobs: BTreeMap<(String, String), Vec<u8>>,
    /// Media types and bytes, by repository and digest.
    pub(super) manifests: BTreeMap<(String, String), (String, Vec<u8>)>,
    /// Digests, by repository and tag.
    tags: BTreeMap<(String, String), String>,
}

impl Content {
    /// The digest that a tag names.
    pub(crate) fn tag(&self, repository: &str, tag: &str) -> Option<&str> {
        self.tags.get(&pair(repository, tag)).map(String::as_str)
    }

    /// The manifest that a tag names.
    pub(crate) fn tagged(&self, repository: &str, tag: &str) -> Value {
        let digest = self.tag(repository, tag).expect("a tag");
        serde_json::from_slice(&self.manifests[&pair(repository, digest)].1).expect("a manifest")
    }

    /// The media type and the bytes of the manifest of a tag or digest.
    pub(super) fn manifest(&self, repository: &str, reference: &str) -> Option<&(String, Vec<u8>)> {
        let digest = self.tag(repository, reference).unwrap_or(reference);
        self.manifests.get(&pair(repository, digest))
    }
}

/// What becomes of a request.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Fate {
    Answered,
    /// Its connection is closed, or stays open until the client ends.
    Unanswered {
        is_carried_out: bool,
        is_held: bool,
    },
}

#[derive(Default)]
pub(super) struct State {
    pub(super) content: Content,
    pub(super) seen: Vec<Request>,
    pub(super) fault: Option<Fault>,
    /// Whether a request is held.
    pub(super) is_held: bool,
    /// How many uploads were begun.
    begun: usize,
    /// Repositories of uploads, by their names.
    uploads: BTreeMap<String, String>,
    /// What tokens permit.
    pub(super) tokens: BTreeMap<String, Vec<String>>,
}

impl State {
    /// What becomes of the next request.
    pub(super) fn next(&mut self) -> Fate {
        let fate = match &mut self.fault {
            None => return Fate::Answered,
            Some(Fault::DiesAfter(0)) => return Fate::Unanswered { is_carried_out: false, is_held: false },
            Some(Fault::LosesAnswer(0)) => Fate::Unanswered { is_carried_out: true, is_held: false },
            Some(Fault::HoldsRequest(0)) => Fate::Unanswered { is_carried_out: false, is_held: true },
            Some(Fault::HoldsAnswer(0)) => Fate::Unanswered { is_carried_out: true, is_held: true },
            Some(
                Fault::DiesAfter(left)
                | Fault::LosesAnswer(left)
                | Fault::HoldsRequest(left)
                | Fault::HoldsAnswer(left),
            ) => {
                *left -= 1;
                return Fate::Answered;
            }
        };
        self.fault = None;
        fate
    }

    pub(super) fn blob(&self, repository: &str, digest: &str, request: &Request) -> Reply {
        let Some(blob) = self.content.blobs.get(&pair(repository, digest)) else {
            return error(404, "BLOB_UNKNOWN");
        };
        let start = request.header("range").and_then(|range| range.strip_prefix("bytes=")?.strip_suffix('-'));
        let start = start.and_then(|start| start.parse::<usize>().ok()).filter(|start| *start < blob.len());
        start.map_or_else(
            || reply(200, &[], blob.clone()),
            |start| {
                let part = format!("bytes {start}-{}/{}", blob.len() - 1, blob.len());
                reply(206, &[("content-range", &part)], &blob[start..])
            },
        )
    }

    pub(super) fn upload(&mut self, repository: &str, id: &str, request: &Request) -> Reply {
        let wanted = |name: &str| request.parameters(name).into_iter().next().unwrap_or_default();
        match &*request.method {
            "POST" if id.is_empty() => {
                let (digest, from) = (wanted("mount"), wanted("from"));
                if let Some(blob) = self.content.blobs.get(&(from, digest.clone())).cloned() {
                    self.content.blobs.insert((repository.to_owned(), digest), blob);
                    return reply(201, &[("location", "/v2/mounted")], "");
                }
                self.begun += 1;
                let id = format!("u{}", self.begun);
                let location = format!("/v2/{repository}/blobs/uploads/{id}?state=1");
                self.uploads.insert(id, repository.to_owned());
                reply(202, &[("location", &location)], "")
            }
            // An upload has one end.
            "PUT" if self.uploads.get(id).is_some_and(|of| of == repository) => {
                self.uploads.remove(id);
                let digest = Digest::of(&request.body).to_string();
                if wanted("digest") != digest
                    || wanted("state") != "1"
                    || request.header("content-type") != Some("application/octet-stream")
                {
                    return error(400, "DIGEST_INVALID");
                }
                self.content.blobs.insert(pair(repository, &digest), request.body.clone());
                reply(201, &[("docker-content-digest", &digest)], "")
            }
            "DELETE" => {
                self.uploads.remove(id);
                reply(204, &[], "")
            }
            _ => error(404, "BLOB_UPLOAD_UNKNOWN"),
        }
    }

    /// Stores a manifest of which everything is there.
    pub(super) fn put_manifest(
        &mut self,
        repository: &str,
        reference: &str,
        request: &Request,
        has_referrers: bool,
    ) -> Reply {
        let digest = Digest::of(&request.body).to_string();
        let kind = request.header("content-type").unwrap_or_default().to_owned();
        let manifest: Value = serde_json::from_slice(&request.body).unwrap_or_default();
        let is_digest = reference.starts_with("sha256:");
        if manifest["schemaVersion"] != 2
            || manifest["mediaType"] != kind
            || (is_digest && reference != digest)
        {
            return error(400, "MANIFEST_INVALID");
        }
        let list = |name: &str| manifest[name].as_array().cloned().unwrap_or_default();
        let is_index = manifest["manifests"].is_array();
        let needed = if is_index {
            list("manifests")
        } else {
            [vec![manifest["config"].clone()], list("layers")].concat()
        };
        for one in needed {
            let key = pair(repository, one["digest"].as_str().unwrap_or_default());
            let size = if is_index {
                self.content.manifests.get(&key).map(|(_, bytes)| bytes.len())
            } else {
                self.content.blobs.get(&key).map(Vec::len)
            };
            if size.is_none_or(|size| one["size"].as_u64() != Some(size as u64)) {
                return error(400, "MANIFEST_BLOB_UNKNOWN");
            }
        }
        self.content.manifests.insert(pair(repository, &digest), (kind, request.body.clone()));
        if !is_digest {
            self.content.tags.insert(pair(repository, reference), digest.clone());
        }
        let mut headers = vec![("docker-content-digest", &*digest)];
        let subject = manifest["subject"]["digest"].as_str().filter(|_| has_referrers);
        headers.extend(subject.map(|subject| ("oci-subject", subject)));
        reply(201, &headers, "")
    }

    pub(super) fn referrers(&self, repository: &str, subject: &str) -> Reply {
        let all = self.content.manifests.iter().filter(|((name, _), _)| name == repository);
        let found = all.filter_map(|((_, digest), (kind, bytes))| {
            let manifest: Value = serde_json::from_slice(bytes).ok()?;
            if manifest["subject"]["digest"] != subject {
                return None;
            }
            let artifact = [&manifest["artifactType"], &manifest["config"]["mediaType"]];
            let artifact = artifact.into_iter().find_map(Value::as_str);
            let mut one =
                json!({"mediaType": kind, "digest": digest, "size": bytes.len(), "artifactType": artifact});
            if manifest["annotations"].is_object() {
                one["annotations"] = manifest["annotations"].clone();
            }
            Some(one)
        });
        let found: Vec<Value> = found.collect();
        let kind = "application/vnd.oci.image.index.v1+json";
        let list = json!({"schemaVersion": 2, "mediaType": kind, "manifests": found});
        reply(200, &[("content-type", kind)], list.to_string())
    }

    pub(super) fn tags(&self, repository: &str) -> Reply {
        let tags = self.content.tags.keys().filter(|(name, _)| name == repository);
        let tags: Vec<&String> = tags.map(|(_, tag)| tag).collect();
        if tags.is_empty() {
            return error(404, "NAME_UNKNOWN");
        }
        reply(200, &[], json!({"name": repository, "tags": tags}).to_string())
    }
}

fn pair(repository: &str, reference: &str) -> (String, String) {
    (repository.to_owned(), reference.to_owned())
}
