//! A repository of a registry: the operations of the OCI distribution API.

use bytes::Bytes;
use http::header::{ACCEPT, CONTENT_RANGE, CONTENT_TYPE, HeaderName, HeaderValue, LINK, LOCATION, RANGE};
use http::{Method, StatusCode, Uri};
use sha2::{Digest as _, Sha256};

use crate::client::{Call, Client, Failed, Options, Reply, Retry};
use crate::digest::Digest;
use crate::error::Error;
use crate::manifest::{
    BLOB_BYTES, Descriptor, ENTRIES, INDEX, Index, MANIFEST_BYTES, Stored, accepted, json,
};
use crate::reference::{Reference, is_tag};

/// The header by which a registry says that it keeps referrers itself.
const OCI_SUBJECT: HeaderName = HeaderName::from_static("oci-subject");
const CONTENT_DIGEST: HeaderName = HeaderName::from_static("docker-content-digest");
/// Blobs up to this size are uploaded with one request, larger ones in parts of this size.
const PART_BYTES: usize = 8 << 20;
/// The maximum number of tags, and of pages of a list.
const TAGS: usize = 100_000;
const PAGES: usize = 1_000;
/// How often a list of referrers is written, if others write it at the same time.
const REWRITES: usize = 3;

/// A repository.
#[derive(Debug)]
pub struct Repository {
    client: Client,
}

impl Repository {
    /// The repository of a reference. Nothing is sent yet.
    ///
    /// # Errors
    /// The certificates cannot be used.
    pub fn new(reference: &Reference, options: Options) -> Result<Self, Error> {
        Ok(Self { client: Client::new(reference, options)? })
    }

    /// Another repository of the same registry.
    pub(crate) fn beside(&self, repository: &str) -> Self {
        Self { client: self.client.beside(repository) }
    }

    /// Whether two are of the same registry.
    pub(crate) fn is_beside(&self, other: &Self) -> bool {
        self.client.registry() == other.client.registry()
    }

    fn name(&self) -> String {
        format!("{}/{}", self.client.registry(), self.client.repository())
    }

    fn url(&self, rest: &str) -> Result<Uri, Error> {
        self.client.url(&format!("{}/{rest}", self.client.repository()))
    }

    /// The manifest of a tag or digest.
    ///
    /// # Errors
    /// There is none, or it does not have the digest.
    pub async fn manifest(&self, reference: &str) -> Result<Stored, Error> {
        let what = format!("the manifest {reference} of {}", self.name());
        let accept = HeaderValue::from_str(&accepted()).unwrap_or(HeaderValue::from_static("*/*"));
        let call = Call {
            url: self.url(&format!("manifests/{reference}"))?,
            headers: vec![(ACCEPT, accept)],
            limit: MANIFEST_BYTES,
            ..self.client.call(Method::GET, &what)
        };
        let reply = self.client.send(call).await?;
        self.client.expect(&reply, &what, &[StatusCode::OK])?;
        let found = Digest::of(&reply.body);
        let claimed = header(&reply, &CONTENT_DIGEST).and_then(|text| text.parse().ok());
        let wanted = reference.parse().ok().or(claimed);
        if let Some(wanted) = wanted.filter(|wanted| *wanted != found) {
            return Err(Error::WrongDigest { what, wanted, found });
        }
        Stored::parse(&what, header(&reply, &CONTENT_TYPE), reply.body.clone())
    }

    /// Writes a manifest, with a tag or only by its digest. A manifest with a subject becomes a referrer of it, if need be
    /// by the tag that lists referrers.
    ///
    /// # Errors
    /// The registry refuses it.
    pub async fn put_manifest(&self, manifest: &Stored, tag: Option<&str>) -> Result<(), Error> {
        let reply = self.put(&manifest.descriptor.media_type, &manifest.bytes, tag).await?;
        let claimed: Option<Digest> = header(&reply, &CONTENT_DIGEST).and_then(|text| text.parse().ok());
        let wanted = &manifest.descriptor.digest;
        if let Some(found) = claimed.filter(|found| found != wanted) {
            let what = format!("the manifest that was pushed to {}", self.name());
            return Err(Error::WrongDigest { what, wanted: wanted.clone(), found });
        }
        let subject = manifest.manifest().and_then(|manifest| manifest.subject.as_ref());
        match subject {
            Some(subject) if !reply.headers.contains_key(OCI_SUBJECT) => {
                self.add_referrer(&subject.digest, &manifest.descriptor).await
            }
            _ => Ok(()),
        }
    }

