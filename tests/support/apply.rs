//! `kubectl apply` and `kubectl patch` of manifests and patches that must be accepted.

use serde_json::Value;

use super::{Kind, LONG, Scene, eventually};

/// An error if `kubectl apply` has to be repeated: a server names a new kind in its discovery up to seconds after it serves it. Panics
/// if it has failed otherwise.
pub(super) fn unserved(applied: Result<String, String>) -> Result<(), String> {
    match applied {
        Err(error) if error.contains("no matches for kind") => Err(error),
        Err(error) => panic!("{error}"),
        Ok(_) => Ok(()),
    }
}

impl Scene {
    /// Does the same as `kubectl apply -f -`.
    pub async fn apply(&self, manifests: &str) {
        eventually("kubectl apply", LONG, async || {
            unserved(self.kubectl_input(&["apply", "-f", "-"], manifests).await)
        })
        .await;
    }

    /// Does the same as [`Self::apply`], and waits until an instance is Ready.
    pub async fn apply_ready(&self, kind: Kind, name: &str, manifests: &str) -> Value {
        self.apply(manifests).await;
        self.ready(kind, name).await
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
