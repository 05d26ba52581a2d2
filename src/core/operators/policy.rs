//! The kind `PackagePolicy`: which packages may be installed in the cluster.

use serde::{Deserialize, Serialize};
use serde_json::{Value, json};

use crate::api::ApiKind;
use crate::crd::{OwnKind, column};

const PACKAGE_POLICY: OwnKind =
    OwnKind { kind: "PackagePolicy", plural: "packagepolicies", namespaced: false };
/// The maximum number of keys of an object, and of its identities.
const MOST: usize = 50;
/// The maximum size of a trusted root, in bytes.
const ROOT: usize = 128 << 10;

/// The `spec` of a `PackagePolicy`.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default, rename_all = "camelCase")]
pub struct PolicySpec {
    /// The registry and the first parts of the path of packages.
    pub prefix: String,
    /// Public keys in PEM; one of them or of the identities must have signed the package.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub keys: Vec<String>,
    /// Identities.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub identities: Vec<Identity>,
    /// The root that proves them, in JSON.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub trusted_root: Option<String>,
    /// Whether packages need no signature.
    #[serde(skip_serializing_if = "std::ops::Not::not")]
    pub unsigned: bool,
}

/// An identity that may have signed a package.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Identity {
    /// Who vouches for it.
    pub issuer: String,
    /// An e-mail address, or the URI of a workflow.
    pub subject: String,
}

/// The kind `PackagePolicy`.
pub fn kind() -> ApiKind {
    PACKAGE_POLICY.api_kind()
}

/// The object with this spec.
pub fn object(name: &str, spec: &PolicySpec) -> Value {
    json!({
        "apiVersion": kind().api_version(), "kind": PACKAGE_POLICY.kind,
        "metadata": {"name": name}, "spec": spec,
    })
}

/// The `CustomResourceDefinition` of `PackagePolicy`.
pub fn crd() -> Value {
    let spec = json!({
        "type": "object",
        "required": ["prefix"],
        "x-kubernetes-validations": [
            {
                "rule": "(has(self.keys) || has(self.identities)) != has(self.unsigned)",
                "message": "set keys or identities, or unsigned: true for packages that need no signature",
            },
            {
                "rule": "has(self.identities) == has(self.trustedRoot)",
                "message": "identities and the trustedRoot that proves them are set together",
            },
        ],
        "properties": {
            "prefix": {
                "type": "string", "maxLength": 512,
                "pattern": "^(oci://)?([A-Za-z0-9.:\\[\\]-]+(/[a-z0-9._/-]*)?)?$",
                "description": "The registry and the first parts of the path of packages, such as ghcr.io/acme. Parts are compared as a \
                    whole: ghcr.io/acme is no prefix of ghcr.io/acme-labs/etcd. The empty prefix matches everything, also packages \
                    of folders, archives and OCI layouts.",
            },
            "keys": {
                "type": "array", "minItems": 1, "maxItems": MOST, "x-kubernetes-list-type": "atomic",
                "items": {"type": "string", "maxLength": 1_000, "pattern": "BEGIN PUBLIC KEY"},
                "description": "Public keys in PEM, ECDSA P-256 or Ed25519. One of them, or of the identities, must have signed the package.",
            },
            "identities": {
                "type": "array", "minItems": 1, "maxItems": MOST, "x-kubernetes-list-type": "atomic",
                "description": "Identities whose certificate is in the signature of the package, as cosign 3 signs without a key.",
                "items": {
                    "type": "object", "required": ["issuer", "subject"],
                    "properties": {
                        "issuer": {
                            "type": "string", "maxLength": 512, "pattern": "^https://",
                            "description": "Who vouches for the identity, such as https://token.actions.githubusercontent.com.",
                        },
                        "subject": {
                            "type": "string", "minLength": 1, "maxLength": 512,
                            "description": "An e-mail address, or the URI of a workflow, such as \
                                https://github.com/acme/etcd/.github/workflows/release.yaml. A URI without @ is meant at any Git ref.",
                        },
                    },
                },
            },
            "trustedRoot": {
                "type": "string", "minLength": 1, "maxLength": ROOT,
                "description": "The authorities and logs that prove the identities: a trusted root of Sigstore in JSON, as \
                    `cosign trusted-root create` prints it. Nothing else is asked.",
            },
            "unsigned": {
                "type": "boolean", "enum": [true],
                "description": "Packages need no signature.",
            },
        },
    });
    let schema = json!({
        "description": "Permits packages: of those whose prefix matches, the longest decides. Once there is a PackagePolicy, \
            packages that none matches are denied. Objects with the same prefix count as one.",
        "properties": {"spec": spec},
    });
    let columns = vec![
        column("Prefix", ".spec.prefix", "Which packages it is about.", 0),
        column("Unsigned", ".spec.unsigned", "Whether they need no signature.", 0),
    ];
    PACKAGE_POLICY.crd(schema, columns, &[])
}
