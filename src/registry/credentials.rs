//! The credentials of registries: the files and helpers of Docker and Podman.

use std::fmt;
use std::io::Write as _;
use std::path::{Path, PathBuf};
use std::process::Stdio;
use std::time::Duration;

use base64::Engine as _;
use base64::engine::general_purpose::STANDARD;
use serde_json::{Map, Value, json};
use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _};
use tokio::process::Command;

use crate::error::Error;

/// The name of Docker Hub in references, and in files of credentials.
const DOCKER_HUB: [&str; 2] = ["docker.io", "https://index.docker.io/v1/"];
/// The user name by which a helper says that its secret is a token.
const TOKEN: &str = "<token>";
/// How long a helper may take.
const HELPER_TIMEOUT: Duration = Duration::from_secs(30);
/// The maximum size of a file and of the output of a helper.
const MOST_BYTES: u64 = 1 << 20;

/// Who asks a registry.
#[derive(Clone, PartialEq, Eq)]
pub enum Credentials {
    /// A name and a password.
    Password {
        /// The name.
        user: String,
        /// The password.
        password: String,
    },
    /// A token that is exchanged for others.
    IdentityToken(String),
}

impl fmt::Debug for Credentials {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("Credentials")
    }
}

/// The files that may have credentials. Of several files with credentials for a registry the first counts.
#[derive(Debug, Clone, Default)]
pub struct CredentialFiles {
    paths: Vec<PathBuf>,
    /// The content of a file that was given. Its helpers are not run.
    given: Option<Given>,
}

#[derive(Clone)]
struct Given(Map<String, Value>);

impl fmt::Debug for Given {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("Given")
    }
}

impl CredentialFiles {
    /// The files of this user, by the environment: `REGISTRY_AUTH_FILE`, Docker's `config.json`, Podman's
    /// `auth.json`.
    pub fn of_user() -> Self {
        let folder = |name: &str| std::env::var_os(name).filter(|value| !value.is_empty()).map(PathBuf::from);
        let home = folder("HOME");
        let below = |folder: Option<&PathBuf>, path: &str| folder.map(|folder| folder.join(path));
        let docker = folder("DOCKER_CONFIG").or_else(|| below(home.as_ref(), ".docker"));
        let config = folder("XDG_CONFIG_HOME").or_else(|| below(home.as_ref(), ".config"));
        let files = [
            folder("REGISTRY_AUTH_FILE"),
            below(docker.as_ref(), "config.json"),
            below(folder("XDG_RUNTIME_DIR").as_ref(), "containers/auth.json"),
            below(config.as_ref(), "containers/auth.json"),
        ];
        Self::at(files.into_iter().flatten().collect())
    }

    /// These files.
    pub fn at(paths: Vec<PathBuf>) -> Self {
        Self { paths, given: None }
    }

    /// The content of one file, as Secrets of type `kubernetes.io/dockerconfigjson` have it. Helpers that it names are not run.
    /// `None`: it is no JSON object.
    pub fn given(content: &[u8]) -> Option<Self> {
        let given = serde_json::from_slice(content).ok().map(Given)?;
        Some(Self { paths: Vec::new(), given: Some(given) })
    }

    /// The credentials for a repository.
    ///
    /// # Errors
    /// A file or the answer of a helper cannot be read.
    pub async fn find(&self, registry: &str, repository: &str) -> Result<Option<Credentials>, Error> {
        if let Some(Given(file)) = &self.given {
            let found = names(registry, repository).find_map(|name| entry(file, &name)).transpose();
            return found.map_err(|reason| Error::Credentials {
                registry: registry.to_owned(),
                reason: reason.to_owned(),
            });
        }
        for path in &self.paths {
            let Some(file) = read(registry, path)? else { continue };
            if let Some(helper) = helper_of(&file, registry) {
                if let Some(found) = ask(registry, &helper).await? {
                    return Ok(Some(found));
                }
                continue;
            }
            if let Some(found) = names(registry, repository).find_map(|name| entry(&file, &name)) {
                return found.map(Some).map_err(|reason| wrong(registry, path, reason));
            }
        }
        Ok(None)
    }

