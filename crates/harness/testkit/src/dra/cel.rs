//! Recorded selections: expressions, devices, and whether the real CEL selected them.
//!
//! Owns how such a line is read and compared. That both fail counts as the same; in which words is
//! not compared.

use berth_api::Lower;
use berth_cel::Program;
use berth_model::dra::slice::Device;
use k8s_openapi::api::resource::v1::{ResourcePool, ResourceSlice, ResourceSliceSpec};
use k8s_openapi::apimachinery::pkg::apis::meta::v1::ObjectMeta;

use super::schema::{OutcomeJson, SelectionJson};
use crate::vector::{CaseError, read};

/// One expression and some devices.
#[derive(Debug)]
pub struct Selection {
    /// The expression.
    pub expression: String,
    /// The driver of the devices.
    pub driver: String,
    /// Whether the real compiler refused it.
    pub refused: Option<String>,
    devices: Vec<Device>,
    outcomes: Vec<OutcomeJson>,
}

/// What comes of an expression for a device.
#[derive(Clone, Debug)]
pub struct SelectionResult {
    /// What was recorded: whether it matches, or the error.
    pub recorded: Result<bool, String>,
    /// What comes of it here.
    pub got: Result<bool, String>,
}

impl SelectionResult {
    /// Whether both match, both do not, or both fail.
    pub fn agree(&self) -> bool {
        self.recorded.as_ref().ok() == self.got.as_ref().ok()
    }
}

impl Selection {
    /// Reads one line of JSON.
    pub fn parse(line: &str) -> Result<Self, CaseError> {
        let json: SelectionJson = read(line)?;
        let slice = ResourceSlice {
            metadata: ObjectMeta { name: Some("slice".to_owned()), ..ObjectMeta::default() },
            spec: ResourceSliceSpec {
                driver: json.driver.clone(),
                pool: ResourcePool { name: "pool".to_owned(), ..ResourcePool::default() },
                devices: Some(json.devices),
                ..ResourceSliceSpec::default()
            },
        };
        let lowered = slice.lower().map_err(|error| CaseError {
            id: json.expression.clone(),
            field: "devices".to_owned(),
            problem: error.to_string(),
        })?;
        Ok(Self {
            expression: json.expression,
            driver: json.driver,
            refused: json.compile,
            devices: lowered.devices,
            outcomes: json.results,
        })
    }

    /// Evaluates the expression for all devices.
    pub fn evaluate(&self) -> Vec<SelectionResult> {
        let program = Program::compile(&self.expression);
        let pairs = self.devices.iter().zip(&self.outcomes);
        let evaluate = |(device, outcome): (&Device, &OutcomeJson)| SelectionResult {
            recorded: match (outcome.matches, &outcome.error) {
                (Some(matches), _) => Ok(matches),
                (None, error) => Err(error.clone().unwrap_or_default()),
            },
            got: match &program {
                Ok(program) => {
                    program.matches(&self.driver, device).map_err(|failure| failure.to_string())
                }
                Err(error) => Err(error.to_string()),
            },
        };
        pairs.map(evaluate).collect()
    }
}
