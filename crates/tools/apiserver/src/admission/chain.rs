//! The order of steps between a decoded object and the store: managed fields, mutating plugins and webhooks, what
//! the kind itself does, validation, validating plugins and webhooks, quotas.

use jiff::Timestamp;
use serde_json::Value;

use super::webhook::Webhooks;
use super::{Operation, Request, View, quota};
use crate::defaults;
use crate::patch::{self, Write};
use crate::status::Status;
use crate::validate;

#[derive(Clone, Debug)]
pub struct Admitted {
    pub object: Value,
    /// Quotas with a new `status.used`, to be written with the object.
    pub quotas: Vec<Value>,
    pub warnings: Vec<String>,
}

/// Admits a create or update of a decoded object with defaults, uid and creation time. `manager` is the field
/// manager; `None` after a patch, which has recorded it already.
///
/// # Errors
///
/// With the real server's refusal.
pub async fn admit<V: View + Sync>(
    request: &Request<'_>,
    mut object: Value,
    manager: Option<&str>,
    view: &V,
    webhooks: &Webhooks,
    now: Timestamp,
) -> Result<Admitted, Status> {
    if let Some(field_manager) = manager {
        let Request { kind, subresource, .. } = *request;
        let write = Write { kind, subresource, field_manager, now };
        patch::record(&write, request.old, &mut object);
    }
    super::mutate(request, &mut object, view)?;
    let mut warnings = webhooks.mutate(request, &mut object, view).await?;
    match (request.operation, request.old) {
        (Operation::Update, Some(old)) => {
            defaults::prepare_update(request.kind, request.subresource, old, &mut object);
            validate::update(request.kind, request.subresource, old, &object)?;
        }
        _ => {
            defaults::prepare_create(request.kind, &mut object);
            validate::create(request.kind, &object)?;
        }
    }
    super::validate(request, &object, view)?;
    warnings.extend(webhooks.validate(request, Some(&object), view).await?);
    let quotas = quota::charge(request, &object, view, now)?;
    Ok(Admitted { object, quotas, warnings })
}