    /// Stores credentials in the first file, or with its helper. Returns where they are now.
    ///
    /// # Errors
    /// The file cannot be read or written, or the helper refuses.
    pub async fn store(&self, registry: &str, user: &str, password: &str) -> Result<String, Error> {
        let path = self.first(registry)?;
        let mut file = read(registry, path)?.unwrap_or_default();
        if let Some(helper) = helper_of(&file, registry) {
            let input = json!({"ServerURL": key(registry), "Username": user, "Secret": password});
            run(registry, &helper, "store", &input.to_string()).await?;
            return Ok(format!("the helper docker-credential-{helper}"));
        }
        let auth = STANDARD.encode(format!("{user}:{password}"));
        let auths = file.entry("auths").or_insert_with(|| json!({}));
        let Some(auths) = auths.as_object_mut() else { return Err(wrong(registry, path, "auths is no map")) };
        auths.insert(key(registry).to_owned(), json!({"auth": auth}));
        write(path, &file)?;
        Ok(path.display().to_string())
    }

    /// Removes credentials from all files and helpers. Returns whether there were some.
    ///
    /// # Errors
    /// A file cannot be read or written, or a helper refuses.
    pub async fn erase(&self, registry: &str) -> Result<bool, Error> {
        let mut any = false;
        for path in &self.paths {
            let Some(mut file) = read(registry, path)? else { continue };
            if let Some(helper) = helper_of(&file, registry)
                && ask(registry, &helper).await?.is_some()
            {
                run(registry, &helper, "erase", key(registry)).await?;
                any = true;
            }
            let auths = file.get_mut("auths").and_then(Value::as_object_mut);
            if auths.is_some_and(|auths| auths.remove(key(registry)).is_some()) {
                write(path, &file)?;
                any = true;
            }
        }
        Ok(any)
    }

    fn first(&self, registry: &str) -> Result<&PathBuf, Error> {
        self.paths.first().ok_or_else(|| Error::Credentials {
            registry: registry.to_owned(),
            reason: "there is no place for them\n  help: set HOME or DOCKER_CONFIG".into(),
        })
    }
}

/// The key of a registry in files.
fn key(registry: &str) -> &str {
    if registry == DOCKER_HUB[0] { DOCKER_HUB[1] } else { registry }
}

/// The keys that are looked up: Podman has some for parts of a registry, and the longest counts.
fn names(registry: &str, repository: &str) -> impl Iterator<Item = String> {
    let path = format!("{registry}/{repository}");
    let mut cuts: Vec<usize> = path.match_indices('/').map(|(at, _)| at).collect();
    cuts.push(path.len());
    let parts: Vec<String> = cuts.into_iter().rev().map(|at| path[..at].to_owned()).collect();
    let whole = [key(registry).to_owned(), format!("https://{registry}"), format!("http://{registry}")];
    parts.into_iter().chain(whole)
}

fn entry(file: &Map<String, Value>, name: &str) -> Option<Result<Credentials, &'static str>> {
    let entry = file.get("auths")?.get(name)?;
    let text = |field: &str| entry[field].as_str().filter(|text| !text.is_empty());
    if let Some(token) = text("identitytoken") {
        return Some(Ok(Credentials::IdentityToken(token.to_owned())));
    }
    if let (Some(user), Some(password)) = (text("username"), text("password")) {
        return Some(Ok(Credentials::Password { user: user.to_owned(), password: password.to_owned() }));
    }
    let auth = text("auth")?;
    let decoded = STANDARD.decode(auth).ok().and_then(|bytes| String::from_utf8(bytes).ok());
    let pair = decoded.as_deref().and_then(|text| text.split_once(':'));
    Some(pair.ok_or("an auth in it is not Base64 of NAME:PASSWORD").map(|(user, password)| {
        // Docker pads the text with zero bytes.
        let password = password.trim_end_matches('\0').to_owned();
        Credentials::Password { user: user.to_owned(), password }
    }))
}

