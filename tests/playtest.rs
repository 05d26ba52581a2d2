#[test]
fn play() {
    let (package, _) = operetta::package::load(std::path::Path::new("operators/webapp")).unwrap();
    let object = serde_json::json!({"apiVersion": "apps.operetta.dev/v1alpha1", "kind": "WebApp", "metadata": {"name": "one", "namespace": "default"}, "spec": {"image": "nginx", "replicas": 2}});
    let package = std::sync::Arc::new(package);
    for _ in 0..2 {
        let runtime = tokio::runtime::Builder::new_current_thread().enable_all().start_paused(true).build().unwrap();
        runtime.block_on(operetta::play::play(vec![package.clone()], vec![object.clone()]));
    }
}
