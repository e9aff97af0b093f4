#pragma once

#include <cstdint>
#include <optional>
#include <string>

namespace isobar {

struct Workload;

/// Parameters of all layers.
std::uint64_t all_parameters(const Workload& workload);

/// Parameters of the matrix that the model's head shares with its embedding, where each has its own here (tied: apart);
/// 0 for other workloads.
std::uint64_t matrix_of_head(const Workload& workload);

/// Both numbers of parameters of a workload with tied: apart, in one line that begins with the file's name; none for
/// others.
std::optional<std::string> note_of_head(const Workload& workload, const std::string& file);

/// Refuses a workload of a model that Isobar's layers compute differently. @throws InputError "file: differences: …".
void require_same_model(const Workload& workload, const std::string& file);

}  // namespace isobar
