//! The layer of an image: a tree of files in memory, made of archives that may come from anybody. Nothing is unpacked to disk,
//! so no path and no link of an archive can reach a file of this machine.

use std::collections::BTreeMap;
use std::fs::File;
use std::io::{self, BufWriter, Read, Write as _};
use std::path::Path;

use tar::{Archive, Builder, EntryType, Header};

/// The most bytes and entries of a layer.
const BYTES: u64 = 4 << 30;
const ENTRIES: usize = 200_000;
/// The longest target of a link.
const TARGET: usize = 4096;
/// The beginning of the names of files that delete those of earlier layers.
const WHITEOUT: &str = ".wh.";

/// A file, a folder or a link.
#[derive(Debug, Clone, PartialEq)]
pub(super) enum Content {
    Folder,
    File(Vec<u8>),
    Link(String),
}

/// What is at a path.
#[derive(Debug, Clone)]
pub(super) struct Node {
    pub content: Content,
    pub mode: u32,
    pub owner: (u64, u64),
}

impl Node {
    /// A node of root.
    pub(super) fn new(content: Content, mode: u32) -> Self {
        Self { content, mode, owner: (0, 0) }
    }
}

/// The files of a layer by their paths, without a slash at the beginning.
#[derive(Debug, Default)]
pub(super) struct Layer {
    nodes: BTreeMap<String, Node>,
    bytes: u64,
}

impl Layer {
    /// Adds what is at a path. Later nodes replace earlier ones; the reason is returned if there cannot be one.
    pub(super) fn add(&mut self, path: &str, node: Node) -> Result<(), String> {
        let path = inside(path)?;
        if path.is_empty() {
            return Ok(());
        }
        self.bytes += if let Content::File(bytes) = &node.content { bytes.len() as u64 } else { 0 };
        if self.bytes > BYTES || self.nodes.len() >= ENTRIES {
            return Err(format!("there are more than {BYTES} bytes or {ENTRIES} files"));
        }
        // A folder that several packages have keeps its mode and its content.
        if !(node.content == Content::Folder
            && self.nodes.get(&path).is_some_and(|old| old.content == Content::Folder))
        {
            self.nodes.insert(path, node);
        }
        Ok(())
    }

    /// Adds the files of a tar archive.
    pub(super) fn add_tar(&mut self, archive: impl Read) -> Result<(), String> {
        let unreadable = |error: io::Error| format!("the archive cannot be read: {error}");
        for entry in Archive::new(archive).entries().map_err(unreadable)? {
            let mut entry = entry.map_err(unreadable)?;
            let path = String::from_utf8_lossy(&entry.path_bytes()).into_owned();
            let mode = entry.header().mode().map_err(unreadable)? & 0o777;
            let target = || {
                let name = entry.link_name_bytes().unwrap_or_default();
                if name.len() > TARGET {
                    Err(format!("the target of {path} is too long"))
                } else {
                    Ok(String::from_utf8_lossy(&name).into_owned())
                }
            };
            let content = match entry.header().entry_type() {
                EntryType::Directory => Content::Folder,
                EntryType::Symlink => Content::Link(target()?),
                EntryType::Link => {
                    let target = inside(&target()?)?;
                    let first = self.nodes.get(&target).map(|node| node.content.clone());
                    first.ok_or_else(|| {
                        format!("{path} is a link to {target}, which does not come before it")
                    })?
                }
                EntryType::Regular | EntryType::Continuous => {
                    let mut bytes = Vec::new();
                    entry.by_ref().take(BYTES).read_to_end(&mut bytes).map_err(unreadable)?;
                    if bytes.len() as u64 != entry.size() {
                        return Err(format!("{path} is cut off"));
                    }
                    Content::File(bytes)
                }
                EntryType::XGlobalHeader => continue,
                other => return Err(format!("{path} is no file, folder or link, but {other:?}")),
            };
            self.add(&path, Node::new(content, mode))?;
        }
        Ok(())
    }

    /// Removes a file or folder and what is below it.
    pub(super) fn remove(&mut self, path: &str) {
        let path = path.trim_matches('/');
        self.nodes.retain(|found, _| {
            found.strip_prefix(path).is_none_or(|rest| !rest.is_empty() && !rest.starts_with('/'))
        });
    }

