//! The OpenAPI v2 document, in Protobuf as client-go reads it. kubectl looks up in it whether the server validates fields, for files
//! with a `kind: List`. So it has the patch of each kind, and no definitions: those are in the documents of v3.

/// The form of the document. Clients ask for it with an `@`, which Go does not read in an answer.
pub(crate) const MEDIA: &str = "application/com.github.proto-openapi.spec.v2.v1.0+protobuf";
/// The form as clients ask for it.
pub(crate) const ASKED: &str = "application/com.github.proto-openapi.spec.v2@v1.0+protobuf";

/// A kind that can be patched.
pub(crate) struct Patched<'a> {
    /// The path of an object, with placeholders.
    pub(crate) path: String,
    pub(crate) group: &'a str,
    pub(crate) version: &'a str,
    pub(crate) kind: &'a str,
}

/// The document.
pub(crate) fn document<'a>(kinds: impl Iterator<Item = Patched<'a>>) -> Vec<u8> {
    let parameters = ["dryRun", "fieldValidation", "force"].map(query_parameter);
    let paths = kinds.fold(Message::default(), |paths, Patched { path, group, version, kind }| {
        let about = format!("group: \"{group}\"\nkind: {kind}\nversion: {version}\n");
        let extension = Message::default()
            .with(1, "x-kubernetes-group-version-kind")
            .with(2, Message::default().with(2, about));
        let patch = parameters.iter().fold(Message::default(), |patch, parameter| patch.with(8, parameter));
        let item = Message::default().with(8, patch.with(13, extension));
        paths.with(2, Message::default().with(1, path).with(2, item))
    });
    let info = Message::default().with(1, "Kubernetes").with(2, "v1.36.3");
    Message::default().with(1, "2.0").with(2, info).with(8, paths).0
}

/// `Parameter.non_body_parameter.query_parameter_sub_schema`.
fn query_parameter(name: &str) -> Message {
    let query = Message::default().with(2, "query").with(4, name).with(6, "string");
    Message::default().with(1, Message::default().with(2, Message::default().with(3, query)))
}

/// A message in Protobuf whose fields are texts and messages, with numbers up to 15.
#[derive(Default)]
struct Message(Vec<u8>);

impl AsRef<[u8]> for Message {
    fn as_ref(&self) -> &[u8] {
        &self.0
    }
}

impl Message {
    fn with(mut self, number: u8, value: impl AsRef<[u8]>) -> Self {
        let value = value.as_ref();
        self.0.push(number << 3 | 2);
        let mut length = value.len();
        loop {
            let low = length.to_le_bytes()[0] & 0x7f;
            length >>= 7;
            self.0.push(if length > 0 { low | 0x80 } else { low });
            if length == 0 {
                break;
            }
        }
        self.0.extend(value);
        self
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn fields_have_a_number_a_length_and_bytes() {
        assert_eq!(Message::default().with(1, "2.0").0, b"\x0a\x032.0");
        let long = Message::default().with(15, [7_u8; 300]).0;
        assert_eq!((&long[..3], long.len()), (&[0x7a, 0xac, 0x02][..], 303));
    }
}