    async fn put(&self, media_type: &str, bytes: &Bytes, tag: Option<&str>) -> Result<Reply, Error> {
        let reference = tag.map_or_else(|| Digest::of(bytes).to_string(), str::to_owned);
        let what = format!("the upload of the manifest {reference} to {}", self.name());
        let kind = HeaderValue::from_str(media_type).map_err(|_| Error::invalid(&*what, "its media type"))?;
        let call = Call {
            url: self.url(&format!("manifests/{reference}"))?,
            headers: vec![(CONTENT_TYPE, kind)],
            body: bytes.clone(),
            actions: "pull,push",
            ..self.client.call(Method::PUT, &what)
        };
        let reply = self.client.send(call).await?;
        self.client.expect(&reply, &what, &[StatusCode::CREATED, StatusCode::OK, StatusCode::ACCEPTED])?;
        Ok(reply)
    }

    /// Reads a blob, by size and digest. A connection that breaks is continued.
    ///
    /// # Errors
    /// It is missing, is larger than its size, or does not have its digest.
    pub async fn blob(&self, blob: &Descriptor) -> Result<Bytes, Error> {
        let what = format!("the blob {} of {}", blob.digest, self.name());
        if blob.size > BLOB_BYTES {
            return Err(Error::TooLarge { what, limit: BLOB_BYTES });
        }
        let bytes = self.client.within(&what, self.read_blob(blob, &what)).await?;
        let mut hasher = Sha256::new();
        hasher.update(&bytes);
        let found = Digest::finish(hasher);
        if found != blob.digest {
            return Err(Error::WrongDigest { what, wanted: blob.digest.clone(), found });
        }
        Ok(bytes.into())
    }

    async fn read_blob(&self, blob: &Descriptor, what: &str) -> Result<Vec<u8>, Error> {
        let mut bytes = Vec::new();
        let mut attempt = 0;
        loop {
            let start = bytes.len();
            let mut call = Call {
                url: self.url(&format!("blobs/{}", blob.digest))?,
                limit: blob.size,
                ..self.client.call(Method::GET, what)
            };
            if start > 0 {
                let range = HeaderValue::from_str(&format!("bytes={start}-"));
                call.headers.extend(range.ok().map(|range| (RANGE, range)));
            }
            let read = self.client.once(&call, &mut bytes, |head, bytes| {
                // Without the part that was asked for, it is the whole blob again.
                let part = head.headers.get(CONTENT_RANGE).and_then(|value| value.to_str().ok());
                let is_part = part.is_some_and(|part| part.starts_with(&format!("bytes {start}-")));
                if head.status != StatusCode::PARTIAL_CONTENT || !is_part {
                    bytes.clear();
                }
                blob.size
            });
            let failed = match read.await {
                Ok(head) if !head.status.is_success() => {
                    let reply = Reply { status: head.status, headers: head.headers, body: Bytes::new() };
                    self.client.expect(&reply, what, &[])?;
                    return Ok(bytes);
                }
                // The connection may break after the last byte.
                Ok(_) | Err(_) if bytes.len() as u64 == blob.size => return Ok(bytes),
                Ok(_) => Failed {
                    error: Error::invalid(
                        what,
                        format!("it ends after {} of {} bytes", bytes.len(), blob.size),
                    ),
                    retry: Retry::Usual,
                },
                Err(failed) => failed,
            };
            self.client.wait(failed, &mut attempt).await?;
        }
    }

