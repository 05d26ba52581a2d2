//! The `CustomResourceDefinition` of `Operator`.

use serde_json::{Value, json};

use super::history;
use crate::api::ApiKind;
use crate::crd::{OwnKind, column};

const OPERATOR: OwnKind = OwnKind { kind: "Operator", plural: "operators", namespaced: false };

/// The kind `Operator`.
pub fn kind() -> ApiKind {
    OPERATOR.api_kind()
}

/// The `CustomResourceDefinition` of `Operator`.
pub fn crd() -> Value {
    let schema = json!({
        "description": "An installed package: the revision of it that is active.",
        "x-kubernetes-validations": [{
            "rule": "has(self.spec.revision) != has(self.spec.source)",
            "message": "set one of spec.revision, a stored revision, and spec.source, a package in a registry, and remove the other",
            "fieldPath": ".spec",
        }, {
            "rule": "!has(self.spec.revision) || self.spec.revision.startsWith(self.metadata.name + '-') && self.spec.revision.size() == self.metadata.name.size() + 11",
            "messageExpression":
                "'spec.revision must name an OperatorRevision of the package ' + self.metadata.name + \
                 ', such as ' + self.metadata.name + '-0123456789: an Operator has the name of its package'",
            "message": "spec.revision must name an OperatorRevision of the package of that name",
            "fieldPath": ".spec.revision",
        }, {
            "rule": "!has(self.spec.takesOver) || self.spec.takesOver.all(one, one.from != self.metadata.name)",
            "message": "spec.takesOver names other packages, from which this one takes a CustomResourceDefinition over",
            "fieldPath": ".spec.takesOver",
        }],
        "properties": {
            "metadata": {"type": "object", "properties": {"name": {"type": "string", "maxLength": 40}}},
            "spec": spec(),
            "status": status(),
        },
    });
    let mut instances =
        column("Instances", ".status.instances", "How many instances of its kinds there are.", 0);
    instances["type"] = "integer".into();
    let ready = |field: &str| format!(".status.conditions[?(@.type==\"Ready\")].{field}");
    let columns = vec![
        column("Version", ".status.version", "The version of the active revision.", 0),
        column("Ready", &ready("status"), "Whether the revision that it names is active.", 0),
        column("Reason", &ready("reason"), "Why, or what is wrong.", 0),
        instances,
        column("Active", ".status.activeRevision", "The active revision.", 1),
        column("Target", ".spec.revision", "The revision that it names.", 1),
        column("Message", &ready("message"), "What is wrong, and what to do.", 1),
    ];
    OPERATOR.crd(schema, columns, &[])
}

