//! A registry that serves the images of a node. It implements the part of the OCI distribution API that is
//! needed to pull images.

use std::collections::BTreeMap;
use std::convert::Infallible;
use std::io;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use bytes::Bytes;
use http::header::{CONTENT_LENGTH, CONTENT_TYPE};
use http::{Method, Request, Response, StatusCode};
use http_body_util::Full;
use hyper_util::rt::TokioIo;
use tokio::net::TcpListener;

use super::images::{BLOBS, MANIFEST, NAMES};

/// Serves the images of a folder at an address, until the process is killed.
pub(crate) fn main(folder: &Path, address: &str) -> io::Result<()> {
    let images = Arc::new(Images {
        names: serde_json::from_slice(&std::fs::read(folder.join(NAMES))?)?,
        blobs: folder.join(BLOBS),
    });
    tokio::runtime::Builder::new_current_thread().enable_io().build()?.block_on(async {
        let listener = TcpListener::bind(address).await?;
        loop {
            let (stream, _) = listener.accept().await?;
            let images = Arc::clone(&images);
            let answer = hyper::service::service_fn(move |request: Request<hyper::body::Incoming>| {
                let found = images.find(request.uri().path(), request.uri().query().unwrap_or_default());
                let is_head = request.method() == Method::HEAD;
                async move { Ok::<_, Infallible>(respond(found.as_ref(), is_head)) }
            });
            let connection = hyper::server::conn::http1::Builder::new();
            drop(tokio::spawn(connection.serve_connection(TokioIo::new(stream), answer)));
        }
    })
}

/// The images of a folder.
struct Images {
    /// The names of the images, each with the digest of its manifest.
    names: BTreeMap<String, String>,
    blobs: PathBuf,
}

/// The resource at a path.
#[derive(Debug, PartialEq)]
enum Found {
    /// The root of the API.
    Api,
    /// A manifest: its digest and its file.
    Manifest(String, PathBuf),
    /// A configuration or a layer: its file.
    Blob(PathBuf),
}

impl Images {
    /// Finds the resource at a path: `/v2/NAME/manifests/TAG|DIGEST` or `/v2/NAME/blobs/DIGEST`. containerd
    /// names the original registry of the image in the query.
    fn find(&self, path: &str, query: &str) -> Option<Found> {
        let path = path.strip_prefix("/v2/")?;
        if path.is_empty() {
            return Some(Found::Api);
        }
        let (rest, reference) = path.rsplit_once('/')?;
        let (name, kind) = rest.rsplit_once('/')?;
        let registry = query.split('&').find_map(|pair| pair.strip_prefix("ns=")).unwrap_or_default();
        let digest = match self.names.get(&format!("{registry}/{name}:{reference}")) {
            Some(digest) => digest,
            None => reference,
        };
        // Only a valid digest may become part of a file path.
        let is_digest = digest
            .strip_prefix("sha256:")
            .is_some_and(|hex| hex.len() == 64 && hex.bytes().all(|byte| byte.is_ascii_hexdigit()));
        let blob = self.blobs.join(is_digest.then_some(digest)?);
        match kind {
            "manifests" => Some(Found::Manifest(digest.to_owned(), blob)),
            "blobs" => Some(Found::Blob(blob)),
            _ => None,
        }
    }
}

fn respond(found: Option<&Found>, is_head: bool) -> Response<Full<Bytes>> {
    let missing = || {
        let mut response =
            Response::new(Full::new(Bytes::from_static(br#"{"errors":[{"code":"MANIFEST_UNKNOWN"}]}"#)));
        *response.status_mut() = StatusCode::NOT_FOUND;
        response
    };
    let (path, kind, digest) = match found {
        None => return missing(),
        Some(Found::Api) => return Response::new(Full::default()),
        Some(Found::Manifest(digest, path)) => (path, MANIFEST, Some(digest)),
        Some(Found::Blob(path)) => (path, "application/octet-stream", None),
    };
    let Ok(content) = std::fs::read(path) else { return missing() };
    let mut response = Response::builder().header(CONTENT_TYPE, kind).header(CONTENT_LENGTH, content.len());
    if let Some(digest) = digest {
        response = response.header("Docker-Content-Digest", digest);
    }
    let body = if is_head { Full::default() } else { Full::new(Bytes::from(content)) };
    response.body(body).unwrap_or_else(|_| missing())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn tags_and_digests_are_found() {
        let digest = format!("sha256:{}", "a".repeat(64));
        let images = Images {
            names: BTreeMap::from([("quay.io/coreos/etcd:v3.6.8".to_owned(), digest.clone())]),
            blobs: "/blobs".into(),
        };
        let path = Path::new("/blobs").join(&digest);
        let manifest = Some(Found::Manifest(digest.clone(), path.clone()));
        assert_eq!(images.find("/v2/", ""), Some(Found::Api));
        assert_eq!(images.find("/v2/coreos/etcd/manifests/v3.6.8", "ns=quay.io"), manifest);
        assert_eq!(images.find(&format!("/v2/coreos/etcd/manifests/{digest}"), "ns=quay.io"), manifest);
        assert_eq!(images.find(&format!("/v2/coreos/etcd/blobs/{digest}"), ""), Some(Found::Blob(path)));
        for (path, query) in [
            ("/v2/coreos/etcd/manifests/v3.6.8", "ns=docker.io"),
            ("/v2/coreos/etcd/manifests/v9", "ns=quay.io"),
            ("/v2/coreos/etcd/blobs/..", ""),
            ("/v2/coreos/etcd/tags/list", "ns=quay.io"),
            ("/", ""),
        ] {
            assert_eq!(images.find(path, query), None, "{path}");
        }
    }
}