    /// Whether the repository has a blob.
    ///
    /// # Errors
    /// The registry does not say.
    pub async fn has_blob(&self, blob: &Descriptor) -> Result<bool, Error> {
        let what = format!("the blob {} of {}", blob.digest, self.name());
        let call = Call {
            url: self.url(&format!("blobs/{}", blob.digest))?,
            actions: "pull,push",
            ..self.client.call(Method::HEAD, &what)
        };
        let reply = self.client.send(call).await?;
        if reply.status == StatusCode::NOT_FOUND {
            return Ok(false);
        }
        self.client.expect(&reply, &what, &[StatusCode::OK]).map(|()| true)
    }

    /// Takes a blob over from another repository of the same registry. False: the registry does not do that.
    ///
    /// # Errors
    /// The registry cannot be reached.
    pub(crate) async fn mount(&self, blob: &Descriptor, from: &Self) -> Result<bool, Error> {
        let what = format!("the blob {} for {}", blob.digest, self.name());
        let query = format!("blobs/uploads/?mount={}&from={}", blob.digest, from.client.repository());
        let call =
            Call { url: self.url(&query)?, actions: "pull,push", ..self.client.call(Method::POST, &what) };
        let reply = match self.client.send(call).await {
            // Access to the other repository may be refused with this token.
            Err(Error::Unauthorized { .. }) => return Ok(false),
            reply => reply?,
        };
        if reply.status == StatusCode::ACCEPTED {
            self.cancel_upload(&reply).await;
        }
        Ok(reply.status == StatusCode::CREATED)
    }

    /// Ends an upload that is not used, as far as possible.
    async fn cancel_upload(&self, reply: &Reply) {
        if let Ok(url) = self.location(reply, "an upload") {
            let call = Call {
                url,
                actions: "pull,push",
                ..self.client.call(Method::DELETE, "the end of an upload")
            };
            drop(self.client.send(call).await);
        }
    }

    /// Uploads a blob.
    ///
    /// # Errors
    /// The registry refuses it.
    pub async fn put_blob(&self, blob: &Descriptor, bytes: &Bytes) -> Result<(), Error> {
        let what = format!("the upload of {} to {}", blob.digest, self.name());
        let upload = async {
            let mut attempt = 0;
            loop {
                match self.upload(blob, bytes, &what).await {
                    Ok(()) => return Ok(()),
                    Err(failed) => self.client.wait(failed, &mut attempt).await?,
                }
            }
        };
        self.client.within(&what, upload).await
    }

    async fn upload(&self, blob: &Descriptor, bytes: &Bytes, what: &str) -> Result<(), Failed> {
        let start = Call {
            url: self.url("blobs/uploads/")?,
            actions: "pull,push",
            ..self.client.call(Method::POST, what)
        };
        let reply = self.client.send(start).await?;
        self.client.expect(&reply, what, &[StatusCode::ACCEPTED])?;
        let mut url = self.location(&reply, what)?;
        let mut rest = bytes.clone();
        if bytes.len() > PART_BYTES {
            url = self.upload_parts(url, bytes, what).await?;
            rest = Bytes::new();
        }
        let separator = if url.query().is_some() { '&' } else { '?' };
        let url = format!("{url}{separator}digest={}", blob.digest);
        let call = Call {
            url: url
                .parse()
                .map_err(|_| self.client.refused(what, "the location of the upload is no URL"))?,
            headers: vec![(CONTENT_TYPE, HeaderValue::from_static("application/octet-stream"))],
            body: rest,
            actions: "pull,push",
            ..self.client.call(Method::PUT, what)
        };
        // Not repeated as such: the location of an upload is good for one end of it.
        let mut body = Vec::new();
        let head = self.client.once(&call, &mut body, |_, _| call.limit).await?;
        let reply = Reply { status: head.status, headers: head.headers, body: body.into() };
        Ok(self.client.expect(
            &reply,
            what,
            &[StatusCode::CREATED, StatusCode::OK, StatusCode::NO_CONTENT],
        )?)
    }

