//! Versions of built-in kinds that Kubernetes has removed, and their replacements.

use crate::api::Gvk;

/// The apiVersion that replaces a removed one, and the version of Kubernetes that removed it.
pub fn successor(gvk: &Gvk) -> Option<(&'static str, &'static str)> {
    Some(match gvk.parts() {
        (
            "extensions/v1beta1" | "apps/v1beta1" | "apps/v1beta2",
            "Deployment" | "DaemonSet" | "ReplicaSet" | "StatefulSet" | "ControllerRevision",
        ) => ("apps/v1", "1.16"),
        ("extensions/v1beta1", "NetworkPolicy") => ("networking.k8s.io/v1", "1.16"),
        ("extensions/v1beta1", "Ingress") | ("networking.k8s.io/v1beta1", "Ingress" | "IngressClass") => {
            ("networking.k8s.io/v1", "1.22")
        }
        ("policy/v1beta1", "PodDisruptionBudget") => ("policy/v1", "1.25"),
        ("batch/v1beta1" | "batch/v2alpha1", "CronJob") => ("batch/v1", "1.25"),
        ("autoscaling/v2beta1", "HorizontalPodAutoscaler") => ("autoscaling/v2", "1.25"),
        ("autoscaling/v2beta2", "HorizontalPodAutoscaler") => ("autoscaling/v2", "1.26"),
        ("discovery.k8s.io/v1beta1", "EndpointSlice") => ("discovery.k8s.io/v1", "1.25"),
        ("events.k8s.io/v1beta1", "Event") => ("events.k8s.io/v1", "1.25"),
        ("node.k8s.io/v1beta1" | "node.k8s.io/v1alpha1", "RuntimeClass") => ("node.k8s.io/v1", "1.25"),
        (
            "rbac.authorization.k8s.io/v1beta1" | "rbac.authorization.k8s.io/v1alpha1",
            "Role" | "RoleBinding" | "ClusterRole" | "ClusterRoleBinding",
        ) => ("rbac.authorization.k8s.io/v1", "1.22"),
        (
            "admissionregistration.k8s.io/v1beta1",
            "MutatingWebhookConfiguration" | "ValidatingWebhookConfiguration",
        ) => ("admissionregistration.k8s.io/v1", "1.22"),
        ("apiextensions.k8s.io/v1beta1", "CustomResourceDefinition") => ("apiextensions.k8s.io/v1", "1.22"),
        ("apiregistration.k8s.io/v1beta1", "APIService") => ("apiregistration.k8s.io/v1", "1.22"),
        ("certificates.k8s.io/v1beta1", "CertificateSigningRequest") => ("certificates.k8s.io/v1", "1.22"),
        ("coordination.k8s.io/v1beta1", "Lease") => ("coordination.k8s.io/v1", "1.22"),
        ("scheduling.k8s.io/v1beta1" | "scheduling.k8s.io/v1alpha1", "PriorityClass") => {
            ("scheduling.k8s.io/v1", "1.22")
        }
        ("storage.k8s.io/v1beta1", "StorageClass" | "VolumeAttachment" | "CSIDriver" | "CSINode") => {
            ("storage.k8s.io/v1", "1.22")
        }
        ("storage.k8s.io/v1beta1", "CSIStorageCapacity") => ("storage.k8s.io/v1", "1.27"),
        (
            "flowcontrol.apiserver.k8s.io/v1beta1"
            | "flowcontrol.apiserver.k8s.io/v1beta2"
            | "flowcontrol.apiserver.k8s.io/v1beta3",
            "FlowSchema" | "PriorityLevelConfiguration",
        ) => ("flowcontrol.apiserver.k8s.io/v1", "1.32"),
        _ => return None,
    })
}

/// Kinds that were removed without a replacement.
pub fn gone(gvk: &Gvk) -> Option<&'static str> {
    match gvk.parts() {
        ("policy/v1beta1" | "extensions/v1beta1", "PodSecurityPolicy") => Some(
            "Kubernetes 1.25 removed it: label the namespace for Pod Security Admission \
             (pod-security.kubernetes.io/enforce)",
        ),
        _ => None,
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::schema::Kubernetes;

    #[test]
    fn replacements_are_served_and_removed_versions_are_not() {
        let kubernetes = Kubernetes::load();
        for (api_version, kind) in [
            ("extensions/v1beta1", "Ingress"),
            ("extensions/v1beta1", "Deployment"),
            ("policy/v1beta1", "PodDisruptionBudget"),
            ("batch/v1beta1", "CronJob"),
            ("autoscaling/v2beta2", "HorizontalPodAutoscaler"),
            ("rbac.authorization.k8s.io/v1beta1", "Role"),
            ("storage.k8s.io/v1beta1", "CSIDriver"),
            ("flowcontrol.apiserver.k8s.io/v1beta3", "FlowSchema"),
        ] {
            let (new, _) = successor(&Gvk::new(api_version, kind)).unwrap();
            assert!(kubernetes.find(&Gvk::new(new, kind)).is_some(), "{new} {kind}");
        }
        for known in kubernetes.kinds() {
            assert_eq!(successor(&known.gvk), None, "{known:?}");
        }
    }
}