/// The helper that has the credentials of a registry.
fn helper_of(file: &Map<String, Value>, registry: &str) -> Option<String> {
    let own = file.get("credHelpers").and_then(|helpers| helpers.get(key(registry)));
    let name = own.or_else(|| file.get("credsStore"))?.as_str()?;
    // It becomes part of the name of a program.
    let is_name =
        !name.is_empty() && name.chars().all(|c| c.is_ascii_alphanumeric() || matches!(c, '-' | '_'));
    is_name.then(|| name.to_owned())
}

/// Asks a helper. `None`: it has no credentials of this registry.
async fn ask(registry: &str, helper: &str) -> Result<Option<Credentials>, Error> {
    let Some(output) = run(registry, helper, "get", key(registry)).await? else { return Ok(None) };
    let found: Value = serde_json::from_str(&output).unwrap_or_default();
    let text = |field: &str| found[field].as_str().filter(|text| !text.is_empty()).map(str::to_owned);
    Ok(match (text("Username"), text("Secret")) {
        (Some(user), Some(token)) if user == TOKEN => Some(Credentials::IdentityToken(token)),
        (Some(user), Some(password)) => Some(Credentials::Password { user, password }),
        _ => None,
    })
}

/// Runs a helper. `None`: it says that it has nothing.
async fn run(registry: &str, helper: &str, command: &str, input: &str) -> Result<Option<String>, Error> {
    let program = format!("docker-credential-{helper}");
    let failed = |reason: String| Error::Credentials {
        registry: registry.to_owned(),
        reason: format!(
            "{program} {command}: {reason}\n  help: install it, or remove it from Docker's config.json"
        ),
    };
    let call = async {
        let mut child = Command::new(&program)
            .arg(command)
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .stderr(Stdio::null())
            .kill_on_drop(true)
            .spawn()
            .map_err(|error| failed(error.to_string()))?;
        if let Some(mut stdin) = child.stdin.take() {
            // A helper may end without reading.
            let _ = stdin.write_all(input.as_bytes()).await;
        }
        let mut output = String::new();
        if let Some(stdout) = child.stdout.take() {
            let read = stdout.take(MOST_BYTES).read_to_string(&mut output).await;
            read.map_err(|error| failed(error.to_string()))?;
        }
        let status = child.wait().await.map_err(|error| failed(error.to_string()))?;
        if status.success() {
            return Ok(Some(output));
        }
        if command == "get" && output.contains("not found") {
            return Ok(None);
        }
        // The output of `get` may be secret; what a helper prints when it fails is a message.
        Err(failed(format!("{status}: {}", Error::shown(&output))))
    };
    tokio::time::timeout(HELPER_TIMEOUT, call)
        .await
        .unwrap_or_else(|_| Err(failed(format!("no answer within {} s", HELPER_TIMEOUT.as_secs()))))
}

/// Reads a file; `None` if it does not exist.
fn read(registry: &str, path: &Path) -> Result<Option<Map<String, Value>>, Error> {
    let size = match std::fs::metadata(path) {
        Ok(metadata) if metadata.is_file() => metadata.len(),
        _ => return Ok(None),
    };
    if size > MOST_BYTES {
        return Err(wrong(registry, path, "it is larger than 1 MiB"));
    }
    let text = std::fs::read(path).map_err(Error::io("read", path))?;
    if text.trim_ascii().is_empty() {
        return Ok(None);
    }
    serde_json::from_slice(&text).map(Some).map_err(|_| wrong(registry, path, "it is no JSON object"))
}

/// Replaces a file, which only its owner can read.
fn write(path: &Path, content: &Map<String, Value>) -> Result<(), Error> {
    let failed = Error::io("write", path);
    let text = serde_json::to_vec_pretty(content).unwrap_or_default();
    let folder = path.parent().unwrap_or(Path::new("."));
    let write = || {
        std::fs::create_dir_all(folder)?;
        // Files of this crate can be read by their owner only.
        let mut file = tempfile::NamedTempFile::new_in(folder)?;
        file.write_all(&text)?;
        file.as_file().sync_all()?;
        // The file may be a link, for example into a folder of settings.
        file.persist(std::fs::canonicalize(path).unwrap_or_else(|_| path.to_owned()))
            .map_err(|error| error.error)
    };
    write().map(drop).map_err(failed)
}

