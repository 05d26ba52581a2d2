//! Plays: the embedded API and the real manager in one thread, in virtual time.

mod server;

use std::sync::Arc;
use std::time::Duration;

use operetta_embedded::Api;

use crate::cluster::Cluster;
use crate::manager::{Config, Manager};
use crate::package::Package;
use server::Server;

pub async fn play(packages: Vec<Arc<Package>>, objects: Vec<serde_json::Value>) {
    let began = std::time::Instant::now();
    crate::clock::set_virtual(server::beginning());
    let server = Server::start(Api::new(crate::clock::now()));
    eprintln!("api {:?}", began.elapsed());
    let cluster = Cluster::new(server.client());
    let manager = Manager::start(cluster.clone(), packages, Config::default()).await.unwrap();
    eprintln!("manager {:?} {:?}", began.elapsed(), manager.problems);
    let kinds = crate::cluster::Kinds::default();
    for object in objects {
        let gvk = crate::api::Gvk::new(object["apiVersion"].as_str().unwrap(), object["kind"].as_str().unwrap());
        let kind = kinds.find(&cluster, &gvk).await.unwrap().unwrap();
        cluster.apply(&kind, &object, "test", true).await.unwrap();
    }
    eprintln!("applied {:?}", began.elapsed());
    tokio::time::sleep(Duration::from_secs(60)).await;
    eprintln!("end {:?} {}", began.elapsed(), crate::clock::now());
    manager.stop().await;
    eprintln!("stopped {:?} {}", began.elapsed(), crate::clock::now());
    eprintln!("{}", server.dump());
}