    /// Uploads all parts; the location for the end.
    async fn upload_parts(&self, mut url: Uri, bytes: &Bytes, what: &str) -> Result<Uri, Failed> {
        let mut sent = 0;
        let mut attempt = 0;
        while sent < bytes.len() {
            let end = (sent + PART_BYTES).min(bytes.len());
            let range = HeaderValue::from_str(&format!("{sent}-{}", end - 1));
            let call = Call {
                url: url.clone(),
                headers: vec![
                    (CONTENT_TYPE, HeaderValue::from_static("application/octet-stream")),
                    (CONTENT_RANGE, range.unwrap_or(HeaderValue::from_static("0-0"))),
                ],
                body: bytes.slice(sent..end),
                actions: "pull,push",
                ..self.client.call(Method::PATCH, what)
            };
            let mut body = Vec::new();
            let (reply, goes_on) = match self.client.once(&call, &mut body, |_, _| call.limit).await {
                Ok(head) => {
                    let reply = Reply { status: head.status, headers: head.headers, body: body.into() };
                    let is_behind = reply.status == StatusCode::RANGE_NOT_SATISFIABLE;
                    if !is_behind {
                        self.client.expect(&reply, what, &[StatusCode::ACCEPTED])?;
                    }
                    (reply, !is_behind)
                }
                Err(failed) => {
                    self.client.wait(failed, &mut attempt).await?;
                    let status = Call {
                        url: url.clone(),
                        actions: "pull,push",
                        ..self.client.call(Method::GET, what)
                    };
                    let reply = self.client.send(status).await?;
                    self.client.expect(&reply, what, &[StatusCode::NO_CONTENT, StatusCode::OK])?;
                    (reply, false)
                }
            };
            if !goes_on {
                attempt += 1;
                if attempt > crate::client::ATTEMPTS {
                    return Err(self.client.refused(what, "the upload makes no progress").into());
                }
            }
            if reply.headers.contains_key(LOCATION) {
                url = self.location(&reply, what)?;
            }
            // The registry says how much it has: `0-N`. Nothing, or more than was sent, is not believed.
            let has =
                header(&reply, &RANGE).and_then(|range| range.rsplit_once('-')?.1.parse::<usize>().ok());
            sent = match has {
                Some(last) if last < end => last + 1,
                Some(_) => return Err(self.client.refused(what, "it has more than was sent").into()),
                None if goes_on => end,
                None => 0,
            };
        }
        Ok(url)
    }

    fn location(&self, reply: &Reply, what: &str) -> Result<Uri, Error> {
        let location = header(reply, &LOCATION).unwrap_or_default();
        self.client.locate(&self.url("")?, location, what)
    }

    /// All tags, sorted.
    ///
    /// # Errors
    /// There is no such repository, or the list does not end.
    pub async fn tags(&self) -> Result<Vec<String>, Error> {
        #[derive(serde::Deserialize)]
        struct Page {
            tags: Option<Vec<String>>,
        }
        let what = format!("the tags of {}", self.name());
        let mut all = Vec::new();
        let mut next = Some(self.url("tags/list?n=1000")?);
        for _ in 0..PAGES {
            let Some(url) = next else { break };
            let reply = self.page(url.clone(), &what).await?;
            let page: Page = json(&what, &reply.body)?;
            let tags = page.tags.unwrap_or_default();
            next = self.next(&url, &reply, &what)?.filter(|_| !tags.is_empty());
            all.extend(tags.into_iter().filter(|tag| is_tag(tag)));
            if all.len() > TAGS {
                return Err(Error::TooLarge { what, limit: TAGS as u64 });
            }
        }
        all.sort_unstable();
        all.dedup();
        Ok(all)
    }

