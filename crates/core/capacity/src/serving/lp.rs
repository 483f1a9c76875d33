//! Linear programs: least cost under lower-bound constraints.
//!
//! The dual simplex method on a dictionary: each basic variable as a sum over the others. All costs
//! are at least zero, so the start is dual feasible, and one more constraint is one more row. Plain
//! IEEE arithmetic in a fixed order: the same program gives the same answer everywhere.

/// What counts as zero. Coefficients are scaled to be near one.
const EPSILON: f64 = 1e-9;

/// Limit of pivots per solution; programs of this size take a few hundred.
const PIVOTS_MAX: usize = 20_000;

/// A variable: those of the program first, then one for each constraint.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
struct Variable(usize);

/// A basic variable as a constant and a sum over the non-basic variables.
#[derive(Debug, Clone)]
struct Row {
    variable: Variable,
    constant: f64,
    coefficients: Vec<f64>,
}

/// A program in the course of its solution.
#[derive(Debug, Clone)]
pub(super) struct Program {
    variables: usize,
    /// The non-basic variables, column by column.
    columns: Vec<Variable>,
    costs: Vec<f64>,
    value: f64,
    rows: Vec<Row>,
    next: usize,
}

#[derive(Debug, Clone, Copy, PartialEq)]
pub(super) enum Solved {
    Optimal(f64),
    /// No values meet all constraints.
    Infeasible,
    /// The limit of pivots was reached.
    Unknown,
}

impl Program {
    /// Variables of at least zero with these costs, each at least zero.
    pub(super) fn new(costs: Vec<f64>) -> Self {
        let variables = costs.len();
        let columns = (0..variables).map(Variable).collect();
        Self { variables, columns, costs, value: 0.0, rows: Vec::new(), next: variables }
    }

    /// Adds the constraint that the sum of the variables times their coefficients is at least
    /// `least`. Only before the first solution.
    pub(super) fn at_least(&mut self, coefficients: Vec<f64>, least: f64) {
        let variable = self.slack();
        self.rows.push(Row { variable, constant: -least, coefficients });
    }

    /// Adds a lower or upper bound of one variable.
    pub(super) fn bound(&mut self, variable: usize, bound: f64, at_least: bool) {
        let sign = if at_least { 1.0 } else { -1.0 };
        let mut row = match self.rows.iter().find(|row| row.variable == Variable(variable)) {
            Some(row) => row.clone(),
            None => {
                let own = |column: &Variable| if column.0 == variable { 1.0 } else { 0.0 };
                let coefficients = self.columns.iter().map(own).collect();
                Row { variable: Variable(variable), constant: 0.0, coefficients }
            }
        };
        row.variable = self.slack();
        row.constant = sign * (row.constant - bound);
        row.coefficients.iter_mut().for_each(|c| *c *= sign);
        self.rows.push(row);
    }

    pub(super) fn values(&self) -> Vec<f64> {
        let mut values = vec![0.0; self.variables];
        for row in &self.rows {
            if let Some(value) = values.get_mut(row.variable.0) {
                *value = row.constant.max(0.0);
            }
        }
        values
    }

    /// Pivots until all constraints are met.
    pub(super) fn solve(&mut self) -> Solved {
        for _ in 0..PIVOTS_MAX {
            let Some(row) = self.most_violated() else { return Solved::Optimal(self.value) };
            let Some(column) = self.entering(row) else { return Solved::Infeasible };
            self.pivot(row, column);
        }
        Solved::Unknown
    }

    fn slack(&mut self) -> Variable {
        self.next += 1;
        Variable(self.next - 1)
    }

    fn most_violated(&self) -> Option<usize> {
        let mut worst: Option<(f64, Variable, usize)> = None;
        for (at, row) in self.rows.iter().enumerate().filter(|(_, r)| r.constant < -EPSILON) {
            let rank = (row.constant, row.variable);
            if worst.is_none_or(|(least, variable, _)| rank < (least, variable)) {
                worst = Some((row.constant, row.variable, at));
            }
        }
        worst.map(|(_, _, at)| at)
    }

    /// The column that keeps all costs at least zero; of equals the first variable.
    fn entering(&self, row: usize) -> Option<usize> {
        let mut best: Option<(f64, Variable, usize)> = None;
        let coefficients = &self.rows[row].coefficients;
        for (at, coefficient) in coefficients.iter().enumerate().filter(|(_, c)| **c > EPSILON) {
            let ratio = self.costs[at] / coefficient;
            let rank = (ratio, self.columns[at]);
            if best.is_none_or(|(least, variable, _)| rank < (least, variable)) {
                best = Some((ratio, self.columns[at], at));
            }
        }
        best.map(|(_, _, at)| at)
    }

    /// Exchanges a basic variable for a non-basic one.
    fn pivot(&mut self, row: usize, column: usize) {
        let pivot = self.rows[row].coefficients[column];
        let leaving = self.rows[row].variable;
        // The row, solved for the entering variable.
        let mut solved = self.rows[row].clone();
        solved.variable = self.columns[column];
        solved.constant = -solved.constant / pivot;
        for (at, c) in solved.coefficients.iter_mut().enumerate() {
            *c = if at == column { 1.0 / pivot } else { -*c / pivot };
        }
        let substitute = |constant: &mut f64, coefficients: &mut [f64]| {
            let factor = coefficients[column];
            if factor == 0.0 {
                return;
            }
            coefficients[column] = 0.0;
            *constant += factor * solved.constant;
            for (c, s) in coefficients.iter_mut().zip(&solved.coefficients) {
                *c += factor * s;
            }
        };
        for (_, other) in self.rows.iter_mut().enumerate().filter(|(at, _)| *at != row) {
            substitute(&mut other.constant, &mut other.coefficients);
        }
        substitute(&mut self.value, &mut self.costs);
        // Rounding may leave a cost a little below zero.
        self.costs.iter_mut().for_each(|c| *c = c.max(0.0));
        self.rows[row] = solved;
        self.columns[column] = leaving;
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn small_programs_have_the_solution_of_a_drawing() {
        // Least 2x + 3y with x + y >= 4 and x + 3y >= 6: the corner at (3, 1).
        let mut program = Program::new(vec![2.0, 3.0]);
        program.at_least(vec![1.0, 1.0], 4.0);
        program.at_least(vec![1.0, 3.0], 6.0);
        let costs = |program: &mut Program, exact: f64| match program.solve() {
            Solved::Optimal(value) => assert!((value - exact).abs() < 1e-9, "{value}"),
            other => panic!("{other:?}"),
        };
        costs(&mut program, 9.0);
        assert!(program.values().iter().zip([3.0, 1.0]).all(|(v, exact)| (v - exact).abs() < 1e-9));
        // And with x at most 2, the corner at (2, 2).
        program.bound(0, 2.0, false);
        costs(&mut program, 10.0);
        program.bound(1, 3.0, true);
        costs(&mut program, 11.0);
        program.bound(1, 2.0, false);
        assert_eq!(program.solve(), Solved::Infeasible);
    }
}
