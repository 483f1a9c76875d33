//! Berth's rule by itself, as a scheduler.

use berth_packing::fleet::Fleet;
use berth_packing::mix::Mix;
use berth_packing::node::{FreeNode, GpuPositions};
use berth_packing::request::{GpuAsk, Request};
use berth_packing::score::Rule;

use super::ranked::{IMPOSSIBLE, Judge};

/// Learns the mix as it goes.
pub(crate) struct Berth {
    mix: Mix,
    fleet: Fleet,
    rule: Rule,
}

impl Berth {
    pub(crate) fn new(fleet: Fleet) -> Self {
        let mix = Mix::default();
        let rule = Rule::new(&mix, &fleet);
        Self { mix, fleet, rule }
    }
}

impl Judge for Berth {
    fn arrived(&mut self, request: &Request) -> bool {
        let changed = self.mix.observe(request);
        if changed {
            self.rule = Rule::new(&self.mix, &self.fleet);
        }
        changed
    }

    fn cost(&self, node: &FreeNode, request: &Request) -> i64 {
        self.rule.judge(node, request).map_or(IMPOSSIBLE, |choice| choice.cost_micro)
    }

    fn gpus(&mut self, node: &FreeNode, request: &Request) -> GpuPositions {
        match request.gpus {
            GpuAsk::None => GpuPositions::new(),
            GpuAsk::Whole(count) => node.first_wholes(count),
            GpuAsk::Share(_) => {
                self.rule.judge(node, request).and_then(|choice| choice.gpu).into_iter().collect()
            }
        }
    }
}
