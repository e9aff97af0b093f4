#include "core/model/differences.hpp"

#include "core/errors.hpp"
#include "core/model/workload.hpp"

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <variant>

namespace isobar {

std::uint64_t all_parameters(const Workload& workload)
{
  std::uint64_t sum = 0;
  for (const auto& layer : workload.layers) sum += layer.parameters;
  return sum;
}

std::uint64_t matrix_of_head(const Workload& workload)
{
  if (!workload.ties_apart) return 0;
  return std::visit(
      [](const auto& sizes) -> std::uint64_t {
        if constexpr (requires { sizes.vocabulary* sizes.hidden; }) return sizes.vocabulary * sizes.hidden;
        return 0;
      },
      workload.model);
}

std::optional<std::string> note_of_head(const Workload& workload, const std::string& file)
{
  if (!workload.ties_apart) return std::nullopt;
  Workload whole = workload;  // also of one whose experts devices divide
  whole.experts = {};
  const std::uint64_t here = all_parameters(with_micro_batch(whole, workload.micro_batch));
  return fmt::format(
      "{}: tied: apart: counts {} parameters; {} with one matrix for head and embedding, as in the model",
      on_one_line(file), here, here - matrix_of_head(workload));
}

void require_same_model(const Workload& workload, const std::string& file)
{
  if (workload.differences.empty()) return;
  throw InputError(file, fmt::format("differences: the model has {}, which isobar run does not compute; to train the "
                                     "model without, plan with --set differences=[]",
                                     fmt::join(workload.differences, "; ")));
}

}  // namespace isobar
