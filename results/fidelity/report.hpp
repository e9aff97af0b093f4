#pragma once

#include "results/fidelity/figures.hpp"
#include "results/table.hpp"

#include <string>
#include <vector>

namespace isobar::results {

/// The tables for people: a line for each role of each set, derived sets apart, and which rows have no prediction.
std::string fidelity_to_text(const std::vector<PredictedRow>& rows, const FidelityFigures& figures, TableWidth width);
/// The same in Markdown, with the ranks of each group.
std::string fidelity_to_markdown(const std::vector<PredictedRow>& rows, const FidelityFigures& figures);
/// Schema isobar-fidelity-result/1 (docs/formats/fidelity.md). `beyond`: of `beyond_limits`.
std::string fidelity_to_json(const std::vector<PredictedRow>& rows, const FidelityFigures& figures,
                             const std::vector<std::string>& beyond);
/// A line for each row, with its parts, in the order of the rows. Numbers have six significant digits.
std::string fidelity_to_csv(const std::vector<PredictedRow>& rows);

/// What a row's prediction consists of, for people: its parts, and the notes with the machine, the plan and constants.
std::string explanation_to_text(const PredictedRow& row);
/// The row as in `fidelity_to_json`, with its notes.
std::string explanation_to_json(const PredictedRow& row);

}  // namespace isobar::results