    /// Writes the layer. Equal layers are equal bytes.
    pub(super) fn write(&self, path: &Path) -> io::Result<()> {
        let mut tar = Builder::new(BufWriter::new(File::create(path)?));
        let folder = Node::new(Content::Folder, 0o755);
        let mut nodes: BTreeMap<&str, &Node> = BTreeMap::new();
        for path in self.nodes.keys() {
            for (end, _) in path.match_indices('/') {
                let parent = &path[..end];
                match self.nodes.get(parent) {
                    None => drop(nodes.insert(parent, &folder)),
                    Some(node) if node.content == Content::Folder => {}
                    Some(_) => {
                        let message = format!("{path} is below {parent}, which is no folder");
                        return Err(io::Error::new(io::ErrorKind::InvalidData, message));
                    }
                }
            }
        }
        nodes.extend(self.nodes.iter().map(|(path, node)| (path.as_str(), node)));
        for (path, node) in nodes {
            let mut header = Header::new_gnu();
            header.set_mode(node.mode);
            header.set_uid(node.owner.0);
            header.set_gid(node.owner.1);
            header.set_mtime(0);
            header.set_size(0);
            match &node.content {
                Content::Folder => {
                    header.set_entry_type(EntryType::Directory);
                    tar.append_data(&mut header, format!("{path}/"), io::empty())?;
                }
                Content::File(bytes) => {
                    header.set_entry_type(EntryType::Regular);
                    header.set_size(bytes.len() as u64);
                    tar.append_data(&mut header, path, bytes.as_slice())?;
                }
                Content::Link(target) => {
                    header.set_entry_type(EntryType::Symlink);
                    tar.append_link(&mut header, path, target)?;
                }
            }
        }
        tar.into_inner()?.flush()
    }

    /// The bytes of a file.
    pub(super) fn file(&self, path: &str) -> Option<&[u8]> {
        match &self.nodes.get(path)?.content {
            Content::File(bytes) => Some(bytes),
            _ => None,
        }
    }
}

/// A path within the image, without slashes at its ends. The reason is returned if it is none.
pub(super) fn inside(path: &str) -> Result<String, String> {
    let parts: Vec<&str> = path.split('/').filter(|part| !matches!(*part, "" | ".")).collect();
    if parts.iter().any(|part| *part == ".." || part.starts_with(WHITEOUT) || part.contains(['\0', '\n'])) {
        return Err(format!("the path {path:?} cannot be in an image"));
    }
    Ok(parts.join("/"))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn archive(entries: &[(&str, EntryType, &str)]) -> Vec<u8> {
        let mut tar = Builder::new(Vec::new());
        for (path, kind, content) in entries {
            let mut header = Header::new_gnu();
            header.set_entry_type(*kind);
            header.set_mode(0o6755);
            let is_link = matches!(kind, EntryType::Symlink | EntryType::Link);
            header.set_size(if is_link { 0 } else { content.len() as u64 });
            // The crate refuses bad paths in archives that it writes.
            header.as_old_mut().name[..path.len()].copy_from_slice(path.as_bytes());
            if is_link {
                header.as_old_mut().linkname[..content.len()].copy_from_slice(content.as_bytes());
            }
            header.set_cksum();
            tar.append(&header, if is_link { "" } else { content }.as_bytes()).unwrap();
        }
        tar.into_inner().unwrap()
    }

    #[test]
    fn archives_cannot_leave_the_image() {
        for (entries, expected) in [
            (&[("../x", EntryType::Regular, "")][..], "cannot be in an image"),
            (&[("a/../../x", EntryType::Regular, "")][..], "cannot be in an image"),
            (&[("a/.wh.b", EntryType::Regular, "")][..], "cannot be in an image"),
            (&[("dev", EntryType::Char, "")][..], "is no file, folder or link"),
            (&[("a", EntryType::Link, "etc/shadow")][..], "does not come before it"),
        ] {
            let error = Layer::default().add_tar(archive(entries).as_slice()).unwrap_err();
            assert!(error.contains(expected), "{entries:?}: {error}");
        }
        let mut layer = Layer::default();
        layer
            .add_tar(
                archive(&[("a", EntryType::Symlink, "/etc"), ("a/b", EntryType::Regular, "x")]).as_slice(),
            )
            .unwrap();
        let folder = tempfile::tempdir().unwrap();
        let error = layer.write(&folder.path().join("x.tar")).unwrap_err().to_string();
        assert!(error.contains("a/b is below a"), "{error}");
        assert!(Layer::default().add_tar(&archive(&[("a", EntryType::Regular, "abc")])[..514]).is_err());
    }

    #[test]
    fn equal_layers_are_equal_bytes_without_special_modes() {
        let (folder, mut written) = (tempfile::tempdir().unwrap(), Vec::new());
        let entries = [
            ("./usr/bin/a", EntryType::Regular, "1"),
            ("/etc/b", EntryType::Symlink, "a"),
            ("doc/c", EntryType::Regular, ""),
        ];
        for order in [[0, 1, 2], [2, 1, 0]] {
            let mut layer = Layer::default();
            layer.add_tar(archive(&order.map(|at| entries[at])).as_slice()).unwrap();
            layer.remove("/doc");
            let path = folder.path().join("layer.tar");
            layer.write(&path).unwrap();
            written.push(std::fs::read(path).unwrap());
        }
        assert_eq!(written[0], written[1]);
        let mut read = Archive::new(written[0].as_slice());
        let found: Vec<_> = read
            .entries()
            .unwrap()
            .map(|entry| {
                let entry = entry.unwrap();
                (entry.path().unwrap().display().to_string(), entry.header().mode().unwrap())
            })
            .collect();
        let expected =
            [("etc/", 0o755), ("etc/b", 0o755), ("usr/", 0o755), ("usr/bin/", 0o755), ("usr/bin/a", 0o755)];
        assert_eq!(found, expected.map(|(path, mode)| (path.to_owned(), mode)));
    }
}