    /// What refers to a manifest.
    ///
    /// # Errors
    /// The registry does not say.
    pub async fn referrers(&self, subject: &Digest) -> Result<Vec<Descriptor>, Error> {
        let what = format!("the referrers of {subject} in {}", self.name());
        let mut found: Vec<Descriptor> = Vec::new();
        let mut next = Some(self.url(&format!("referrers/{subject}"))?);
        for _ in 0..PAGES {
            let Some(url) = next else { return Ok(found) };
            let call =
                Call { url: url.clone(), limit: MANIFEST_BYTES, ..self.client.call(Method::GET, &what) };
            let reply = self.client.send(call).await?;
            // Registries without the API answer so or with a page for people.
            let Ok(page) = Index::parse(&what, &reply.body) else {
                return Ok(self.listed(subject).await?.manifests);
            };
            if reply.status != StatusCode::OK {
                return Ok(self.listed(subject).await?.manifests);
            }
            found.extend(page.manifests);
            if found.len() > ENTRIES {
                return Err(Error::TooLarge { what, limit: ENTRIES as u64 });
            }
            next = self.next(&url, &reply, &what)?;
        }
        Ok(found)
    }

    /// The referrers that the tag for them lists.
    async fn listed(&self, subject: &Digest) -> Result<Index, Error> {
        match self.manifest(&referrers_tag(subject)).await {
            Ok(stored) => match stored.content {
                crate::manifest::Content::Index(index) => Ok(index),
                crate::manifest::Content::Manifest(_) => Ok(Index::default()),
            },
            Err(error) if error.is_not_found() => Ok(Index::default()),
            Err(error) => Err(error),
        }
    }

    /// Adds a referrer to the list of a registry that keeps none itself. The list is read again, because registries
    /// cannot compare and swap.
    async fn add_referrer(&self, subject: &Digest, referrer: &Descriptor) -> Result<(), Error> {
        let tag = referrers_tag(subject);
        for _ in 0..REWRITES {
            let mut index = self.listed(subject).await?;
            if index.manifests.iter().any(|listed| listed.digest == referrer.digest) {
                return Ok(());
            }
            index.manifests.push(referrer.clone());
            let bytes =
                serde_json::to_vec(&index).map_err(|error| Error::invalid("the list", error.to_string()))?;
            self.put(INDEX, &bytes.into(), Some(&tag)).await?;
        }
        let index = self.listed(subject).await?;
        if index.manifests.iter().any(|listed| listed.digest == referrer.digest) {
            return Ok(());
        }
        Err(self
            .client
            .refused(&format!("the list {tag}"), "others overwrite it at the same time: try again"))
    }

    /// A page of the repositories of the registry: their names, and the next page.
    pub(crate) async fn repositories(
        &self,
        page: Option<Uri>,
        what: &str,
    ) -> Result<(Vec<String>, Option<Uri>), Error> {
        #[derive(serde::Deserialize)]
        struct Page {
            repositories: Option<Vec<String>>,
        }
        let url = page.map_or_else(|| self.client.url("_catalog?n=1000"), Ok)?;
        let reply = self.page(url.clone(), what).await?;
        let page: Page = json(what, &reply.body)?;
        Ok((page.repositories.unwrap_or_default(), self.next(&url, &reply, what)?))
    }

    async fn page(&self, url: Uri, what: &str) -> Result<Reply, Error> {
        let call = Call { url, limit: MANIFEST_BYTES, ..self.client.call(Method::GET, what) };
        let reply = self.client.send(call).await?;
        self.client.expect(&reply, what, &[StatusCode::OK])?;
        Ok(reply)
    }

    /// The next page of a list, which must be of the same registry.
    fn next(&self, url: &Uri, reply: &Reply, what: &str) -> Result<Option<Uri>, Error> {
        let Some(link) = header(reply, &LINK) else { return Ok(None) };
        let target = link.split_once('<').and_then(|(_, rest)| rest.split_once('>'));
        let Some((target, _)) = target.filter(|(_, rest)| rest.contains("next")) else { return Ok(None) };
        let next = self.client.locate(url, target, what)?;
        if !crate::challenge::is_same_origin(&next, url) {
            return Err(self.client.refused(what, "the next page is of another server"));
        }
        Ok((next != *url).then_some(next))
    }
}

/// The tag that lists the referrers of a manifest where the registry does not.
pub(crate) fn referrers_tag(subject: &Digest) -> String {
    format!("sha256-{}", subject.hex())
}

fn header<'r>(reply: &'r Reply, name: &HeaderName) -> Option<&'r str> {
    reply.headers.get(name).and_then(|value| value.to_str().ok())
}
