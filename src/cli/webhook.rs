//! The flags of the conversion webhook.

use std::net::SocketAddr;
use std::sync::Arc;

use tokio::net::TcpListener;

use crate::manager::{Webhook, WebhookAddress};

/// Where the conversion webhook is served, and where API servers find it.
#[derive(Debug, clap::Args)]
#[command(next_help_heading = "Conversion webhook")]
#[expect(clippy::struct_field_names, reason = "clap takes the names for those of the arguments")]
pub(super) struct WebhookArgs {
    /// Address of the webhook that converts instances between versions of their CRD (HTTPS); 0 disables it
    #[arg(long = "webhook-listen", value_name = "ADDRESS", default_value = "0", value_parser = super::listen::address)]
    webhook_listen: super::listen::Listen,

    /// Where API servers find it: a Service in the cluster
    #[arg(
        long = "webhook-service", value_name = "NAMESPACE/NAME[:PORT]", value_parser = WebhookAddress::service,
        conflicts_with = "webhook_url"
    )]
    webhook_service: Option<WebhookAddress>,

    /// Where API servers find it: a URL of a host and port [default: --webhook-listen]
    #[arg(long = "webhook-url", value_name = "URL", value_parser = WebhookAddress::url)]
    webhook_url: Option<WebhookAddress>,
}

impl WebhookArgs {
    /// Checks the flags for contradictions.
    pub(super) fn check(&self) -> Result<(), String> {
        let is_given = self.webhook_service.is_some() || self.webhook_url.is_some();
        match self.webhook_listen.0 {
            None if is_given => Err("--webhook-service and --webhook-url need --webhook-listen".to_owned()),
            Some(address) if address.ip().is_unspecified() && !is_given => Err(format!(
                "--webhook-listen {address}: say with --webhook-service or --webhook-url where API servers find it"
            )),
            _ => Ok(()),
        }
    }

    /// Listens, if a webhook is wanted.
    ///
    /// # Errors
    /// The address cannot be listened on.
    pub(super) async fn bind(
        &self,
        namespace: &str,
        lease: &str,
    ) -> Result<Option<(Arc<Webhook>, TcpListener)>, String> {
        let Some(listen) = self.webhook_listen.0 else { return Ok(None) };
        let given = self.webhook_service.clone().or_else(|| self.webhook_url.clone());
        bind(listen, given, namespace, lease).await.map(Some)
    }
}

/// Listens at an address; API servers use that one if no other is given.
///
/// # Errors
/// The address cannot be listened on.
pub(super) async fn bind(
    listen: SocketAddr,
    given: Option<WebhookAddress>,
    namespace: &str,
    lease: &str,
) -> Result<(Arc<Webhook>, TcpListener), String> {
    let failed = |error: std::io::Error| format!("--webhook-listen {listen}: {error}");
    let listener = TcpListener::bind(listen).await.map_err(failed)?;
    let local = listener.local_addr().map_err(failed)?;
    let address = match given {
        Some(address) => address,
        None => WebhookAddress::url(&format!("https://{local}"))?,
    };
    Ok((Webhook::new(address, namespace, lease), listener))
}
