//! A registry: which repositories it lists.

use std::collections::BTreeSet;

use crate::client::Options;
use crate::error::Error;
use crate::reference::{Reference, is_path};
use crate::repository::Repository;
use crate::store::Store;

/// The maximum number of repositories that a registry may list, and of pages of that list.
const REPOSITORIES: usize = 100_000;
const PAGES: usize = 2_000;

/// A registry, or what is below a path of it.
#[derive(Debug)]
pub struct Registry {
    root: Repository,
    host: String,
}

/// What a registry lists below a path.
#[derive(Debug, PartialEq, Eq)]
pub enum Listed {
    /// The repositories, sorted, and how many names are not those of repositories.
    Repositories(Vec<String>, usize),
    /// It keeps no list, or this user may not read it.
    Nothing,
}

impl Registry {
    /// The registry of a host. Nothing is sent yet.
    ///
    /// # Errors
    /// The certificates cannot be used.
    pub fn new(host: &str, options: Options) -> Result<Self, Error> {
        let reference =
            Reference { registry: host.to_owned(), repository: String::new(), tag: None, digest: None };
        Ok(Self { root: Repository::new(&reference, options)?, host: host.to_owned() })
    }

    /// The host.
    pub fn host(&self) -> &str {
        &self.host
    }

    /// A repository of it.
    pub fn store(&self, repository: &str) -> Store {
        Store::Registry(Box::new(self.root.beside(repository)))
    }

    /// The repositories that it lists whose names begin with one of the paths, by whole parts.
    ///
    /// # Errors
    /// The registry does not answer, or the list does not end.
    pub async fn list(&self, paths: &[String]) -> Result<Listed, Error> {
        let what = format!("the repositories of {}", self.host);
        let (mut seen, mut foreign) = (BTreeSet::new(), 0);
        let mut next = None;
        for count in 0..PAGES {
            let (names, after) = match self.root.repositories(next, &what).await {
                Ok(page) => page,
                // Public registries answer with one of these.
                Err(
                    Error::NotFound { .. }
                    | Error::Unauthorized { .. }
                    | Error::Status { status: 400 | 405 | 501, .. },
                ) if count == 0 => return Ok(Listed::Nothing),
                Err(error) => return Err(error),
            };
            let before = seen.len() + foreign;
            for name in names {
                if is_path(&name) {
                    seen.insert(name);
                } else {
                    foreign += 1;
                }
            }
            if seen.len() + foreign > REPOSITORIES {
                return Err(self.endless("it has more than 100,000 names"));
            }
            if after.is_none() {
                let found = seen.into_iter().filter(|name| paths.iter().any(|path| is_below(name, path)));
                return Ok(Listed::Repositories(found.collect(), foreign));
            }
            if seen.len() + foreign == before {
                return Err(self.endless("a page of it brings nothing new, and is not the last one"));
            }
            next = after;
        }
        Err(self.endless("it has more than 2,000 pages"))
    }

    fn endless(&self, reason: &str) -> Error {
        let reason = format!("{reason}\n  help: name the repositories, one after another");
        Error::Refused { registry: self.host.clone(), what: "the list of repositories".into(), reason }
    }
}

/// Whether a repository is a path or below it. The empty path is above all.
fn is_below(name: &str, path: &str) -> bool {
    path.is_empty() || name.strip_prefix(path).is_some_and(|rest| rest.is_empty() || rest.starts_with('/'))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn paths_are_compared_by_whole_parts() {
        for (name, path, expected) in [
            ("acme/etcd", "acme", true),
            ("acme", "acme", true),
            ("acme-labs/etcd", "acme", false),
            ("acme/etcd", "acme/etcd", true),
            ("acme/etcd-x", "acme/etcd", false),
            ("x/acme/etcd", "acme", false),
            ("x", "", true),
        ] {
            assert_eq!(is_below(name, path), expected, "{name} {path}");
        }
    }
}
