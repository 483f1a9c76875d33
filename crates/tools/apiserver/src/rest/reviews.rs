//! Authentication, authorization and token reviews, and authorization of requests.

use http::Response;
use serde_json::{Value, json};

use super::Call;
use super::path::Place;
use super::respond::{self, Body};
use crate::identity::{self, AUDIENCE, User};
use crate::kinds::Resource;
use crate::rbac::{self, AccessDecision, AccessRequest};
use crate::server::{Authorization, Server};
use crate::status::{FieldError, Status};
use crate::{clock, rest};

const TOKEN_SECONDS_MIN: i64 = 600;
const TOKEN_SECONDS: i64 = 3600;
const TOKEN_SECONDS_MAX: i64 = 1 << 32;

pub(crate) fn review(
    server: &Server,
    place: &Place,
    call: &Call,
) -> Result<Response<Body>, Status> {
    let (sent, warnings) = rest::rules::decode(&place.kind, call)?;
    let spec = &sent["spec"];
    let status = match &*place.kind.resource.plural {
        "selfsubjectreviews" => {
            let answer = json!({
                "metadata": {"creationTimestamp": clock::now()},
                "status": {"userInfo": identity::user_info(&call.user)},
            });
            return Ok(respond::value(201, &place.kind, &answer));
        }
        "tokenreviews" => token_review(server, spec),
        "selfsubjectaccessreviews" => access(server, &call.user, &asked(spec, place)),
        "subjectaccessreviews" | "localsubjectaccessreviews" => {
            access(server, &subject(spec, place)?, &asked(spec, place))
        }
        "selfsubjectrulesreviews" => json!({
            "resourceRules": [],
            "nonResourceRules": [],
            "incomplete": true,
            "evaluationError": "listing all rules is not supported here; ask for one with a SelfSubjectAccessReview",
        }),
        _ => return Err(Status::no_such_path()),
    };
    let mut answer = sent;
    rest::rules::record(place, call, &mut answer);
    answer["status"] = status;
    Ok(respond::with_warnings(respond::value(201, &place.kind, &answer), &warnings))
}

fn token_review(server: &Server, spec: &Value) -> Value {
    let token = spec["token"].as_str().unwrap_or_default();
    let wanted: Vec<&str> =
        spec["audiences"].as_array().into_iter().flatten().filter_map(Value::as_str).collect();
    let Some(recognised) = server.tokens.recognise(&server.store, token) else {
        return json!({"user": {}, "error": "invalid bearer token"});
    };
    let audiences: Vec<&str> = recognised
        .audiences
        .iter()
        .map(String::as_str)
        .filter(|audience| wanted.is_empty() || wanted.contains(audience))
        .collect();
    if audiences.is_empty() {
        return json!({"user": {}, "error": "[invalid bearer token, token audiences do not match]"});
    }
    json!({
        "authenticated": true,
        "user": identity::user_info(&recognised.user),
        "audiences": audiences,
    })
}

/// What the spec of an access review asks about.
fn asked(spec: &Value, place: &Place) -> AccessRequest {
    let text = |value: &Value| value.as_str().unwrap_or_default().to_owned();
    let path = &spec["nonResourceAttributes"];
    if path.is_object() {
        return AccessRequest {
            verb: text(&path["verb"]),
            path: text(&path["path"]),
            ..AccessRequest::default()
        };
    }
    let resource = &spec["resourceAttributes"];
    let local = &*place.kind.resource.plural == "localsubjectaccessreviews";
    AccessRequest {
        verb: text(&resource["verb"]),
        path: String::new(),
        group: text(&resource["group"]),
        plural: text(&resource["resource"]),
        subresource: text(&resource["subresource"]),
        namespace: if local { place.namespace.clone() } else { text(&resource["namespace"]) },
        name: text(&resource["name"]),
    }
}

fn subject(spec: &Value, place: &Place) -> Result<User, Status> {
    let groups: Vec<String> = spec["groups"]
        .as_array()
        .into_iter()
        .flatten()
        .filter_map(Value::as_str)
        .map(str::to_owned)
        .collect();
    let name = spec["user"].as_str().unwrap_or_default().to_owned();
    if name.is_empty() && groups.is_empty() {
        let error = FieldError::invalid(
            "spec.user",
            &Value::from(""),
            "at least one of user or group must be specified",
        );
        // The real server leaves the kind out here.
        return Err(Status::invalid(&place.kind.resource.group, "", "", &[error]));
    }
    Ok(User { name, groups, ..User::default() })
}

