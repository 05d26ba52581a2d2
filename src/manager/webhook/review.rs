//! `ConversionReview` (apiextensions.k8s.io/v1): the request of an API server and its answer.

use serde::Deserialize;
use serde_json::{Value, json};

use crate::crd::{Conversion, json_entries, json_items};

/// The body is no review.
#[derive(Debug, thiserror::Error, PartialEq, Eq)]
#[error("the body must be a ConversionReview of apiextensions.k8s.io/v1 with a request")]
pub(super) struct NoReview;

/// A review that was asked for. Its objects are not read here: they may be deep, and many.
#[derive(Debug, PartialEq)]
pub(super) struct Review<'a> {
    uid: Value,
    api_version: String,
    objects: Vec<&'a str>,
}

impl<'a> Review<'a> {
    pub(super) fn read(body: &'a [u8]) -> Result<Self, NoReview> {
        Self::of(body).ok_or(NoReview)
    }

    fn of(body: &'a [u8]) -> Option<Self> {
        let string = |text: &str| serde_json::from_str::<String>(text).ok();
        let (mut api_version, mut kind, mut request) = (None, None, None);
        for (key, value) in json_entries(std::str::from_utf8(body).ok()?)? {
            match key.as_str() {
                "apiVersion" => api_version = string(value),
                "kind" => kind = string(value),
                "request" => request = Some(value),
                _ => {}
            }
        }
        if api_version? != "apiextensions.k8s.io/v1" || kind? != "ConversionReview" {
            return None;
        }
        let (mut uid, mut desired, mut objects) = (Value::Null, None, None);
        for (key, value) in json_entries(request?)? {
            match key.as_str() {
                "uid" => uid = string(value)?.into(),
                "desiredAPIVersion" => desired = string(value),
                "objects" => objects = json_items(value),
                _ => {}
            }
        }
        Some(Self { uid, api_version: desired?, objects: objects? })
    }

    /// Converts the objects. The first that cannot be converted makes the whole review fail; there is no other answer.
    pub(super) fn answer(&self, conversion: &Conversion, stored: &[String]) -> String {
        let mut converted = String::new();
        for object in &self.objects {
            match conversion.convert(object, &self.api_version, stored) {
                Ok(object) => {
                    if !converted.is_empty() {
                        converted.push(',');
                    }
                    converted.push_str(&object);
                }
                Err(error) => {
                    let result =
                        json!({"status": "Failure", "message": format!("{}: {error}", name_of(object))});
                    return self.response(&result, "");
                }
            }
        }
        self.response(&json!({"status": "Success"}), &format!(",\"convertedObjects\":[{converted}]"))
    }

    fn response(&self, result: &Value, more: &str) -> String {
        let uid = &self.uid;
        format!(
            r#"{{"apiVersion":"apiextensions.k8s.io/v1","kind":"ConversionReview","response":{{"uid":{uid},"result":{result}{more}}}}}"#
        )
    }
}

/// The namespace and name of an object, as far as it has them.
fn name_of(object: &str) -> String {
    #[derive(Default, Deserialize)]
    struct Named {
        #[serde(default)]
        metadata: Metadata,
    }
    #[derive(Default, Deserialize)]
    struct Metadata {
        namespace: Option<String>,
        name: Option<String>,
    }
    let Metadata { namespace, name } = serde_json::from_str::<Named>(object).unwrap_or_default().metadata;
    namespace.into_iter().chain(name).collect::<Vec<_>>().join("/")
}

#[cfg(test)]
mod tests {
    use super::*;

    fn conversion() -> Conversion {
        serde_json::from_value(json!({"group": "g.org", "kind": "W", "hub": "v1", "versions": {"v1alpha1": {
            "moves": [[["spec", "replicas"], ["spec", "size"]]]}}}))
        .unwrap()
    }

    fn review(objects: &str) -> String {
        format!(
            r#"{{"apiVersion":"apiextensions.k8s.io/v1","kind":"ConversionReview","request":{{
                "uid":"u","desiredAPIVersion":"g.org/v1","objects":{objects}}}}}"#
        )
    }

    fn answer(objects: &str) -> String {
        Review::read(review(objects).as_bytes()).unwrap().answer(&conversion(), &[])
    }

    #[test]
    fn objects_are_converted_in_order_or_the_first_bad_one_is_named() {
        let object = |version: &str, name: &str| {
            json!({"apiVersion": format!("g.org/{version}"), "kind": "W",
                "metadata": {"namespace": "n", "name": name}, "spec": {"replicas": 2}})
        };
        let good = json!([object("v1alpha1", "a"), object("v1alpha1", "b")]);
        let response = |objects: &Value| {
            serde_json::from_str::<Value>(&answer(&objects.to_string())).unwrap()["response"].clone()
        };
        let answer = response(&good);
        assert_eq!(answer["uid"], "u");
        assert_eq!(answer["result"], json!({"status": "Success"}));
        assert_eq!(answer["convertedObjects"][1]["metadata"]["name"], "b");
        assert_eq!(answer["convertedObjects"][0]["spec"], json!({"size": 2}));
        assert_eq!(response(&json!([]))["convertedObjects"], json!([]));

        for (object, words) in [
            (object("v3", "bad"), "n/bad: apiVersion: the version v3 is not known"),
            (json!({"apiVersion": "g.org/v1", "kind": "X", "metadata": {}}), ": kind: must be W"),
            (json!({"apiVersion": "g.org/v1", "kind": "W"}), ": metadata: must be an object"),
            (json!([]), ": apiVersion: must be of the group g.org"),
        ] {
            let answer = response(&json!([object]));
            assert_eq!(answer["result"], json!({"status": "Failure", "message": words}));
            assert_eq!(answer.get("convertedObjects"), None);
        }
    }

    #[test]
    fn a_deep_object_and_its_numbers_come_back_as_they_were() {
        let deep = "{\"a\":".repeat(1_000) + "0.30000000000000004" + &"}".repeat(1_000);
        let object = |version: &str, field: &str| {
            format!(
                r#"{{"apiVersion":"g.org/{version}","kind":"W","metadata":{{"name":"x"}},"spec":{{"free":{deep},"{field}":1e2}}}}"#
            )
        };
        let (old, new) = (object("v1alpha1", "replicas"), object("v1", "size"));
        let answer = answer(&format!("[{old},{old}]"));
        assert!(answer.contains(&format!("\"convertedObjects\":[{new},{new}]")), "{answer}");
    }

    #[test]
    fn other_bodies_are_refused() {
        let deep = "[".repeat(100_000);
        let no_objects = review("7");
        for body in [
            "",
            "{",
            "{}",
            "[]",
            "7",
            r#"{"request":{"desiredAPIVersion":"g.org/v1","objects":[]}}"#,
            &deep,
            &no_objects,
        ] {
            assert_eq!(Review::read(body.as_bytes()), Err(NoReview), "{body}");
        }
        assert_eq!(Review::read(&[0xff]), Err(NoReview));
    }
}
