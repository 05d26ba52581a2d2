//! `kubectl apply` and `kubectl patch` of manifests and patches that must be accepted.

use serde_json::Value;

use super::eventually;
use super::ext::{Kind, LONG, Scene};

impl Scene {
    /// Does the same as `kubectl apply -f -`.
    pub async fn apply(&self, manifests: &str) {
        // A server names a new kind in its discovery up to seconds after it serves it.
        eventually("kubectl apply", LONG, async || {
            match self.kubectl_input(&["apply", "-f", "-"], manifests).await {
                Err(error) if error.contains("no matches for kind") => Err(error),
                applied => Ok(applied.unwrap_or_else(|error| panic!("{error}"))),
            }
        })
        .await;
    }

    /// Does the same as `kubectl patch --type=TYPE`; panics unless it changes the object.
    pub async fn patch(&self, kind: Kind, name: &str, how: &str, patch: &Value) {
        let (how, patch) = (format!("--type={how}"), patch.to_string());
        // The version, too: another one may be preferred.
        let version = kind.api_version().rsplit('/').next().unwrap_or_default();
        let resource = format!("{}.{version}.{}", kind.plural, kind.group());
        let told = self.kubectl_input(&["patch", &resource, name, &how, "-p", &patch], "").await;
        let told = told.unwrap_or_else(|error| panic!("{patch}: {error}"));
        assert!(!told.contains("no change"), "{patch} does nothing: {told}");
    }
}
