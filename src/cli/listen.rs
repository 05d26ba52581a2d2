//! Addresses to listen on.

use std::net::SocketAddr;

/// The address to listen on.
#[derive(Debug, Clone, Copy)]
pub(super) struct Listen(pub(super) Option<SocketAddr>);

pub(super) fn address(text: &str) -> Result<Listen, String> {
    if text == "0" {
        return Ok(Listen(None));
    }
    // Like in other components, a port alone means all addresses of this machine.
    let text = if text.starts_with(':') { format!("0.0.0.0{text}") } else { text.to_owned() };
    text.parse().map(|address| Listen(Some(address))).map_err(|_| {
        "an IP address and a port, such as 0.0.0.0:8080 or [::]:8080; or 0 for nowhere".to_owned()
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn addresses_to_listen_on_are_parsed() {
        assert!(address("0").is_ok_and(|a| a.0.is_none()));
        assert_eq!(address(":8080").unwrap().0, Some(([0, 0, 0, 0], 8080).into()));
        assert!(address("[::1]:80").is_ok() && address("localhost").is_err() && address("8080").is_err());
    }
}