fn access(server: &Server, user: &User, asked: &AccessRequest) -> Value {
    let verdict = verdict(server, user, asked);
    let mut status = json!({"allowed": verdict.allowed});
    if !verdict.reason.is_empty() {
        status["reason"] = Value::from(verdict.reason);
    }
    status
}

pub(crate) fn verdict(server: &Server, user: &User, asked: &AccessRequest) -> AccessDecision {
    match server.options.authorization {
        Authorization::AlwaysAllow => AccessDecision { allowed: true, reason: String::new() },
        Authorization::Rbac | Authorization::RbacWithToken => {
            rbac::decide(&server.store, user, asked)
        }
    }
}

pub(crate) fn token(server: &Server, place: &Place, call: &Call) -> Result<Response<Body>, Status> {
    let account = rest::read::find(server, place)?;
    let request = call.object()?;
    let spec = &request["spec"];
    let seconds = spec["expirationSeconds"].as_i64().unwrap_or(TOKEN_SECONDS);
    let field = "spec.expirationSeconds";
    let given = Value::from(seconds);
    let problem = if seconds < TOKEN_SECONDS_MIN {
        Some(FieldError::invalid(field, &given, "may not specify a duration less than 10 minutes"))
    } else if seconds > TOKEN_SECONDS_MAX {
        Some(FieldError::invalid(
            field,
            &given,
            "may not specify a duration larger than 2^32 seconds",
        ))
    } else {
        None
    };
    if let Some(error) = problem {
        return Err(Status::invalid("authentication.k8s.io", "TokenRequest", "", &[error]));
    }
    let mut audiences: Vec<String> = spec["audiences"]
        .as_array()
        .into_iter()
        .flatten()
        .filter_map(Value::as_str)
        .map(str::to_owned)
        .collect();
    if audiences.is_empty() {
        audiences.push(AUDIENCE.to_owned());
    }
    let (token, expires) = server.tokens.issue(&account.value, audiences.clone(), seconds)?;
    let mut answered_spec = json!({"audiences": audiences, "expirationSeconds": seconds});
    answered_spec["boundObjectRef"] = spec["boundObjectRef"].clone();
    let answer = json!({
        "kind": "TokenRequest",
        "apiVersion": "authentication.k8s.io/v1",
        "metadata": {
            "name": place.name,
            "namespace": place.namespace,
            "creationTimestamp": clock::now(),
        },
        "spec": answered_spec,
        "status": {"token": token, "expirationTimestamp": clock::format(expires)},
    });
    Ok(respond::json(201, &answer))
}

/// What a request asks for, in the terms of roles.
pub(crate) fn asked_by(call: &Call) -> AccessRequest {
    let Some(names) = rest::path::Names::parse(&call.path) else {
        return AccessRequest {
            verb: call.method.as_str().to_lowercase(),
            path: call.path.clone(),
            ..AccessRequest::default()
        };
    };
    let one = !names.name.is_empty();
    let verb = match call.method.as_str() {
        "GET" | "HEAD" if one => "get",
        "GET" | "HEAD" if call.query.flag("watch") => "watch",
        "GET" | "HEAD" => "list",
        "POST" => "create",
        "PUT" => "update",
        "PATCH" => "patch",
        "DELETE" if one => "delete",
        "DELETE" => "deletecollection",
        other => other,
    };
    AccessRequest {
        verb: verb.to_owned(),
        path: String::new(),
        group: names.group,
        plural: names.plural,
        subresource: names.subresource,
        namespace: names.namespace,
        name: names.name,
    }
}

pub(crate) fn authorize(server: &Server, call: &Call) -> Result<(), Status> {
    if server.options.authorization == Authorization::AlwaysAllow {
        return Ok(());
    }
    let mut asked = asked_by(call);
    // For RBAC a namespace is inside itself.
    if asked.plural == "namespaces" && asked.group.is_empty() && asked.namespace.is_empty() {
        asked.namespace.clone_from(&asked.name);
    }
    if is_public(&asked) {
        return Ok(());
    }
    let verdict = rbac::decide(&server.store, &call.user, &asked);
    if verdict.allowed {
        return Ok(());
    }
    let mut why = asked.refusal(&call.user);
    if !verdict.reason.is_empty() {
        why = format!("{why}: {}", verdict.reason);
    }
    let resource = Resource::new(&asked.group, &asked.plural);
    Err(Status::forbidden(&resource, &asked.name, why))
}

/// Health and the version need no permission, as with a real server's default.
fn is_public(asked: &AccessRequest) -> bool {
    let healthy = ["/healthz", "/livez", "/readyz", "/version"];
    asked.verb == "get" && healthy.iter().any(|path| asked.path == *path)
}
