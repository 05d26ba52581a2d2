//! Writes kubeconfigs and other small files of a control plane, readable only by their owner.

use std::fs;
use std::io::{self, Write};
use std::os::unix::fs::OpenOptionsExt;
use std::path::Path;

use base64::Engine as _;
use base64::engine::general_purpose::STANDARD;
use data_encoding::HEXLOWER;

use super::error::Error;

/// Writes a file that only its owner can read, regardless of the umask.
///
/// # Errors
/// The file cannot be written.
pub fn write_private(path: &Path, content: &str) -> io::Result<()> {
    let mut file = fs::OpenOptions::new().write(true).create(true).truncate(true).mode(0o600).open(path)?;
    file.write_all(content.as_bytes())
}

/// The text of a kubeconfig with one cluster, user and context; `name` is that of the cluster and the context. `ca` contains PEM certificates.
pub fn text(name: &str, server: &str, ca: &str, user: &str, token: &str) -> String {
    let ca = STANDARD.encode(ca);
    format!(
        "apiVersion: v1
kind: Config
clusters:
- name: {name}
  cluster:
    server: {server}
    certificate-authority-data: {ca}
users:
- name: {user}
  user:
    token: {token}
contexts:
- name: {name}
  context:
    cluster: {name}
    user: {user}
current-context: {name}
"
    )
}

/// Creates a bearer token of 256 random bits, in hexadecimal.
///
/// # Errors
/// The system has no random bits.
pub fn token() -> io::Result<String> {
    let mut bytes = [0_u8; 32];
    getrandom::fill(&mut bytes).map_err(|error| io::Error::other(error.to_string()))?;
    Ok(HEXLOWER.encode(&bytes))
}

/// Writes a file that only this user can read.
pub(super) fn write(path: &Path, content: &str) -> Result<(), Error> {
    write_private(path, content).map_err(Error::io("write", path))
}

#[cfg(test)]
mod tests {
    use std::os::unix::fs::PermissionsExt;

    use super::*;

    #[test]
    fn kubeconfig_is_read_back_by_kube() {
        let text = text("operetta-local", "https://127.0.0.1:1234", "PEM", "admin", "abc");
        let config = kube::config::Kubeconfig::from_yaml(&text).unwrap();
        assert_eq!(config.current_context.as_deref(), Some("operetta-local"));
        let cluster = config.clusters[0].cluster.as_ref().unwrap();
        assert_eq!(cluster.server.as_deref(), Some("https://127.0.0.1:1234"));
        assert_eq!(cluster.certificate_authority_data.as_deref(), Some("UEVN"));
        assert!(config.auth_infos[0].auth_info.as_ref().unwrap().token.is_some());
    }

    #[test]
    fn private_files_are_private() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("secret");
        write_private(&path, "a longer text").unwrap();
        write_private(&path, "short").unwrap();
        assert_eq!(fs::read_to_string(&path).unwrap(), "short");
        assert_eq!(fs::metadata(&path).unwrap().permissions().mode() & 0o777, 0o600);
    }

    #[test]
    fn tokens_are_random() {
        let (a, b) = (token().unwrap(), token().unwrap());
        assert_eq!(a.len(), 64);
        assert_ne!(a, b);
    }
}