fn spec() -> Value {
    json!({
        "type": "object",
        "properties": {
            "source": {
                "type": "object",
                "required": ["package"],
                "description": "A package in a registry, in place of `revision`: the manager fetches it, checks it against the PackagePolicies, \
                    and stores it.",
                "properties": {
                    "package": {
                        "type": "string", "maxLength": 512,
                        "pattern": "^oci://[A-Za-z0-9.:\\[\\]-]+/[a-z0-9._/-]+(:[A-Za-z0-9_][A-Za-z0-9_.-]{0,127})?(@sha256:[0-9a-f]{64})?$",
                        "description": "`oci://HOST/PATH@sha256:...` is exactly this package. A tag, or the newest version if there is none, \
                            is looked up once: if it names another package later, that is reported, and not followed.",
                    },
                    "pullSecret": {
                        "type": "string", "minLength": 1, "maxLength": 253,
                        "description": "The Secret of type kubernetes.io/dockerconfigjson in the manager's namespace with the credentials; \
                            its key `ca.crt`, if it has one, has the authorities of the registry. operetta-pull if it is not set.",
                    },
                },
            },
            "revision": {
                "type": "string", "maxLength": 63, "pattern": "^[a-z0-9-]+-[0-9a-f]{10}$",
                "description": "The name of the OperatorRevision that is to be active.",
            },
            "paused": {
                "type": "boolean",
                "description": "While it is true, the active revision stays active, whatever `revision` names, and no \
                    instance is moved to another revision. Instances are reconciled.",
            },
            "defaults": {
                "type": "object", "x-kubernetes-preserve-unknown-fields": true,
                "description": "Values that take the place of the package's defaults, for all instances at once.",
            },
            "namespaces": {
                "type": "object",
                "description": "The namespaces whose instances are reconciled; all but kube-system and the manager's if it is not set. Instances elsewhere are \
                    left as they are, and their deletion is completed.",
                "x-kubernetes-validations": [{
                    "rule": "has(self.names) != has(self.selector)",
                    "message": "set one of names and selector",
                }],
                "properties": {
                    "names": {
                        "type": "array", "x-kubernetes-list-type": "set", "maxItems": 10_000,
                        "items": {"type": "string", "maxLength": 63},
                        "description": "These namespaces.",
                    },
                    "selector": label_selector("Namespaces with these labels."),
                },
            },
            "systemNamespaces": {
                "type": "array", "x-kubernetes-list-type": "set", "maxItems": 2,
                "items": {"type": "string", "maxLength": 63},
                "description": "kube-system, or the manager's namespace: what is named here is open to children, Jobs and patches of instances \
                    elsewhere. Who may write there controls the cluster, or the manager.",
            },
            "takesOver": {
                "type": "array", "maxItems": 100,
                "x-kubernetes-list-type": "map", "x-kubernetes-list-map-keys": ["crd"],
                "description": "CustomResourceDefinitions that this package takes over from other packages, with their instances \
                    and children. A package has a CRD of another one only if this says so.",
                "items": {
                    "type": "object",
                    "required": ["crd", "from"],
                    "properties": {
                        "crd": {
                            "type": "string", "minLength": 1, "maxLength": 253,
                            "description": "The name of the CustomResourceDefinition, such as webapps.example.org.",
                        },
                        "from": {
                            "type": "string", "minLength": 1, "maxLength": 40,
                            "description": "The package that has it until then.",
                        },
                    },
                },
            },
            "upgrade": {
                "type": "object",
                "description": "How instances are moved to another revision.",
                "properties": {
                    "maxUnavailable": {
                        "x-kubernetes-int-or-string": true,
                        "minimum": 1, "pattern": "^([1-9][0-9]?|100)%$",
                        "description": "How many instances are moved at a time: a number or a percentage. One is moved at \
                            a time until one is ready with the revision. 10% if it is not set.",
                    },
                    "pauseOnFailure": {
                        "type": "boolean",
                        "description": "Whether no other instance is moved while one that was ready before is stalled with \
                            the new revision, or not ready within the deadline. True if it is not set.",
                    },
                    "progressDeadlineSeconds": {
                        "type": "integer", "format": "int32", "minimum": 1,
                        "description": "For how long an instance that was ready before may be unready after it was moved \
                            until that counts as a failure. 600 if it is not set. An active run of a plan does not count.",
                    },
                    "pin": label_selector("Instances with these labels keep the revision that they have."),
                    "maxHoldSeconds": {
                        "type": "integer", "format": "int32", "minimum": 0,
                        "description": "For how long instances may keep the revision that they have because they are paused or \
                            have the labels of `pin`, since the Operator names its revision. Then they are moved like all \
                            others; one that is paused stays paused. For ever if it is not set.",
                    },
                },
            },
        },
    })
}

fn label_selector(description: &str) -> Value {
    json!({
        "type": "object", "x-kubernetes-map-type": "atomic",
        "description": description,
        "properties": {
            "matchLabels": {"type": "object", "additionalProperties": {"type": "string"}},
            "matchExpressions": {
                "type": "array", "x-kubernetes-list-type": "atomic",
                "items": {
                    "type": "object",
                    "required": ["key", "operator"],
                    "properties": {
                        "key": {"type": "string"},
                        "operator": {"type": "string", "enum": ["In", "NotIn", "Exists", "DoesNotExist"]},
                        "values": {"type": "array", "x-kubernetes-list-type": "atomic", "items": {"type": "string"}},
                    },
                },
            },
        },
    })
}

