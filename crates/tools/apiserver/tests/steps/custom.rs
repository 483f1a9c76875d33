//! Requests about definitions, and about the custom resources that they define.

use serde_json::{Value, json};

use super::{delete, get, patch, post, put};
use crate::common::compare::Step;

const DEFINITIONS: &str = "/apis/apiextensions.k8s.io/v1/customresourcedefinitions";

fn definition() -> Value {
    json!({
        "apiVersion": "apiextensions.k8s.io/v1",
        "kind": "CustomResourceDefinition",
        "metadata": {"name": "ships.example.com"},
        "spec": {
            "group": "example.com",
            "scope": "Namespaced",
            "names": {"plural": "ships", "kind": "Ship", "shortNames": ["sh"]},
            "versions": [{
                "name": "v1",
                "served": true,
                "storage": true,
                "schema": {"openAPIV3Schema": {
                    "type": "object",
                    "properties": {
                        "spec": {"type": "object", "properties": {"size": {"type": "integer"}}},
                        "status": {"type": "object", "properties": {"docked": {"type": "boolean"}}},
                    },
                }},
                "subresources": {"status": {}},
            }],
        },
    })
}

pub(super) fn definitions() -> Vec<Step> {
    let ships = "/apis/example.com/v1/namespaces/default/ships";
    let ship = |size: i64| {
        json!({
            "apiVersion": "example.com/v1",
            "kind": "Ship",
            "metadata": {"name": "s"},
            "spec": {"size": size},
            "status": {"docked": true},
        })
    };
    vec![
        get("ships before there are any", ships),
        post("a definition", DEFINITIONS, definition()),
        post("the definition again", DEFINITIONS, definition()),
        Step::new("until it is served", "WAIT", ships),
        post("a ship", ships, ship(1)).keep("rv-ship", "/metadata/resourceVersion"),
        put("a ship without a revision", &format!("{ships}/s"), ship(2)),
        put("a larger ship", &format!("{ships}/s"), {
            let mut ship = ship(2);
            ship["metadata"]["resourceVersion"] = json!("${rv-ship}");
            ship
        }),
        patch("a docked ship", &format!("{ships}/s/status"), json!({"status": {"docked": true}})),
        patch("a strategic patch of a ship", &format!("{ships}/s"), json!({}))
            .content_type("application/strategic-merge-patch+json"),
        get("the ships", ships),
        delete("no more ship", &format!("{ships}/s")),
    ]
}

/// A definition whose schema says much.
fn demanding() -> Value {
    let crew = json!({
        "type": "object",
        "required": ["name"],
        "properties": {
            "name": {"type": "string"},
            "rank": {"type": "string", "enum": ["mate", "cook"], "default": "mate"},
        },
    });
    let spec = json!({
        "type": "object",
        "required": ["name"],
        "properties": {
            "name": {"type": "string", "minLength": 2, "maxLength": 8, "pattern": "^[a-z]+$"},
            "length": {"type": "number", "exclusiveMinimum": true, "minimum": 0, "maximum": 400.5},
            "decks": {"type": "integer", "format": "int32", "minimum": 1, "maximum": 9, "multipleOf": 3},
            "colour": {"type": "string", "enum": ["red", "blue"]},
            "sails": {"type": "boolean", "default": true},
            "port": {"x-kubernetes-int-or-string": true, "anyOf": [{"type": "integer"}, {"type": "string"}]},
            "crew": {
                "type": "array", "maxItems": 3, "items": crew,
                "x-kubernetes-list-type": "map", "x-kubernetes-list-map-keys": ["name"],
            },
            "flags": {
                "type": "array", "minItems": 1, "items": {"type": "string"},
                "x-kubernetes-list-type": "set",
            },
            "cargo": {
                "type": "object", "minProperties": 1, "maxProperties": 2,
                "additionalProperties": {"type": "integer", "minimum": 0},
            },
            "engine": {
                "type": "object",
                "properties": {"power": {"type": "integer"}, "fuel": {"type": "string"}},
                "oneOf": [{"required": ["power"]}, {"required": ["fuel"]}],
            },
            "berth": {"type": "string", "nullable": true},
            "notes": {"type": "object", "x-kubernetes-preserve-unknown-fields": true},
            "log": {"type": "object"},
            "size": {
                "type": "integer",
                "x-kubernetes-validations": [{"rule": "self % 2 == 0", "message": "must be even"}],
            },
            "draught": {"type": "number"},
            "home-port": {"type": "string"},
        },
        "x-kubernetes-validations": [
            {"rule": "!has(self.draught) || self.draught < 10.0"},
            {
                "rule": "!has(self.home__dash__port) || self.home__dash__port.startsWith('p')",
                "message": "must be a port", "fieldPath": ".home-port",
                "reason": "FieldValueForbidden",
            },
        ],
    });
    let mut definition = definition();
    definition["metadata"]["name"] = json!("boats.example.com");
    definition["spec"]["names"] = json!({"plural": "boats", "kind": "Boat"});
    definition["spec"]["versions"][0]["schema"]["openAPIV3Schema"]["properties"]["spec"] = spec;
    definition
}

