//! `ConversionReview` (apiextensions.k8s.io/v1): the request of an API server and its answer.

use serde_json::{Value, json};

use crate::crd::Conversion;

/// Why a body is no review.
#[derive(Debug, thiserror::Error, PartialEq, Eq)]
pub(super) enum ReviewError {
    #[error("the body is no JSON that can be read: {0}")]
    Json(String),
    #[error("the body must be a ConversionReview of apiextensions.k8s.io/v1 with a request")]
    NoReview,
}

/// A review that was asked for.
#[derive(Debug, PartialEq)]
pub(super) struct Review {
    uid: Value,
    api_version: String,
    objects: Vec<Value>,
}

impl Review {
    pub(super) fn read(body: &[u8]) -> Result<Self, ReviewError> {
        let mut body: Value =
            serde_json::from_slice(body).map_err(|error| ReviewError::Json(error.to_string()))?;
        let is_review = body["apiVersion"] == "apiextensions.k8s.io/v1" && body["kind"] == "ConversionReview";
        let Some(request) = body.get_mut("request").and_then(Value::as_object_mut) else {
            return Err(ReviewError::NoReview);
        };
        let api_version = request.get("desiredAPIVersion").and_then(Value::as_str).map(str::to_owned);
        let (Some(api_version), Some(Value::Array(objects))) = (api_version, request.remove("objects"))
        else {
            return Err(ReviewError::NoReview);
        };
        let uid = request.remove("uid").unwrap_or_default();
        if !is_review {
            return Err(ReviewError::NoReview);
        }
        Ok(Self { uid, api_version, objects })
    }

    /// Converts the objects. The first that cannot be converted makes the whole review fail; there is no other answer.
    pub(super) fn answer(self, conversion: &Conversion) -> Value {
        let mut converted = Vec::with_capacity(self.objects.len());
        for object in self.objects {
            let (namespace, name) = (&object["metadata"]["namespace"], &object["metadata"]["name"]);
            let about = [namespace, name].into_iter().filter_map(Value::as_str).collect::<Vec<_>>().join("/");
            match conversion.convert(object, &self.api_version) {
                Ok(object) => converted.push(object),
                Err(error) => return failed(&self.uid, &format!("{about}: {error}")),
            }
        }
        answer(&self.uid, &json!({"status": "Success"}), &converted.into())
    }

    /// The answer if there are no rules.
    pub(super) fn refuse(&self, message: &str) -> Value {
        failed(&self.uid, message)
    }
}

fn failed(uid: &Value, message: &str) -> Value {
    answer(uid, &json!({"status": "Failure", "message": message}), &Value::Null)
}

fn answer(uid: &Value, result: &Value, converted: &Value) -> Value {
    let mut response = json!({"uid": uid, "result": result});
    if !converted.is_null() {
        response["convertedObjects"] = converted.clone();
    }
    json!({"apiVersion": "apiextensions.k8s.io/v1", "kind": "ConversionReview", "response": response})
}

#[cfg(test)]
mod tests {
    use super::*;

    fn conversion() -> Conversion {
        serde_json::from_value(json!({"group": "g.org", "kind": "W", "hub": "v1", "versions": {"v1alpha1": {
            "moves": [[["spec", "replicas"], ["spec", "size"]]]}}}))
        .unwrap()
    }

    fn review(objects: &Value) -> Result<Review, ReviewError> {
        let body = json!({"apiVersion": "apiextensions.k8s.io/v1", "kind": "ConversionReview",
            "request": {"uid": "u", "desiredAPIVersion": "g.org/v1", "objects": objects}});
        Review::read(body.to_string().as_bytes())
    }

    #[test]
    fn objects_are_converted_in_order_or_the_first_bad_one_is_named() {
        let object = |version: &str, name: &str| {
            json!({"apiVersion": format!("g.org/{version}"), "kind": "W",
                "metadata": {"namespace": "n", "name": name}, "spec": {"replicas": 2}})
        };
        let good = review(&json!([object("v1alpha1", "a"), object("v1alpha1", "b")])).unwrap();
        let answer = good.answer(&conversion());
        assert_eq!(answer["response"]["uid"], "u");
        assert_eq!(answer["response"]["result"], json!({"status": "Success"}));
        assert_eq!(answer["response"]["convertedObjects"][1]["metadata"]["name"], "b");
        assert_eq!(answer["response"]["convertedObjects"][0]["spec"], json!({"size": 2}));

        for (object, words) in [
            (object("v3", "bad"), "n/bad: apiVersion: the version v3 is not known"),
            (json!({"apiVersion": "g.org/v1", "kind": "X", "metadata": {}}), ": kind: must be W"),
            (json!({"apiVersion": "g.org/v1", "kind": "W"}), ": metadata: must be an object"),
            (json!([]), ": apiVersion: must be of the group g.org"),
        ] {
            let answer = review(&json!([object])).unwrap().answer(&conversion());
            assert_eq!(answer["response"]["result"], json!({"status": "Failure", "message": words}));
            assert_eq!(answer["response"].get("convertedObjects"), None);
        }
    }

    #[test]
    fn other_bodies_are_refused() {
        assert_eq!(review(&json!("x")), Err(ReviewError::NoReview));
        for body in ["{}", "[]", "7", r#"{"request":{"desiredAPIVersion":"g.org/v1","objects":[]}}"#] {
            assert_eq!(Review::read(body.as_bytes()), Err(ReviewError::NoReview), "{body}");
        }
        let deep = "[".repeat(100_000);
        for body in ["", "{", &deep] {
            assert!(matches!(Review::read(body.as_bytes()), Err(ReviewError::Json(_))));
        }
    }
}