fn status() -> Value {
    let text = |description: &str| json!({"type": "string", "description": description});
    let count = |description: &str| json!({"type": "integer", "format": "int64", "description": description});
    json!({
        "type": "object",
        "properties": {
            "observedGeneration": count("The generation of the spec that the status is about."),
            "activeRevision": text("The OperatorRevision whose CRDs are registered: new instances have it, and others are moved to it."),
            "version": text("The version of the package in the active revision."),
            "targetRevision": text("The OperatorRevision that is to be active."),
            "targetSince": {
                "type": "string", "format": "date-time",
                "description": "Since when the spec names it, as the manager has seen it.",
            },
            "source": {
                "type": "object",
                "description": "Where the package is from.",
                "properties": {
                    "package": text("The reference, as it was named."),
                    "digest": text("The digest of its manifest."),
                    "revision": text("The OperatorRevision with its files."),
                    "signer": text("Who has signed it, if the policy demands a signature: the SHA-256 of the SubjectPublicKeyInfo of a key, or an identity."),
                    "policy": text("The PackagePolicy that permits it."),
                },
            },
            "previousRevision": text("The OperatorRevision that was active before: `operetta rollback` returns to it."),
            "defaults": {
                "type": "array",
                "description": "The values that take the place of the package's defaults: the last ones that were all valid.",
                "x-kubernetes-list-type": "map",
                "x-kubernetes-list-map-keys": ["name"],
                "items": {
                    "type": "object",
                    "required": ["name"],
                    "properties": {
                        "name": text("The name of the default."),
                        "value": {
                            "x-kubernetes-preserve-unknown-fields": true, "nullable": true,
                            "description": "Its value.",
                        },
                    },
                },
            },
            "instances": count("How many instances of its kinds there are."),
            "revisions": {
                "type": "array",
                "description": "How many instances are reconciled with each revision: one that was not moved yet, and one in \
                    the midst of a run of a plan, keep the revision that they have.",
                "x-kubernetes-list-type": "map",
                "x-kubernetes-list-map-keys": ["name"],
                "items": {
                    "type": "object",
                    "required": ["name", "instances"],
                    "properties": {
                        "name": text("The name of the OperatorRevision."),
                        "instances": count("How many instances are reconciled with it."),
                    },
                },
            },
            "missingRights": {
                "type": "array", "items": {"type": "string"},
                "description": "What the account of the package may not do that the package needs, such as `list configmaps in \
                    team-a`.",
            },
            "upgrade": {
                "type": "object",
                "description": "How far instances are moved to the target revision; there while some are not.",
                "properties": {
                    "moved": count("How many instances have the target revision, or change to it."),
                    "changing": count("How many of them have not been ready since."),
                    "waiting": count("How many are still to be moved."),
                    "kept": count("How many keep their revision, because they are pinned, paused, in the midst of a run, or not served."),
                    "failing": {
                        "type": "array", "items": {"type": "string"},
                        "description": "The first instances that fail since they were moved.",
                    },
                    "refused": {
                        "type": "array", "items": {"type": "string"},
                        "description": "The first instances that cannot be moved, because the API server refuses it.",
                    },
                },
            },
            "history": history::schema(),
            "conditions": {
                "type": "array",
                "description": "Active: a revision is active. Ready: the one that the spec names is, all instances \
                    have it that are to have it, and the account of the package has its rights. Reconciling, Stalled (also if the revision brings a CRD that another package has taken over), StorageMigrating, NamespacesMissing, DependenciesMissing (kinds that it requires are not served), RevisionNotStored (the active revision is \
                    not stored as it is loaded), KubernetesUnsupported (it does not support the version of the cluster), PackageUntrusted (no PackagePolicy permits it) and RightsMissing (the account of the package lacks rights) are there while \
                    they hold.",
                "x-kubernetes-list-type": "map",
                "x-kubernetes-list-map-keys": ["type"],
                "items": {
                    "type": "object",
                    "required": ["type", "status", "lastTransitionTime", "reason", "message"],
                    "properties": {
                        "type": text("The type."),
                        "status": {"type": "string", "enum": ["True", "False", "Unknown"], "description": "Whether it holds."},
                        "reason": text("Why, in one word."),
                        "message": text("Why, and what to do."),
                        "lastTransitionTime": {"type": "string", "format": "date-time", "description": "Since when."},
                        "observedGeneration": count("The generation of the spec that it is about."),
                    },
                },
            },
        },
    })
}
