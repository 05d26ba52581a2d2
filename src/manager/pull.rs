//! How the manager calls registries: the credentials and authorities of a Secret in its own namespace, deadlines, limits.

use std::time::Duration;

use base64::Engine as _;
use base64::engine::general_purpose::STANDARD;
use operetta_registry::{CredentialFiles, Error, Options, Place};
use serde_json::Value;

use crate::api::{ApiKind, Class};
use crate::cluster::Cluster;
use crate::operators::{Lost, SourceSpec};

/// The maximum size of the archive of a package. What is stored has at most 10 MB.
pub(super) const MOST_BYTES: u64 = 16 << 20;
/// How long one request may take, retries included.
const REQUEST: Duration = Duration::from_secs(60);
/// The reason if the Secret that an Operator names cannot be used.
const SECRET: &str = "PullSecretUnusable";

/// Without credentials.
pub(super) fn anonymous() -> Options {
    Options { timeout: REQUEST, credentials: CredentialFiles::default(), ..Options::default() }
}

/// With those of the Secret that the `Operator` names, or of the default one if it exists.
pub(super) async fn options(
    cluster: &Cluster,
    namespace: &str,
    source: &SourceSpec,
) -> Result<Options, Lost> {
    let name = source.secret();
    let unusable = |why: String, is_temporary: bool| Lost {
        reason: SECRET,
        message: format!("the Secret {namespace}/{name} {why}"),
        is_temporary,
    };
    let read = cluster.get(&ApiKind::built_in("v1", "Secret"), Some(namespace), name).await;
    match read {
        Ok(Some(secret)) => parse(&secret).map_err(|why| unusable(why.to_owned(), false)),
        Ok(None) if source.pull_secret.is_none() => Ok(anonymous()),
        Ok(None) => Err(unusable("does not exist".to_owned(), false)),
        Err(error) if error.class == Class::Permanent => {
            let why = format!(
                "cannot be read: {error}; a Role in {namespace} must let the manager get it, which has this right for {} only",
                crate::operators::PULL_SECRET
            );
            Err(unusable(why, false))
        }
        Err(error) => Err(unusable(format!("cannot be read: {error}"), true)),
    }
}

fn parse(secret: &Value) -> Result<Options, &'static str> {
    let entry =
        |name: &str| secret["data"][name].as_str().map(|text| STANDARD.decode(text).unwrap_or_default());
    let mut options = anonymous();
    if let Some(config) = entry(".dockerconfigjson") {
        options.credentials =
            CredentialFiles::given(&config).ok_or("has a .dockerconfigjson that is no JSON object")?;
    }
    options.ca = entry("ca.crt");
    Ok(options)
}

/// The digest that a reference names.
pub(super) async fn digest(text: &str, options: &Options) -> Result<String, Error> {
    let mut place = Place::open(text, options)?;
    Ok(place.resolve().await?.descriptor.digest.to_string())
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::json;

    #[tokio::test]
    async fn a_pull_secret_has_credentials_and_authorities() {
        let config = STANDARD.encode(r#"{"auths": {"r.io": {"username": "a", "password": "b"}}}"#);
        let secret = json!({"data": {".dockerconfigjson": config, "ca.crt": STANDARD.encode("PEM")}});
        let options = parse(&secret).unwrap();
        assert!(options.credentials.find("r.io", "x").await.unwrap().is_some());
        assert!(options.credentials.find("other", "x").await.unwrap().is_none());
        assert_eq!(options.ca.as_deref(), Some(&b"PEM"[..]));
        assert!(parse(&json!({"data": {".dockerconfigjson": STANDARD.encode("x")}})).is_err());
        assert!(parse(&json!({})).unwrap().ca.is_none());
    }
}
