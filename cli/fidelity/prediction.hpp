#pragma once

#include "results/fidelity/measured_row.hpp"
#include "results/fidelity/prediction.hpp"

#include <string>

namespace isobar::cli {

/// Predicts a measured run: as platform, workload and plan, which are simulated like any others. Equal replicas and the
/// shards of a stage are played once, where that gives the same step (schedules/lowering/fold.hpp); `unfolded` plays
/// all. What the row leaves open is chosen so that the step is least, among what fits into the devices.
///
/// A row that cannot be expressed is unsupported, with its reason. Can be called once per process.
///
/// `folder`: where to write the row's platform.xml, workload.yaml and plan.json, which `isobar verify` and `isobar
/// simulate` take; "": nowhere. It is made.
results::RowPrediction predict(const results::MeasuredRow& row, bool unfolded, const std::string& folder = "");

}  // namespace isobar::cli
