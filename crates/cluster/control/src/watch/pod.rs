//! Pods of a list or watch that are decoded only if something changed that scheduling reads; see [`Outline`].

use std::borrow::Cow;

use berth_protobuf::Malformed;
use k8s_openapi::api::core::v1::Pod;
use k8s_openapi::apimachinery::pkg::apis::meta::v1::ObjectMeta;
use kube::Resource;
use serde::de::Error as _;
use serde::{Deserialize, Deserializer};
use serde_json::value::RawValue;

use super::guard::{Guarded, Unreadable};
use super::kinds::seen_pod;
use super::outline::{self, Outline};
use super::{SchedulerNames, Watched, protobuf};
use crate::core::SeenPod;

/// A pod of a list or of a watch.
#[derive(Clone, Debug)]
pub(super) enum RawPod {
    Json(Box<Guarded<Pod>>),
    Protobuf { names: Box<ObjectMeta>, message: Vec<u8> },
}

impl<'de> Deserialize<'de> for RawPod {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        let text = Box::<RawValue>::deserialize(deserializer)?;
        let Some(message) = protobuf::message(text.get()) else {
            let read = Guarded::read(text.get()).map_err(D::Error::custom)?;
            return Ok(Self::Json(Box::new(read)));
        };
        Ok(match outline::names(&message) {
            Ok(names) => Self::Protobuf { names: Box::new(names), message },
            Err(error) => {
                let (problem, metadata) = (error.to_string(), ObjectMeta::default());
                Self::Json(Box::new(Guarded(Err(Unreadable { problem, metadata }))))
            }
        })
    }
}

impl Resource for RawPod {
    type DynamicType = ();
    type Scope = <Pod as Resource>::Scope;

    fn kind((): &()) -> Cow<'_, str> {
        Pod::kind(&())
    }

    fn group((): &()) -> Cow<'_, str> {
        Pod::group(&())
    }

    fn version((): &()) -> Cow<'_, str> {
        Pod::version(&())
    }

    fn plural((): &()) -> Cow<'_, str> {
        Pod::plural(&())
    }

    fn meta(&self) -> &ObjectMeta {
        match self {
            Self::Json(pod) => pod.meta(),
            Self::Protobuf { names, .. } => names,
        }
    }

    fn meta_mut(&mut self) -> &mut ObjectMeta {
        match self {
            Self::Json(pod) => pod.meta_mut(),
            Self::Protobuf { names, .. } => names,
        }
    }
}

impl Watched for RawPod {
    type Object = UnreadPod;

    fn object(self) -> Result<UnreadPod, String> {
        match self {
            Self::Json(pod) => pod.object().map(|pod| UnreadPod::Whole(Box::new(pod))),
            Self::Protobuf { message, .. } => Ok(UnreadPod::Message(message)),
        }
    }
}

/// A pod of which not more is known than its name.
#[derive(Clone, Debug)]
pub enum UnreadPod {
    /// All of it: JSON shows nothing at a glance.
    Whole(Box<Pod>),
    /// Its message.
    Message(Vec<u8>),
}

impl UnreadPod {
    /// The pod as the core wants it. `known` gives the pod of a UID as it was seen last: of what is like that,
    /// nothing is read.
    ///
    /// # Errors
    /// When it cannot be read, or the API server would have rejected it.
    pub fn read<'a>(
        &self,
        known: impl FnOnce(&str) -> Option<&'a SeenPod>,
        names: &SchedulerNames,
    ) -> Result<SeenPod, String> {
        let message = match self {
            Self::Whole(pod) => return seen_pod(pod, names),
            Self::Message(message) => message,
        };
        let outline = Outline::of(message).map_err(|error| unread(message, &error))?;
        if let Some(seen) = known(outline.uid).and_then(|known| outline.onto(known)) {
            return Ok(seen);
        }
        let pod: Pod =
            berth_protobuf::from_message(message).map_err(|error| unread(message, &error))?;
        Ok(SeenPod { outline: outline.rest, ..seen_pod(&pod, names)? })
    }
}

/// Which pod cannot be read, and why.
fn unread(message: &[u8], error: &Malformed) -> String {
    match outline::names(message) {
        Ok(ObjectMeta { namespace: Some(namespace), name: Some(name), .. }) => {
            format!("Pod {namespace}/{name}: {error}")
        }
        _ => format!("a Pod that cannot be named: {error}"),
    }
}