fn wrong(registry: &str, path: &Path, reason: &str) -> Error {
    let reason = format!("{}: {reason}\n  help: operetta login {registry}", path.display());
    Error::Credentials { registry: registry.to_owned(), reason }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn password(user: &str, password: &str) -> Credentials {
        Credentials::Password { user: user.to_owned(), password: password.to_owned() }
    }

    fn files(text: &str) -> (tempfile::TempDir, CredentialFiles) {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("config.json");
        std::fs::write(&path, text).unwrap();
        (folder, CredentialFiles::at(vec![path]))
    }

    #[tokio::test]
    async fn the_longest_path_counts() {
        let auth = |text: &str| STANDARD.encode(text);
        let text = json!({"auths": {
            "quay.io": {"auth": auth("a:1")}, "quay.io/acme": {"auth": auth("b:2:3")},
            "https://ghcr.io": {"auth": auth("c:4\0\0")}, "x": {"identitytoken": "t"},
            "https://index.docker.io/v1/": {"username": "d", "password": "5"}, "bad": {"auth": "?"}}});
        let (_folder, files) = files(&text.to_string());
        for (registry, repository, expected) in [
            ("quay.io", "other", Some(password("a", "1"))),
            ("quay.io", "acme/etcd", Some(password("b", "2:3"))),
            ("quay.io", "acme-other/etcd", Some(password("a", "1"))),
            ("ghcr.io", "x", Some(password("c", "4"))),
            ("docker.io", "x", Some(password("d", "5"))),
            ("x", "y", Some(Credentials::IdentityToken("t".into()))),
            ("nowhere", "y", None),
        ] {
            assert_eq!(files.find(registry, repository).await.unwrap(), expected, "{registry}/{repository}");
        }
        assert!(files.find("bad", "x").await.unwrap_err().to_string().contains("operetta login bad"));
    }

    #[tokio::test]
    async fn credentials_are_stored_beside_what_is_there() {
        let (folder, files) = files(r#"{"auths": {"a": {"auth": "eDp5"}}, "psFormat": "z"}"#);
        files.store("b:5000", "user", "pass:word").await.unwrap();
        assert_eq!(files.find("b:5000", "x").await.unwrap(), Some(password("user", "pass:word")));
        assert_eq!(files.find("a", "x").await.unwrap(), Some(password("x", "y")));
        let path = folder.path().join("config.json");
        let mode = std::os::unix::fs::PermissionsExt::mode(&path.metadata().unwrap().permissions());
        assert_eq!(mode & 0o777, 0o600);
        assert!(std::fs::read_to_string(&path).unwrap().contains("psFormat"));
        assert!(files.erase("b:5000").await.unwrap() && !files.erase("b:5000").await.unwrap());
        assert_eq!(files.find("b:5000", "x").await.unwrap(), None);
        assert_eq!(files.find("a", "x").await.unwrap(), Some(password("x", "y")));
    }

    #[tokio::test]
    async fn helpers_of_given_credentials_are_not_run() {
        let text = json!({"credsStore": "operetta-none", "auths": {"a/b": {"auth": STANDARD.encode("x:y")}, "bad": {"auth": "?"}}});
        let given = CredentialFiles::given(text.to_string().as_bytes()).unwrap();
        assert_eq!(given.find("a", "b/c").await.unwrap(), Some(password("x", "y")));
        assert_eq!(given.find("a", "c").await.unwrap(), None);
        assert!(given.find("bad", "c").await.is_err());
        assert!(!format!("{given:?}").contains("auth"));
        assert!(CredentialFiles::given(b"[]").is_none());
    }

    #[tokio::test]
    async fn a_missing_helper_is_named() {
        let (_folder, files) = files(r#"{"credHelpers": {"a": "operetta-none"}, "auths": {}}"#);
        let error = files.find("a", "x").await.unwrap_err().to_string();
        assert!(error.contains("docker-credential-operetta-none get"), "{error}");
        assert_eq!(files.find("b", "x").await.unwrap(), None);
        // A name that would lead to another program is ignored.
        let file = json!({"credsStore": "../../bin/sh"});
        assert_eq!(helper_of(file.as_object().unwrap(), "a"), None);
    }
}
