#pragma once

#include "core/plan/plan.hpp"

#include <optional>
#include <string>

namespace isobar {

/// Why a Program of the plan cannot keep its rules of transfers: "blocking needs …"; none if it can. A task waits for
/// two sends of the one before it at most, since an instruction has room for four waits.
std::optional<std::string> fault_of_transfers(const Plan& plan);

}  // namespace isobar
