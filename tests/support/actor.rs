//! Users as whom a test sends requests, as with kubectl: without a process, which would cost a tenth of a second.

use http::Request;
use serde_json::{Value, json};

use super::{ControlPlane, Kind};

/// A user, with groups beside those that the API server itself gives.
pub struct Actor<'a> {
    client: kube::Client,
    /// As whom the admin acts, if it is another user.
    name: Option<&'a str>,
    groups: &'a [&'a str],
    /// What is added to the query.
    more: &'static str,
}

impl<'a> Actor<'a> {
    pub fn new(plane: &ControlPlane, name: &'a str) -> Self {
        Self { name: Some(name), ..Self::admin(plane) }
    }

    /// The user `admin`, who has all permissions.
    pub fn admin(plane: &ControlPlane) -> Self {
        Self { client: plane.client().expect("a client"), name: None, groups: &[], more: "" }
    }

    /// The same user in these groups.
    pub fn in_groups(self, groups: &'a [&'a str]) -> Self {
        Self { groups, ..self }
    }

    /// The same user, whose writes the server checks and does not store.
    pub fn in_dry_runs(self) -> Self {
        Self { more: "&dryRun=All", ..self }
    }

    /// The client of the admin.
    pub fn client(&self) -> kube::Client {
        self.client.clone()
    }

    /// Creates an object. Returns it as the server has it, or the server's refusal.
    pub async fn create(&self, kind: Kind, namespace: Option<&str>, object: &Value) -> Result<Value, String> {
        let path = kind.path(namespace, "");
        let request =
            Request::post(format!("{}?fieldValidation=Strict{}", path.trim_end_matches('/'), self.more));
        self.send(request.header("content-type", "application/json"), object).await
    }

    /// Changes an object by a merge patch.
    pub async fn patch(
        &self,
        kind: Kind,
        namespace: Option<&str>,
        name: &str,
        patch: &Value,
    ) -> Result<Value, String> {
        let request =
            Request::patch(format!("{}?fieldValidation=Strict{}", kind.path(namespace, name), self.more));
        self.send(request.header("content-type", "application/merge-patch+json"), patch).await
    }

    /// Deletes an object; with an empty name all objects of the kind.
    pub async fn delete(&self, kind: Kind, namespace: Option<&str>, name: &str) -> Result<Value, String> {
        let path = kind.path(namespace, name);
        let request = Request::delete(format!("{}?{}", path.trim_end_matches('/'), self.more));
        let options = json!({"propagationPolicy": "Background"});
        self.send(request.header("content-type", "application/json"), &options).await
    }

    async fn send(&self, mut request: http::request::Builder, body: &Value) -> Result<Value, String> {
        if let Some(name) = self.name {
            request = request.header("Impersonate-User", name);
        }
        for group in self.groups {
            request = request.header("Impersonate-Group", *group);
        }
        let request = request.body(body.to_string().into_bytes()).expect("a request");
        self.client.request::<Value>(request).await.map_err(|error| match error {
            kube::Error::Api(status) => format!("{} ({}): {}", status.code, status.reason, status.message),
            error => error.to_string(),
        })
    }
}
