//! The worlds of webapp and flight-ticket.

use std::time::Duration;

use serde_json::json;

use super::*;

#[test]
fn bookings_are_made_once_changed_and_cancelled() {
    let mut play = Play::package("flight-ticket");
    let (url, none) = ("http://127.0.0.1:8080/bookings", Value::Null);
    assert_eq!(play.answer("GET", url, &none), (200, json!([])));
    assert_eq!(play.answer("GET", &format!("{url}/by-reference/r"), &none).0, 404);
    let order = json!({"reference": "r", "order": {"from": "Mumbai", "seats": 2}});
    let booked = json!({"number": "B00001", "reference": "r", "order": {"from": "Mumbai", "seats": 2}, "state": "booked"});
    for _ in 0..2 {
        let reply = play.call("POST", url, "key", &order).unwrap();
        assert_eq!(
            (reply.status, serde_json::from_slice::<Value>(&reply.body).unwrap()),
            (201, booked.clone())
        );
    }
    assert_eq!(play.call("POST", url, "other", &order).unwrap().status, 409);
    assert_eq!(play.answer("POST", url, &json!({"reference": "r"})).0, 400);
    assert_eq!(play.answer("GET", &format!("{url}/by-reference/r"), &none), (200, booked.clone()));
    assert_eq!(play.answer("GET", &format!("{url}/B00001"), &none), (200, booked));
    let (status, changed) = play.answer("PUT", &format!("{url}/B00001"), &json!({"order": {"seats": 3}}));
    assert_eq!((status, &changed["order"]["seats"]), (200, &json!(3)));
    assert_eq!(play.answer("POST", "http://127.0.0.1:8080/admin/cancel/B00001", &none).0, 200);
    assert_eq!(play.answer("GET", &format!("{url}/by-reference/r"), &none).1["state"], "cancelled");
    for method in ["PUT", "DELETE"] {
        assert_eq!(play.answer(method, &format!("{url}/B00001"), &none).0, 410);
        assert_eq!(play.answer(method, &format!("{url}/B00002"), &none).0, 404);
    }
    assert_eq!(
        play.call("POST", url, "third", &order).unwrap().status,
        201,
        "the cancelled one does not count"
    );
    assert_eq!(play.answer("DELETE", &format!("{url}/B00002"), &none).1["state"], "cancelled");
    assert_eq!(play.world.faults(), []);
}

#[test]
fn images_decide_what_a_web_application_does() {
    let mut play = Play::package("webapp");
    let mut start = |tag: &str| {
        let mut pod = pod(tag);
        pod["metadata"]["labels"] =
            json!({"operetta.dev/kind": "WebApp.apps.operetta.dev", "operetta.dev/instance": "hello"});
        pod["spec"]["containers"] =
            json!([{"name": "web", "image": format!("r.io/shop:{tag}"), "ports": [{"containerPort": 80}]}]);
        (play.start(&pod), play.world.log(&pod, "web", &play.objects))
    };
    let (course, log) = start("1.2");
    assert_eq!((course.ready_after, &*log), (Some(Duration::from_secs(2)), "listening on 80\n"));
    let (course, log) = start("broken");
    assert_eq!((course.exit_code, course.ready_after), (1, None));
    assert!(log.starts_with("panic"));
    assert!(start("missing-1").0.message.contains("r.io/shop:missing-1"));
    assert_eq!(play.start(&pod("x")).ready_after, Some(Duration::from_secs(1)));
    assert_eq!(play.world.faults(), []);
}
