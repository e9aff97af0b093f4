#pragma once

#include "results/report/report.hpp"

namespace isobar::cli {

/// The parts of a report's page (results/report/, plotly.js), which are embedded in this program.
results::PageParts page_parts();

}  // namespace isobar::cli