pub(super) fn schemas() -> Vec<Step> {
    let boats = "/apis/example.com/v1/namespaces/default/boats";
    let boat = |spec: Value| {
        json!({
            "apiVersion": "example.com/v1",
            "kind": "Boat",
            "metadata": {"name": "b"},
            "spec": spec,
        })
    };
    let merged = |title, spec: Value| patch(title, &format!("{boats}/b"), json!({ "spec": spec }));
    let wrong = |title, field: &str, value: Value| {
        let mut spec = json!({"name": "ada"});
        spec[field] = value;
        post(title, boats, boat(spec))
    };
    vec![
        post("a definition that asks for much", DEFINITIONS, demanding()),
        Step::new("until boats are served", "WAIT", boats),
        post("a boat without a name of its own", boats, boat(json!({}))),
        wrong("a name that is a number", "name", json!(3)),
        wrong("a name that is null", "name", json!(null)),
        wrong("a name that is too short", "name", json!("a")),
        wrong("a name that is too long", "name", json!("abcdefghi")),
        wrong("a name of other letters", "name", json!("Ada")),
        wrong("a length of nothing", "length", json!(0)),
        wrong("a length that is too much", "length", json!(400.75)),
        wrong("a length in words", "length", json!("long")),
        wrong("no decks", "decks", json!(0)),
        wrong("too many decks", "decks", json!(12)),
        wrong("an odd number of decks", "decks", json!(4)),
        wrong("more decks than can be counted", "decks", json!(4_000_000_000_i64)),
        wrong("half a deck", "decks", json!(3.5)),
        wrong("decks in words", "decks", json!("three")),
        wrong("decks that are true", "decks", json!(true)),
        wrong("a colour that is not there", "colour", json!("green")),
        wrong("sails that are a list", "sails", json!([])),
        wrong("a port that is neither", "port", json!(true)),
        wrong(
            "too large a crew",
            "crew",
            json!([
                {"name": "a"}, {"name": "b"}, {"name": "c"}, {"name": "d"},
            ]),
        ),
        wrong("a crew of two of one name", "crew", json!([{"name": "a"}, {"name": "a"}])),
        wrong("a crew without a name", "crew", json!([{"rank": "cook"}])),
        wrong("a crew with a rank that is not there", "crew", json!([{"name": "a", "rank": "x"}])),
        wrong("no flags at all", "flags", json!([])),
        wrong("one flag three times", "flags", json!(["a", "b", "a", "a"])),
        wrong("no cargo at all", "cargo", json!({})),
        wrong("too much cargo", "cargo", json!({"a": 1, "b": 1, "c": 1})),
        wrong("less than no cargo", "cargo", json!({"a": -1})),
        wrong("cargo in words", "cargo", json!({"a": "much"})),
        wrong("an engine with both", "engine", json!({"power": 1, "fuel": "oil"})),
        wrong("an engine with neither", "engine", json!({})),
        wrong("an odd size", "size", json!(3)),
        wrong("too great a draught", "draught", json!(11)),
        wrong("a home that is no port", "home-port", json!("x")),
        post("a spec that is none", boats, boat(json!("x"))),
        post(
            "a boat with metadata of another type",
            boats,
            json!({
                "apiVersion": "example.com/v1", "kind": "Boat",
                "metadata": {"name": "b", "labels": {"a": 3}}, "spec": {"name": "ada"},
            }),
        ),
        post(
            "a boat with fields that nobody knows",
            boats,
            boat(json!({
                "name": "ada", "wings": 2, "crew": [{"name": "a", "age": 3}], "berth": null,
                "colour": null, "sails": null, "length": 12.0, "notes": {"any": {"thing": 1}},
                "log": {"any": "thing"}, "cargo": {"tea": 1}, "port": "bow",
            })),
        ),
        get("the boat", &format!("{boats}/b")),
        merged("a boat with another field that nobody knows", json!({"wings": 3, "decks": 3})),
        merged("a boat with a wrong colour", json!({"colour": "green"})),
        merged("a boat that loses its sails", json!({"sails": null})),
        patch(
            "a boat that docks nowhere",
            &format!("{boats}/b/status"),
            json!({
                "status": {"docked": "no"},
            }),
        ),
        patch(
            "a boat that docks",
            &format!("{boats}/b/status"),
            json!({
                "status": {"docked": true, "where": "here"},
            }),
        ),
        patch(
            "a boat that is applied",
            &format!("{boats}/b?fieldManager=me&force=true"),
            json!({
                "apiVersion": "example.com/v1", "kind": "Boat", "metadata": {"name": "b"},
                "spec": {"name": "ada", "decks": 10},
            }),
        )
        .content_type("application/apply-patch+yaml"),
        delete("no more boat", &format!("{boats}/b")),
    ]
}
